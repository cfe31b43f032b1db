"""A part that lasts: it is there again when its node is, with what outlived its process, and its callers know nothing of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from lib.store.shared_memory.notes import Notes

import lib
from lib.cluster.faults.failures import Failure
from lib.cluster.local import LocalCluster
from lib.cluster.ray import start as starting
from lib.cluster.ray.cluster import RayCluster
from lib.cluster.virtual.cluster import VirtualCluster
from lib.errors import LockstepError, NodeLost
from lib.store.optim import SGD
from lib.store.shared_memory import segment
from lib.store.shared_memory.table import SharedTable
from lib.store.spec import RowStore

TASK = {"batch_size": 8, "vocabulary": 30, "fields": 2, "dim": 2, "hidden": (4,), "dense_features": 1}
SHARED = RowStore(shared_memory=True)
OUTCOMES = ("applied", "decayed", "dropped", "lost", "in_flight")


class Lasting:
    """It notes who called it, and has a table."""

    def __init__(self, site):
        self._site, self._notes = site, site.outliving("lasting", Notes)
        self.table = self._notes.thing("table", table)
        kept = self._notes.read(())
        self.attached = kept is not None
        self._met = kept[1].get("met", []) if kept else []
        self.ends = 0

    async def note(self, who):
        if who not in self._met:
            self._met.append(who)
            self._notes.write({"process": os.getpid()}, {"met": self._met})
        return list(self._met)

    async def fill(self, rows):
        self.table.pull(np.arange(rows))
        self.table.push(np.arange(rows), np.ones((rows, 4), np.float32), 1)
        await self.note("filled")

    async def seen(self):
        return os.getpid(), len(self.table), self.table.peek([3])[0].tolist()

    async def slow(self, who):
        await self._site.sleep(0.05)
        return await self.note(who)


def table(within):
    options = {"seed": 0, "scale": 0.0}
    return (
        SharedTable(4, SGD(lr=1.0), name="t", root=within, **options)
        if within
        else RowStore().table("t", 4, SGD(lr=1.0), **options)
    )


@pytest.mark.parametrize("kind", [VirtualCluster, LocalCluster])
def test_calls_are_made_again_in_their_order_when_the_node_is_there(kind):
    """It dies in the midst of three calls, of which the first has noted nothing yet."""
    there = kind(failures=[Failure(node="server0", kind="dies", at=0.03, lasts=0.04)])

    async def main(world):
        part = await world.host(Lasting, node="server0", lasts=True)
        ends = await world.host(Lasting, node="server1")
        world.start_clock()
        await part.note("before")
        answers = await asyncio.gather(*(part.slow(who) for who in "abc"))
        return answers, await part.seen(), await ends.note("another")

    (first, *_, last), _, other = there.open(seed=0, workers=1).run(main)
    assert first == ["before", "a"] and last == ["before", "a", "b", "c"] and other == ["another"]


def test_who_never_is_there_again_is_lost_to_its_callers():
    there = VirtualCluster(failures=[Failure(node="server0", kind="dies", at=0.03)])

    async def main(world):
        part = await world.host(Lasting, node="server0", lasts=True)
        world.start_clock()
        await part.slow("a")

    with pytest.raises(NodeLost):
        there.open(seed=0, workers=1).run(main)


def memory(world):
    """What the world's processes have that outlives them; other tests run beside."""
    return [*segment._memory().glob(f"lockstep-{world._memory}-*")]


@pytest.mark.ray
def test_a_process_that_is_killed_is_replaced_where_its_memory_is(joined_ray):
    """Each time another process has the rows; calls that it met wait, in their order."""

    async def main(world):
        part = await world.host(Lasting, node="server0", lasts=True)
        await part.fill(1000)
        pids = [(await part.seen())[0]]
        for who in "xy":
            os.kill(pids[-1], signal.SIGKILL)
            met = await asyncio.gather(*(part.note(f"{who}{number}") for number in range(3)))
            pid, *rows = await part.seen()
            pids.append(pid)
            assert rows == [1000, [-1.0] * 4]
        assert memory(world)
        return pids, met[-1]

    there = RayCluster(workers=1).open(seed=0, workers=1)
    pids, met = there.run(main)
    assert len({*pids}) == 3 and met == ["filled", "x0", "x1", "x2", "y0", "y1", "y2"]
    assert not memory(there)


@pytest.mark.ray
def test_a_process_whose_memory_is_gone_is_lost(joined_ray):
    async def main(world):
        part = await world.host(Lasting, node="server0", lasts=True)
        await part.fill(10)
        pid, *_ = await part.seen()
        os.kill(pid, signal.SIGKILL)
        for folder in memory(world):
            (folder / "state").unlink()
        await part.note("nobody")

    with pytest.raises(NodeLost):
        RayCluster(workers=1).open(seed=0, workers=1).run(main)


