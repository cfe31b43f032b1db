"""The benchmarks: peers do the same work as the table, every figure comes out, and a busy machine is no verdict."""

import math

import numpy as np
import pytest
import torch

from lib import workloads
from lib.errors import BadOption
from lib.store.table import Table
from lib.tasks.flat_model import FlatModel
from notebooks.bench import captured, device, figure, pairs, peers, store
from reports import claims
from tests import one_batch


@pytest.mark.parametrize("peer", [peers.Torch, peers.Fbgemm, peers.Direct])
@pytest.mark.parametrize("optimizer", [store.ELEMENTS, store.ROWWISE], ids=["element-wise", "row-wise"])
def test_peers_do_the_same_work(peer, optimizer):
    if peer is peers.Torch and optimizer.rowwise:
        pytest.skip("torch.optim has no row-wise Adagrad")
    rng, dim = np.random.default_rng(0), 4
    rows, grads = rng.integers(0, 50, 90), rng.normal(0, 1, (90, dim)).astype(np.float32)
    table = Table(dim, optimizer, seed=0, scale=0)
    try:
        other = peer(50, dim, optimizer)
    except (ImportError, OSError):
        pytest.skip("fbgemm is not installed")
    for stamp in range(3):
        table.pull(rows)
        table.push(rows, grads, stamp)
        other.step(rows, grads)()
    theirs = other.array[:, :dim] if peer is peers.Direct else other.weight.detach().numpy()
    np.testing.assert_allclose(table.peek(np.arange(50)), theirs, rtol=2e-5, atol=1e-6)


def test_a_ratio_is_the_median_of_the_pairs():
    row = pairs.against(2.0, [(4, 1), (6, 2), (1, 1)], 6, "rows/s")
    assert (row["measured"], row["least"], row["greatest"], row["holds"]) == (3, 1, 4, "yes")
    assert (row["peer's rate"], row["our rate"]) == (1.5, 6), "six rows in a median of 4 seconds, and of 1"
    assert pairs.against(3.5, [(3, 1)], 6, "rows/s")["holds"] == "no"
    assert pairs.against(2.0, [(3, 1)], 6, "rows/s", cores=1.2)["holds"] == "machine busy"
    assert pairs.at_most(24, 25)["holds"] == "no"


def test_the_worst_figure_decides_and_a_busy_machine_decides_nothing():
    rows = [
        {"claim": "a", **pairs.against(2.0, [(4, 1)], 6, "rows/s")},
        {"claim": "a", **pairs.against(2.0, [(3, 1)], 6, "rows/s")},
        {"claim": "a", **pairs.against(2.0, [(1, 1)], 6, "rows/s", cores=1.0)},
        {"claim": "b", **pairs.at_most(8, 4)},
        {"claim": "c", **pairs.against(2.0, [(1, 1)], 6, "rows/s", cores=1.0)},
    ]
    found = store.headroom(rows).set_index("subject")["headroom"]
    assert (found["a"], found["b"]) == (1.5, 2.0)
    assert math.isnan(found["c"])


def test_every_claim_of_the_notebook_gets_its_figures():
    rows = list(store.measure("tiny"))
    judged = {claim.subject for claim in claims.load().values() if claim.notebook == "93_performance"}
    assert {row["claim"] for row in rows} - {"published"} == judged - {"published"}
    assert all(row["holds"] in ("yes", "no", "machine busy") or row["peer"] == "fbgemm" for row in rows)
    table = store.pd.DataFrame(rows)
    assert len(figure.headroom(table).axes[0].get_yticks()) > 15


def test_the_devices_bench_trains_each_mode_over_rows_that_are_there():
    task = device.setup_2(50, 6, 2_000)
    rows = list(device.pipelines(task, "cpu", turns=1))
    assert [row["protocol"] for row in rows] == ["sequential", "pipelined", "oac"]
    table = device.Filled(entities=2_000).table("entity", 4, task.row_optimizer, seed=0, scale=0.1)
    assert np.array_equal(table.ids(), np.arange(2_000))


def test_a_bucket_is_at_most_an_eighth_larger_than_what_it_is_for():
    rooms = np.array([captured.room(rows) for rows in range(1, 5000)])
    rows = np.arange(1, 5000)
    assert (rooms >= rows).all() and (rooms[7:] <= 9 / 8 * rows[7:]).all() and len({*rooms}) < 90


@pytest.mark.parametrize("name", workloads.ALL)
def test_a_captured_step_has_the_gradients_of_the_step(name):
    """Of every model, on a batch that differs from the one that it was made from."""
    task = one_batch.of(name)
    model, rng, known = FlatModel(task.model(0), pooling=task.bags()), np.random.default_rng(0), {}
    for index in range(12):
        batch = task.batch(0, index).to("cpu")
        rows = {
            table: torch.from_numpy(0.1 * rng.standard_normal((len(batch.ids[table]), spec.dim), np.float32))
            for table, spec in task.tables().items()
        }
        form = captured.CapturedStep.form(batch, rows)
        if form not in known:
            known[form] = captured.CapturedStep(model, batch, rows)
            continue
        found, expected = known[form](batch, rows), model.launch(batch, rows)
        assert torch.equal(found.dense, expected.dense) and torch.equal(found.loss, expected.loss)
        assert all(torch.equal(found.rows[table], expected.rows[table]) for table in rows)
        return
    pytest.fail("no two batches have one form")


def test_a_model_that_reads_more_than_its_batchs_rows_cannot_be_captured():
    task = one_batch.of("criteo-dlrm")
    module = task.model(0)
    score = module.forward
    module.forward = lambda batch, rows: score(batch, rows) + sum(block.mean() for block in rows.values())
    batch = task.batch(0, 0).to("cpu")
    rows = {"feature": torch.zeros(len(batch.ids["feature"]), task.tables()["feature"].dim)}
    with pytest.raises(BadOption, match="depend on rows at no place of the batch"):
        captured.CapturedStep(FlatModel(module), batch, rows)
