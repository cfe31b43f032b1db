"""The light clicks in every world and for every rule, and near what can be known."""

import numpy as np
import pytest

import lib
from lib import protocols, workloads
from lib.errors import BadOption
from lib.tasks.click_models import LightFM

QUICK = {"samples": 64 * 40, "vocabulary": 100, "evaluation_samples": 1_000, "save": False}


def trained(protocol, cluster="virtual", **options):
    given = QUICK | ({} if protocols.ALL[protocol.split("+")[-1]].family == "pipeline" else {"workers": 4}) | options
    return lib.train("clicks-light", protocol, cluster, **given)


@pytest.fixture
def by_hand(monkeypatch):
    """How many steps the compiled gradients were asked for."""
    asked, own = [], LightFM.gradients
    monkeypatch.setattr(LightFM, "gradients", lambda *given: asked.append(1) or own(*given))
    return asked


@pytest.mark.parametrize("protocol", [*protocols.ALL, "gba+all-reduce"])
def test_every_protocol_trains_it_to_the_same_bits_twice(protocol, by_hand):
    run = trained(protocol, seed=3)
    assert len(by_hand) >= 40 and np.isfinite(run.summary["auc"]) and run.digest == trained(protocol, seed=3).digest


@pytest.mark.parametrize("protocol", ["sync", "gba", "async", "s-easgd", "all-reduce", "hybrid", "oac"])
def test_on_threads(protocol, by_hand):
    assert trained(protocol, "local").summary["auc"] > 0.5 and len(by_hand) >= 40


@pytest.mark.parametrize(
    "options",
    [
        {"embedding_workers": 2},
        {"pooling": [1] * 7 + [2], "store.pooling": "server"},
        {"pooling": [2] * 8, "embedding_workers": 1},
    ],
)
def test_with_nodes_that_look_rows_up_and_sum_them(options, by_hand):
    """Where others sum the rows, a model sees sums, and its gradients are its own again."""
    assert np.isfinite(trained("gba", servers=2, **options).summary["auc"]) and len(by_hand) == 40


@pytest.mark.parametrize("hidden", [[16], []])
def test_it_comes_near_what_can_be_known(hidden):
    run = lib.train(
        "clicks-light",
        "sync",
        "virtual",
        workers=1,
        samples=64 * 2_500,
        hidden=hidden,
        vocabulary=500,
        evaluation_samples=10_000,
        save=False,
    )
    assert run.summary["auc_ceiling"] - 0.03 < run.summary["auc"] < run.summary["auc_ceiling"]


def test_what_it_is_not():
    with pytest.raises(BadOption, match="hidden must be one width, or none for rows alone"):
        workloads.get("clicks-light", hidden=[16, 8])
    with pytest.raises(BadOption, match="network must be left out"):
        workloads.get("clicks-light", model="dlrm")