@pytest.mark.parametrize("kind", ["virtual", "local"])
@pytest.mark.parametrize("protocol", ["async", "gba", "sync", "ssp", "hop-bw", "hybrid", "dc-asgd", "s-easgd"])
def test_whoever_follows_a_rule_goes_on_and_the_books_balance(kind, protocol):
    """Of gradients only those are lost that a server had taken and not brought into its store."""
    # On threads a call must have time to come through between two deaths, on a busy machine too.
    every, lasts = (0.002, 0.0005) if kind == "virtual" else (0.4, 0.02)
    failures = [lib.Failure(node="server*", kind="dies", every=every, lasts=lasts)]
    sizes = {"workers": 4, "servers": 2, "samples": 8 * 200, "save": False} | TASK
    run = lib.train("ctr-synthetic", protocol, kind, store=SHARED, failures=failures, **sizes)
    told = run.summary
    assert told["samples"] == 1600 and told["returns_to_a_cut"] == 0
    assert told["issued"] == 200 == sum(told[name] for name in OUTCOMES)
    assert kind == "local" or told["servers_attached_again"] > 0
    assert told["lost"] <= told.get("gradients_lost_at_servers", 0)


@pytest.mark.parametrize("protocol", ["async", "gba"])
def test_what_was_on_its_way_into_the_store_is_lost_and_counted(protocol):
    """An update takes a fifth of a millisecond. The books of each server must balance; those of the first are the run's."""
    failures = [lib.Failure(node="server*", kind="dies", every=0.005, lasts=0.0005)]
    there = lib.VirtualCluster(workers=4, servers=2, failures=failures, server=lib.Node(launch=2e-4))
    told = lib.train("ctr-synthetic", protocol, there, store=SHARED, samples=8 * 400, save=False, **TASK).summary
    assert (
        0 < told["lost"] <= told["gradients_lost_at_servers"]
        and told["applied"] + told["lost"] == told["issued"] == 400
    )


def test_a_gradient_whose_parameters_were_read_before_the_death_is_taken_after_it():
    """Nothing is under way in a store that takes no time, so nothing is lost."""
    failures = [lib.Failure(node="server*", kind="dies", every=0.002, lasts=0.0005)]
    sizes = {"workers": 4, "servers": 2, "samples": 8 * 200, "save": False} | TASK
    told = lib.train("ctr-synthetic", "async", "virtual", store=SHARED, failures=failures, **sizes).summary
    assert told["servers_attached_again"] > 0 and told["lost"] == told["gradients_lost_at_servers"] == 0


def test_in_virtual_time_it_is_the_same_every_time():
    failures = [lib.Failure(node="server*", kind="dies", every=0.002, lasts=0.0005)]
    sizes = {"workers": 4, "servers": 2, "samples": 8 * 200, "save": False} | TASK
    one, other = (
        lib.train("ctr-synthetic", "gba", "virtual", store=SHARED, failures=failures, **sizes) for _ in range(2)
    )
    assert one.digest == other.digest and one.summary["servers_attached_again"] > 3


def test_rows_that_do_not_outlive_their_process_take_the_run_back():
    failures = [lib.Failure(node="server0", kind="dies", at=0.004, lasts=0.001)]
    sizes = {"workers": 4, "servers": 2, "samples": 8 * 200, "save": False} | TASK
    for store in (RowStore(), RowStore(shared_memory=True, journal=False)):
        run = lib.train("ctr-synthetic", "gba", "virtual", store=store, failures=failures, **sizes)
        assert run.summary["returns_to_a_cut"] == 1 and "servers_attached_again" not in run.summary


@pytest.mark.parametrize("fails, tries", [(RuntimeError("timed out"), 3), (ValueError("an option"), 1)])
def test_ray_that_does_not_start_is_tried_again_and_told_of(monkeypatch, fails, tries):
    pytest.importorskip("ray")
    met = []

    def start(**options):
        met.append(options)
        raise fails

    world = RayCluster(workers=1).open(seed=0, workers=1)
    monkeypatch.setattr(world.ray, "init", start)
    monkeypatch.setattr(starting, "PAUSES", (0.0, 0.0))
    with pytest.raises(LockstepError, match="Ray did not start on this machine in 3 tries"):
        world._start()
    assert len(met) == tries
    with pytest.raises(LockstepError, match="no Ray at 'nowhere:1' that this process can join"):
        world.cluster = RayCluster(workers=1, address="nowhere:1")
        world._start()


@pytest.mark.ray  # beside others' Ray it was ended twice, by whom is not known
def test_a_start_that_fails_leaves_nothing_running(monkeypatch, tmp_path):
    """Ray's own way to fail: its server runs, then what should wait for it gives up. What ran before is left alone."""
    pytest.importorskip("ray")
    server = tmp_path / "ray" / "server.py"
    server.parent.mkdir()
    server.write_text("import time; time.sleep(600)")
    environment = {**os.environ, "PYTHON": sys.executable, "SERVER": str(server)}
    words = ["sh", "-c", 'read _; exec "$PYTHON" "$SERVER"']
    started = [subprocess.Popen(words, stdin=subprocess.PIPE, env=environment)]

    def start(**options):
        started[0].stdin.close()  # from here on it is what it was started for, as any process is a moment later
        while str(server) not in psutil.Process(started[0].pid).cmdline():
            time.sleep(0.01)
        started.append(subprocess.Popen([sys.executable, str(server)]))
        raise RuntimeError("timed out")

    world = RayCluster(workers=1).open(seed=0, workers=1)
    monkeypatch.setattr(world.ray, "init", start)
    monkeypatch.setattr(starting, "PAUSES", (0.0, 0.0))
    try:
        with pytest.raises(LockstepError, match="did not start"):
            world._start()
        assert [each.poll() is None for each in started] == [True, False, False, False]
    finally:
        for each in started:
            each.kill()
