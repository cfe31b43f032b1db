"""What travels between workers and servers is counted as it is, and tokens are one server's; `test_row_store.py` has the rest."""

import pytest

import lib
from lib import RowStore, VirtualCluster, protocols
from lib.cluster.virtual import HEADER
from lib.drivers.plan import Plan
from lib.drivers.server_loop import drive
from lib.protocols.baselines import Sync

BATCHES, WORKERS = 12, 3
CLICKS = lib.workloads.get("criteo-deepfm", samples=64 * BATCHES, batch_size=64, vocabulary=200, evaluation_samples=100)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(
    "store", [{}, {"rows": "fp16", "gradients": "int8"}, {"rows": "scaled-fp16", "gradients": "fp16", "ids": "samples"}]
)
def test_what_is_counted_is_what_the_network_carries(servers, store):
    """A call and an answer for each batch's pull and push, each worker's leaving and the end of its run."""
    fixed = {"workers": WORKERS, "servers": servers, "seed": 0, "on_nan": "stop", "trace": False}
    plan = Plan(workload=CLICKS, protocol=protocols.get("sync"), store=RowStore(**store), **fixed)
    cluster = VirtualCluster(workers=WORKERS, servers=servers, slowdown=0.5)
    finished = cluster.open(0, WORKERS).run(lambda world: drive(world, plan))
    counted = sum(record.bytes.total() for record in finished.records)
    messages = servers * (4 * BATCHES + 2 * WORKERS) + 2 * WORKERS
    assert sum(usage.bytes_sent for usage in finished.usage) == counted + HEADER * messages


def test_a_token_is_the_first_servers_step():
    """Under Sync every server is asked at its own step, which is the first one's too."""
    behind = []

    class Noting(Sync):
        def on_push(self, state, push):
            behind.append(state.step - push.token)
            return super().on_push(state, push)

    lib.train(CLICKS, Noting(), VirtualCluster(workers=WORKERS, servers=2), save=False)
    assert behind == [0] * 2 * BATCHES
