"""What travels between workers and servers: by the row store's placement, codecs and form of ids, and counted as it is."""

import numpy as np
import pytest

import lib
from lib import RowStore, VirtualCluster, protocols
from lib.cluster.virtual import HEADER
from lib.drivers.plan import Plan
from lib.drivers.server_loop import drive
from lib.protocols.baselines import Sync
from lib.store.rows import Uniform, place_rows
from tests.toys import finals

BATCHES, WORKERS = 12, 3
CLICKS = lib.workloads.get("criteo-deepfm", samples=64 * BATCHES, batch_size=64, vocabulary=200, evaluation_samples=100)


def trained(servers=2, protocol="sync", **store):
    """The rows of all servers as one, their share on each, and the run's bytes by kind and in all."""
    fixed = {"workers": WORKERS, "servers": servers, "seed": 0, "on_nan": "stop", "trace": False}
    plan = Plan(workload=CLICKS, protocol=protocols.get(protocol), store=RowStore(**store), **fixed)
    cluster = VirtualCluster(workers=WORKERS, servers=servers, slowdown=0.5)
    finished = cluster.open(0, WORKERS).run(lambda world: drive(world, plan))
    final = finals(finished.records)
    parts = [final[f"server{number}/rows"]["feature"] for number in range(servers)]
    kinds = sum((record.bytes for record in finished.records), start=type(finished.records[0].bytes)())
    sent = sum(usage.bytes_sent for usage in finished.usage)
    return place_rows(parts, "feature", Uniform(shards=1))[0], [len(part) for part in parts], kinds, sent


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(
    "store", [{}, {"rows": "fp16", "gradients": "int8"}, {"rows": "scaled-fp16", "gradients": "fp16", "ids": "samples"}]
)
def test_what_is_counted_is_what_the_network_carries(servers, store):
    """A call and an answer for each batch's pull and push, each worker's leaving and the end of its run."""
    _, _, kinds, sent = trained(servers, **store)
    messages = servers * (4 * BATCHES + 2 * WORKERS) + 2 * WORKERS
    assert sent == kinds.total() + HEADER * messages


@pytest.mark.parametrize("placement", ["by-group", "by-cost"])
def test_a_placement_changes_where_rows_are_and_nothing_else(placement):
    uniform, shares, *_ = trained()
    placed, others, *_ = trained(placement=placement)
    assert shares != others and min(others) > 0
    np.testing.assert_array_equal(placed.ids, uniform.ids)
    np.testing.assert_allclose(placed.values, uniform.values, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("ids", ["entries", "samples"])
def test_ids_may_be_asked_for_in_any_form(ids):
    distinct, _, kinds, _ = trained()
    same, _, others, _ = trained(ids=ids)
    np.testing.assert_array_equal(same.values, distinct.values)
    assert others["pull ids"] > kinds["pull ids"]
    assert {kind: size for kind, size in others.items() if kind != "pull ids"} == {
        kind: size for kind, size in kinds.items() if kind != "pull ids"
    }


def test_codecs_halve_what_they_encode_and_hardly_change_what_is_trained():
    plain, _, kinds, _ = trained()
    close, _, halved, _ = trained(rows="fp16", gradients="fp16")
    ids = kinds["pull ids"]  # a gradient's ids are sent as they are
    assert halved["pull rows"] * 2 == kinds["pull rows"]
    assert (halved["push rows"] - ids) * 2 == kinds["push rows"] - ids
    assert halved["push dense"] == kinds["push dense"]
    assert 0 < np.abs(close.values - plain.values).mean() < 1e-4


def test_a_token_is_the_first_servers_step():
    """Under Sync every server is asked at its own step, which is the first one's too."""
    behind = []

    class Noting(Sync):
        def on_push(self, state, push):
            behind.append(state.step - push.token)
            return super().on_push(state, push)

    lib.train(CLICKS, Noting(), VirtualCluster(workers=WORKERS, servers=2), save=False)
    assert behind == [0] * 2 * BATCHES
