"""On real data the kit's sequential training learns what plain torch learns from the same batches."""

import numpy as np
import pytest

import lib
from lib import workloads
from notebooks import real_data, setting


@pytest.fixture
def graph(monkeypatch):
    """A synthetic graph in the place of a folder's."""
    options = {"entities": 200, "relations": 5, "triples": 3_000}
    options |= {"evaluation_triples": 300, "evaluation_candidates": 100}

    def workload(rate, profile, parts=1):
        rates = dict.fromkeys(("dense_optimizer", "row_optimizer"), lib.Adagrad(lr=rate))
        size = {"samples": 9_000, "batch_size": 128 // parts, "dim": 16, "scale": 0.1}
        return workloads.get("freebase86m-distmult", **options, **size, **rates)

    monkeypatch.setattr(real_data, "workload", workload)
    monkeypatch.setattr(real_data, "kind", lambda: "triples")


def test_sequential_training_learns_what_plain_torch_learns(graph):
    def mrr(protocol, seed):
        return lib.train(**real_data.job(protocol, 0.1, seed, "smoke"), save=False).summary["mrr"]

    mine = [mrr("sequential", seed) for seed in range(3)]
    plain, untrained = [real_data.plain_torch(0.1, seed, "smoke") for seed in range(3)], mrr("frozen", 0)
    assert np.mean(mine) == pytest.approx(np.mean(plain), abs=0.03) and np.mean(plain) > untrained + 0.1


def test_each_has_the_same_budget_and_its_own_best_rate(graph, monkeypatch):
    """A protocol whose metric is its rate is compared at the largest, and one whose metric falls with it at the smallest."""

    def values(cases, profile):
        return [each["rate"] if each["protocol"] == real_data.PLAIN else 1 - each["rate"] for each in cases]

    monkeypatch.setattr(real_data, "values", values)
    curve = real_data.tune([real_data.PLAIN, "oac"], "smoke", (0.1, 0.2), [1])
    assert curve.groupby("protocol").size().tolist() == [2, 2]
    found = real_data.compare(curve, "smoke", [5, 6]).set_index(["protocol", "seed"])
    for seed in (5, 6):
        assert (found["rate"][real_data.PLAIN, seed], found["rate"]["oac", seed]) == (0.2, 0.1)
    assert found.loc[("oac", 5), "mrr less plain torch's"] == pytest.approx(0.7)


def test_nothing_is_trained_without_a_folder():
    setting.use("smoke")
    assert not setting.data() and setting.served({"criteo": "clicks"}) == ["criteo"]
