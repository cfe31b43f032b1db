"""Who is missing when a run goes on from its cut, and what the tries before it leave in the books."""

from collections import Counter
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

import lib
from lib.cluster.base import Handle
from lib.drivers.checkpoints import Attempt, Checkpoint
from lib.drivers.record import PartLog
from lib.drivers.workers import Workers
from lib.errors import NodeLost
from lib.protocols.gba import GBA


class Worker(Handle):
    """Loads, and trains to any mark at once."""

    def bind(self, site):
        return self

    async def _call(self, method, *args):
        assert method in ("load", "run")


class Server(Handle):
    def __init__(self):
        self.left = []

    def bind(self, site):
        return self

    async def _call(self, method, *args):
        assert method == "note_change"
        self.left.append(args)


def crew(gone, planned=(), workers=3):
    """Workers whose nodes are found gone when they are to be put there; those in `planned` are dead by plan."""

    async def host(kind, plan, rank, *, node):
        if rank in gone:
            raise NodeLost(f"worker{rank}")
        return Worker()

    dead = {f"worker{rank}" for rank in planned}
    cluster = SimpleNamespace(patience=0.0, may_fail=bool(planned))
    world = SimpleNamespace(cluster=cluster, host=host, is_dead=dead.__contains__)
    protocol = SimpleNamespace(dense=GBA())
    plan = SimpleNamespace(workers=workers, embedding_workers=0, attempt=Attempt(), protocol=protocol)
    server = Server()
    return Workers(world, plan, Worker, (), [server]), plan.attempt, server


class There(Checkpoint):
    """A cut of three workers, in which so many were there."""

    def __init__(self, there=3):
        names = [f"worker{rank}" for rank in range(3)]
        super().__init__({}, dict.fromkeys(names[:there], ""), None, ())

    def state(self, name):
        return {"record": notes(name, 4)}

    async def restore(self, name, part):
        await part.load(self.state(name))


def notes(node, issued):
    return PartLog(node, None, ledger=Counter(issued=issued))


@pytest.mark.parametrize("gone", [{1}, {0, 1, 2}])
async def test_who_is_gone_without_a_plan_takes_the_run_back(gone):
    """Else the others would go on without it for good; and where all are gone, a run would end at its cut."""
    several, _, server = crew(gone)
    with pytest.raises(NodeLost):
        await several.start(There())
    assert server.left == []


async def test_who_is_dead_by_plan_is_waited_for():
    several, attempt, server = crew({1}, planned={1})
    await several.start(There())
    assert server.left == [(1, "is missing")] and attempt.left_out
    assert [record.node for record in attempt.lost] == ["worker1"]


async def test_a_worker_that_joins_again_goes_on_after_its_own_last_batch():
    several, attempt, _ = crew(set())
    logs = {"worker1": [1, 4], "worker2": [2, 11], "worker0": [0, 9]}
    attempt.lost += [PartLog(node, None, taken=taken) for node, taken in logs.items()]
    part = SimpleNamespace(take_over=AsyncMock())
    await several.on_return(1, part)
    part.take_over.assert_awaited_once_with(None, None, 4)


async def test_a_run_without_workers_does_not_come_to_its_end():
    several, _, _ = crew(set())
    await several.start(There(0))
    with pytest.raises(NodeLost, match="the last worker"):
        await several.run(10)


def test_what_was_undone_is_counted_when_the_next_try_ends_before_it_stands():
    first = Attempt()
    first.resume_from()
    second = first.next_attempt([notes("worker0", 30)])
    third = second.next_attempt([])  # nobody had been put anywhere yet
    third.resume_from(10)
    assert third.undone == 20
    fourth = third.next_attempt([notes("worker0", 17)])
    fourth.resume_from(10)
    assert fourth.undone == 27


def test_who_has_come_back_stands_in_its_place(monkeypatch):
    """Where all are told of something, they are in the order in which they would be after a cut."""
    orders, announce_peers = [], Workers.announce_peers

    async def noted(self):
        orders.append(list(self.handles))
        await announce_peers(self)

    monkeypatch.setattr(Workers, "announce_peers", noted)
    dies = {"node": "worker0", "kind": "dies", "at_batch": 2, "lasts": 0.01}
    small = {"batch_size": 8, "samples": 480, "hidden": (4,), "fields": 2, "dim": 2, "worker.flops": 1e6}
    lib.train("ctr-synthetic", "async", "virtual", save=False, workers=3, failures=[dies], patience=1e-3, **small)
    assert [0, 1, 2] in orders[1:] and all(order == sorted(order) for order in orders)


def test_a_last_batch_that_is_short_costs_what_it_has():
    """A batch of a thousand samples of which the pass has eight was charged as a whole one."""
    options = {"samples": 8, "vocabulary": 40, "fields": 3, "hidden": (8,), "save": False, "gradients": False}
    sizes = 8, 8000
    whole, short = (
        lib.train("ctr-synthetic", "sequential", "virtual", batch_size=size, **options).trace for size in sizes
    )
    seconds = [(trace["end"] - trace["start"])[trace["kind"] == "compute"].sum() for trace in (whole, short)]
    assert 0 < seconds[0] == pytest.approx(seconds[1])
