"""The benchmarks: peers do the same work as the table, every figure comes out, and a busy machine is no verdict."""

import math

import numpy as np
import pytest

from lib import protocols
from lib.store.table import Table
from notebooks.bench import device, figure, pairs, paper_size, peers, store
from reports import claims
from tests.toys import clicks


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


def test_each_papers_size_is_tried_under_a_baseline_and_its_own_protocol(monkeypatch):
    monkeypatch.setitem(paper_size.MODELS, "oac", (lambda: clicks(1_000, 16), ("sync", "gba")))
    monkeypatch.setitem(paper_size.MODELS, "gba", (lambda: clicks(1_000, 16), ("sync", "gba")))
    alone, four = paper_size.steps("oac", "sync"), paper_size.steps("gba", "gba")
    assert [row["workers"] for row in (alone, four)] == [1, 4] and alone["batch"] == 16
    assert alone["dense parameters"] > 0 and alone["peak memory, GB"] > 0 and math.isfinite(alone["last loss"])
    names = {name for _, pair in paper_size.MODELS.values() for name in pair}
    assert names <= {*protocols.ALL}
