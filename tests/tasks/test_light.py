"""The small factorisation machine: its compiled gradients against autograd, and the light clicks in every world."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch

import lib
from lib import protocols, workloads
from lib.errors import BadOption
from lib.tasks.click_models import TABLE, LightFM
from lib.tasks.flat_model import Batch, FlatModel

SHAPES = [((5,), 0), ((16,), 3), ((), 0), ((), 3)]
shapes = pytest.mark.parametrize(("hidden", "numbers"), SHAPES)


def example(hidden, numbers):
    workload = workloads.get("clicks-light", hidden=hidden, dense_features=numbers, fields=4, dim=3, vocabulary=20)
    batch = workload.batch(0, 0)
    rows = np.random.default_rng(0).normal(size=(len(batch.ids[TABLE]), 4)).astype(np.float32)
    return workload, batch, {TABLE: rows}


@shapes
def test_the_gradients_are_those_of_autograd(hidden, numbers):
    workload, batch, rows = example(hidden, numbers)
    found, twin = FlatModel(workload.model(1)).step(batch, rows), workload.model(1).double()
    seen = batch.to(torch.device("cpu"))
    seen.features["dense"] = seen.features["dense"].double()
    block = torch.tensor(rows[TABLE], dtype=torch.float64, requires_grad=True)
    scores = twin(seen, {TABLE: block})
    loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, seen.labels.double())
    loss.backward()
    dense = torch.cat([parameter.grad.flatten() for parameter in twin.parameters()])
    assert found.loss == pytest.approx(loss.item(), abs=1e-6)
    np.testing.assert_allclose(found.scores, scores.detach(), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.dense, dense, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.rows[TABLE], block.grad, rtol=0, atol=1e-6)
    assert dense.abs().max() > 0.01  # which 1e-6 is little of


@shapes
def test_a_step_keeps_nothing_and_gives_the_same_bits_in_every_way(hidden, numbers):
    workload, batch, rows = example(hidden, numbers)
    flat, told = FlatModel(workload.model(1)), {}
    first = flat.step(batch, rows)
    cut = [slice(start, end) for start, end in pairwise(sorted({0, 1, flat.size}))]
    again = flat.step(batch, rows, cut, told.__setitem__)
    there = flat.launch(batch.to(torch.device("cpu")), {TABLE: torch.from_numpy(rows[TABLE])})
    for other in (again, there):
        assert float(other.loss) == pytest.approx(first.loss, rel=1e-7) and torch.equal(first.dense, other.dense)
        np.testing.assert_array_equal(first.rows[TABLE], np.asarray(other.rows[TABLE]))
    assert there.finite()
    np.testing.assert_array_equal(np.concatenate([told[number] for number in range(len(cut))]), first.dense)


def test_by_hand():
    """Two fields of width 1, no network: 0.1 + 1 + 2 + 3 x 4 is the score of (a, b), whose click is 0."""
    model = LightFM(fields=2, dim=1, dense_features=0, hidden=(), seed=0)
    rows = {TABLE: np.array([[3, 1], [4, 2]], np.float32)}
    fields = {"raw": {TABLE: np.array([[7, 8]])}, "features": {"dense": np.empty((1, 0), np.float32)}}
    batch = Batch.of(index=0, size=1, labels=np.zeros(1, np.float32), **fields)
    loss, dense, of_rows, scores = model.gradients(np.array([0.1], np.float32), batch, rows)
    chance = 1 / (1 + np.exp(-15.1))
    assert scores[0] == pytest.approx(15.1) and loss == pytest.approx(15.1, abs=1e-6)
    np.testing.assert_allclose(dense, [chance], rtol=1e-6)
    np.testing.assert_allclose(of_rows[TABLE], chance * np.array([[4, 1], [3, 1]]), rtol=1e-6)


def test_what_is_no_number_shows():
    workload, batch, rows = example((5,), 0)
    flat = FlatModel(workload.model(1))
    flat.vector[3] = float("nan")
    assert np.isnan(flat.step(batch, rows).loss)


def test_where_columns_are_summed_autograd_takes_over():
    workload = workloads.get("clicks-light", pooling=(1, 3), fields=2, dim=3, vocabulary=20)
    batch = workload.batch(0, 0)
    rows = {TABLE: np.ones((len(batch.ids[TABLE]), 4), np.float32)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = FlatModel(workload.model(1), pooling=workload.bags()).step(batch, rows)
    assert result.rows[TABLE].shape == rows[TABLE].shape and np.isfinite(result.loss)


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


@pytest.mark.parametrize("cluster", ["virtual", "local"])
@pytest.mark.parametrize("protocol", ["gba", "s-easgd", "all-reduce", "hybrid", "ds-sync", "oac", "gba+all-reduce"])
def test_every_family_trains_it(protocol, cluster, by_hand):
    assert trained(protocol, cluster).summary["auc"] > 0.5 and len(by_hand) >= 40


SUMMED = [{"pooling": [1] * 7 + [2], "store.pooling": "server"}, {"pooling": [2] * 8, "embedding_workers": 1}]


@pytest.mark.parametrize("options", [{"embedding_workers": 2}, *SUMMED])
def test_with_nodes_that_look_rows_up_and_sum_them(options, by_hand):
    """Where others sum the rows, a model sees sums, and its gradients are its own again."""
    assert np.isfinite(trained("gba", servers=2, **options).summary["auc"]) and len(by_hand) == 40


@pytest.mark.parametrize("hidden", [[16], []])
def test_it_comes_near_what_can_be_known(hidden):
    size = {"samples": 64 * 2_500, "vocabulary": 500, "evaluation_samples": 10_000}
    found = trained("sync", workers=1, hidden=hidden, **size).summary
    assert found["auc_ceiling"] - 0.03 < found["expected_auc"] < found["auc_ceiling"]


def test_what_it_is_not():
    with pytest.raises(BadOption, match="hidden must be one width, or none for rows alone"):
        workloads.get("clicks-light", hidden=[16, 8])
    with pytest.raises(BadOption, match="network must be left out"):
        workloads.get("clicks-light", model="dlrm")
