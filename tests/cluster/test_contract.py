"""What every cluster promises to the drivers, checked on each of them."""

import asyncio
import threading
from functools import partial

import numpy as np
import pytest

from lib import LocalCluster, RayCluster, VirtualCluster, workloads
from lib.cluster.base import Meeting
from lib.cluster.spec import Work
from lib.drivers.parameter_server import ParameterServer
from lib.drivers.plan import Plan
from lib.drivers.shard import Gradient
from lib.errors import BadOption, NotFinite
from lib.protocols import get
from lib.tasks.flat_model import FlatModel

LARGE = 250_000
"""Elements of an array that Ray carries through shared memory, and a thread copies for a while."""
HEAVY = Work(flops=1e6)
"""Enough for LocalCluster and RayCluster to use a thread."""


class Part:
    def __init__(self, site, *given):
        self.site, self.given, self.noted = site, given, []

    async def about(self):
        return self.site.node, self.given

    async def note(self, mark, array=None):
        self.noted.append(mark)

    async def notes(self):
        return self.noted

    async def compute(self, number):
        return await self.site.compute(HEAVY, np.square, number), await self.site.compute(Work(), np.square, number)

    async def clock(self, seconds):
        start = self.site.now()
        await self.site.sleep(seconds)
        return self.site.now() - start

    async def meet(self, rank, size):
        mine = np.full(size, rank, np.float32)
        both = Meeting("1", (0, 1))
        mean = await self.site.mean(both, mine)
        gathered = await self.site.gather(both, np.arange(rank + 1))
        before = mean.copy()
        mean += 1000 * (rank + 1)
        again = await self.site.mean(Meeting("2", (0, 1)), mine)
        alone = await self.site.mean(Meeting(f"alone {rank}", (rank,)), mine)
        alone += 1
        return before[0], gathered, mean[0], again[0], mine[0], (await self.site.gather(Meeting("x", (rank,)), mine))[0]

    async def fail(self, error, inside):
        if inside == "compute":
            await self.site.compute(HEAVY, partial(_raise, error))
        if inside == "background":
            async with asyncio.TaskGroup() as beside:
                beside.create_task(self._fail_later(error))
                await self.site.sleep(60)
        raise error

    async def _fail_later(self, error):
        await self.site.sleep(0.01)
        raise error


def _raise(error):
    raise error


class Caller:
    """A part that calls another."""

    def __init__(self, site, handle):
        self.handle = handle.bind(site)

    async def burst(self, name, calls):
        """Every third call carries a large array; nothing is awaited before all are issued."""
        sizes = [LARGE if call % 3 == 0 else 1 for call in range(calls)]
        await asyncio.gather(*[self.handle.note((name, call), np.zeros(size)) for call, size in enumerate(sizes)])

    async def fail(self, error, inside):
        async with asyncio.TaskGroup() as sending:  # as a worker's pushes are sent
            sending.create_task(self._fail(error, inside))

    async def _fail(self, error, inside):
        await self.handle.fail(error, inside)


def world(cluster, workers=1):
    kind = {"virtual": VirtualCluster, "local": LocalCluster, "ray": RayCluster}[cluster]
    return kind(workers=workers).open(0, workers)


def test_a_part_is_hosted_called_and_computes_where_it_stands(cluster):
    async def main(world):
        handle = await world.host(Part, "given", node="worker0")
        same = await world.host(Part, node="worker0")
        start = world.now()
        answers = [await handle.about(), await same.about(), await handle.compute(7), await handle.clock(0.05)]
        return answers, world.now() - start

    (about, same, squares, slept), elapsed = world(cluster).run(main)
    assert (tuple(about[1]), about[0]) == (("given",), "worker0") and same[0] == "worker0"
    assert squares == (49, 49) and 0.05 <= slept < 60 and elapsed >= slept


