"""Replicas: what a worker that is there again takes from another one."""

from collections import Counter

import numpy as np
import pytest

import lib
from lib import Failure, VirtualCluster, protocols
from lib.drivers.replica_loop import ReplicaWorker
from lib.protocols.baselines import Async
from lib.protocols.mixing import Background
from tests.drivers.composing import rule
from tests.soak.cases import WORKLOADS
from tests.soak.checks import check
from tests.toys import Letters, clicks, finals, records

CLICKS = clicks(2_000, 50)


@pytest.mark.parametrize("name", ["ds-sync", "s-easgd"])
def test_a_replica_that_is_there_again_shares_no_memory_with_the_one_that_it_copied(name, monkeypatch):
    replicas, joined, made, take_over = [], [], ReplicaWorker.__init__, ReplicaWorker.take_over

    def init(self, *args):
        made(self, *args)
        replicas.append(self)

    async def noted(self, step, copy, beyond):
        await take_over(self, step, copy, beyond)
        joined.append(self)
        for table in self.replica.tables.values():
            others = [t for each in replicas if each is not self for t in each.replica.tables.values()]
            assert not any(np.shares_memory(table.dump().words, other.dump().words) for other in others)

    monkeypatch.setattr(ReplicaWorker, "__init__", init)
    monkeypatch.setattr(ReplicaWorker, "take_over", noted)
    base = lib.train(CLICKS, name, VirtualCluster(workers=4), save=False).summary["virtual_seconds"]
    plan = [Failure(node="worker1", kind="dies", at=base / 3, lasts=base / 10)]
    lib.train(CLICKS, name, VirtualCluster(workers=4, failures=plan, patience=base / 50), save=False)
    assert joined
    assert any(each.replica.tables for each in joined) == (name == "ds-sync")


def test_who_is_there_again_has_its_group_before_it_pushes(reports):
    """Else the barrier at the rows' servers counts on it, and it waits in its group for those whom that barrier holds."""
    case = {"workload": "ctr-synthetic", **WORKLOADS["ctr-synthetic"], "cluster": "virtual", "worker.flops": 1e6}
    dies = ({"node": "worker1", "at": 0.05, "lasts": 0.03}, {"node": "worker0", "at_batch": 5, "lasts": 0.02})
    case |= {"protocol": "all-reduce", "samples": 316, "failures": [{"kind": "dies", **each} for each in dies]}
    assert check(case) is None


def test_rows_are_mixed_as_the_dense_parameters_are():
    """Two workers, a step each: one raises a, c and f by one, the other a, b and h; both then have the means."""
    final = finals(records(Letters(), protocols.get("ds-sync", size=2), VirtualCluster(workers=2)))
    for rank in range(2):
        rows = final[f"worker{rank}/replica rows"]["letter"]
        found = dict(zip(map(chr, rows.ids), rows.values[:, 0], strict=True))
        assert found == {"a": 1, "b": 0.5, "c": 0.5, "f": 0.5, "h": 0.5}


def test_a_shadow_that_goes_on_counts_the_steps_since_the_last_checkpoint(reports, monkeypatch):
    """Its pace is that of the stretch's own steps."""
    noted, linger = Counter(), ReplicaWorker._mix_until_all_end

    async def note(self, began, steps):
        noted[self._rank] += steps
        await linger(self, began, steps)

    monkeypatch.setattr(ReplicaWorker, "_mix_until_all_end", note)
    shadow = rule(when=Background(until="all"), rows=Async())
    lib.train(CLICKS, shadow, VirtualCluster(workers=2), checkpoint_every=10, save=False)
    assert noted == {0: 20, 1: 20}