@pytest.mark.parametrize(
    "cluster", ["virtual", "local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.nightly])], indirect=True
)
def test_a_restored_world_has_the_clock_of_its_state(cluster):
    async def main(world):
        part = await world.host(Part, node="worker0")
        state = world.state()
        await world.restore(state | {name: state[name] + 1000 for name in ("clock", "now") if name in state})
        return world.now() - state["clock"], await part.clock(0.05)

    passed, slept = world(cluster).run(main)
    assert 1000 <= passed < 1500 and 0.04 < slept < 60


def test_calls_from_one_node_start_in_the_order_of_issue_also_small_ones_after_large_ones(cluster):
    async def main(world):
        target = await world.host(Part, node="worker1")
        callers = [await world.host(Caller, target, node="worker0") for _ in range(2)]
        await asyncio.gather(*(caller.burst(name, 20) for name, caller in enumerate(callers)))
        # From the outside too, and over two handles on one node.
        other = await world.host(Part, node="worker1")
        await asyncio.gather(*[handle.note(("main", k)) for k in range(5) for handle in (target, other)])
        return await target.notes(), await other.notes()

    noted, other = world(cluster, 2).run(main)
    assert len(noted) == 45 and other == [("main", k) for k in range(5)]
    for name, calls in ((0, 20), (1, 20), ("main", 5)):
        assert [call for who, call in noted if who == name] == list(range(calls))


def test_members_of_a_meeting_get_the_mean_and_all_arrays_and_share_no_memory(cluster):
    async def main(world):
        parts = [await world.host(Part, node=f"worker{rank}") for rank in range(2)]
        return await asyncio.gather(*(part.meet(rank, 1000) for rank, part in enumerate(parts)))

    for rank, (mean, gathered, changed, again, mine, alone) in enumerate(world(cluster, 2).run(main)):
        assert mean == again == 0.5 and changed == 0.5 + 1000 * (rank + 1)
        assert [list(array) for array in gathered] == [[0], [0, 1]]
        assert mine == rank and (alone == rank).all()


ERRORS = {
    "call": BadOption("size is -1; give 1 or more"),
    "compute": ZeroDivisionError("by zero"),
    "background": NotFinite("loss nan at batch 3"),
}


@pytest.mark.parametrize(
    "cluster, inside",
    [
        *((cluster, inside) for cluster in ("virtual", "local") for inside in ERRORS),
        *(pytest.param("ray", inside, marks=[pytest.mark.ray, pytest.mark.nightly]) for inside in ("call", "compute")),
        pytest.param("ray", "background", marks=pytest.mark.ray),
    ],
    indirect=["cluster"],
)
def test_an_error_stops_the_run_and_keeps_its_type_and_words(cluster, inside):
    error = ERRORS[inside]

    async def main(world):
        part = await world.host(Part, node="worker0")
        idle = asyncio.ensure_future(part.clock(30))
        caller = await world.host(Caller, part, node="worker0")
        await caller.fail(error, inside)
        await idle

    with pytest.raises(type(error)) as caught:
        world(cluster).run(main)
    assert str(caught.value) == str(error)


def test_no_thread_is_left_behind():
    before = threading.active_count()
    for cluster in ("virtual", "local"):
        test_an_error_stops_the_run_and_keeps_its_type_and_words(cluster, "background")
    assert threading.active_count() == before


class Puller:
    """Pulls, pushes and pulls again, as a worker of Async does."""

    def __init__(self, site, server):
        self.server = server.bind(site)

    async def run(self, size):
        first = await self.server.pull(0, 0, {})
        kept = first.dense.copy()
        gradient = np.ones(size, np.float32)
        pushing = asyncio.ensure_future(self.server.push(Gradient(0, first.token, 0, 1, gradient)))
        await asyncio.sleep(0)
        second = await self.server.pull(0, 1, {})
        await pushing
        return (first.dense == kept).all(), second.dense - kept, (gradient == 1).all()


def test_what_was_pulled_stays_as_it_was_while_the_server_goes_on(cluster):
    clicks = workloads.get("ctr-synthetic", hidden=(1024, 256), fields=2, vocabulary=10, evaluation_samples=10)
    fixed = {"workers": 1, "servers": 1, "seed": 0, "on_nan": "stop", "trace": True}
    plan = Plan(workload=clicks, protocol=get("async"), **fixed)
    size = FlatModel(clicks.model(plan.seed)).size

    async def main(world):
        server = await world.host(ParameterServer, plan, plan.protocol, 0, frozenset({"dense"}), node="worker0")
        puller = await world.host(Puller, server, node="worker0")
        return await puller.run(size)

    unchanged, moved, untouched = world(cluster).run(main)
    assert unchanged and untouched
    # The second pull was issued after the push, so it sees the update: one step of Adam with its learning rate.
    assert np.abs(moved + clicks.dense_optimizer.lr).max() < 1e-4
