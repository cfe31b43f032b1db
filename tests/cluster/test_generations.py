"""The deaths of nodes: when they come, how the calls of a dead node end; and the thread of a run."""

import asyncio
import threading
import time
from functools import partial

import pytest

from lib import Failure, LocalCluster, VirtualCluster
from lib.cluster.base import run_in_thread
from lib.cluster.failures import FailureSchedule
from lib.cluster.in_process import NodeContext
from lib.cluster.virtual import VirtualLoop
from lib.errors import NodeLost


class Answers:
    def __init__(self, site):
        self.site = site

    async def seven(self):
        return 7


def test_a_dead_caller_gets_no_answer():
    """It got None and continued with that until it was cancelled: an error in a run that may lose workers."""
    cluster = LocalCluster(workers=1, failures=[Failure(node="worker0", kind="dies", at=100.0, lasts=1.0)])

    async def main(world):
        answers = (await world.host(Answers, node="server0")).bind(world.site("worker0"))
        assert await answers.seven() == 7
        call = asyncio.ensure_future(answers.seven())
        world.site("worker0").end()
        await asyncio.wait([call])
        return call.cancelled()

    assert cluster.open(0, 1).run(main)


async def test_a_cancelled_caller_of_a_dead_node_ends_as_cancelled():
    """A supervisor that was cancelled continued with a worker that had died at that moment, and waited for ever."""
    node = NodeContext("worker0")
    waits, ends = (asyncio.ensure_future(node.call(asyncio.Event().wait())) for _ in range(2))
    await asyncio.sleep(0)
    ends.cancel()
    node.end_and_take_records()
    await asyncio.wait([waits, ends])
    assert ends.cancelled() and type(waits.exception()) is NodeLost


@pytest.mark.parametrize("kind", [LocalCluster, VirtualCluster])
def test_a_call_of_a_dead_node_fails_where_it_is_awaited(kind):
    """The call itself raised: then a worker that came back while another was dead was announced to no other."""
    cluster = kind(workers=2, failures=[Failure(node="worker0", kind="dies", at=100.0, lasts=1.0)])

    async def main(world):
        parts = [await world.host(Answers, node=f"worker{rank}") for rank in range(2)]
        dead, well = (part.bind(world.site("server0")) for part in parts)
        world.site("worker0").end()
        return await asyncio.gather(dead.seven(), well.seven(), return_exceptions=True)

    lost, seven = cluster.open(0, 2).run(main)
    assert isinstance(lost, NodeLost) and seven == 7


def test_a_node_that_is_being_started_cannot_die():
    """Processes take seconds to start: a run whose workers die every second would never see one that is there."""
    plan = [Failure(node="worker0", kind="dies", at=at, lasts=1.0) for at in (2, 5, 6, 9)]
    deaths = []

    async def main():
        clock = asyncio.get_running_loop().time
        plan_of = partial(VirtualCluster(failures=plan).failures_of, 0)
        schedule = FailureSchedule(plan_of, lambda node: deaths.append((node, clock())))
        schedule.arm_failures(["worker0", "worker1"])
        await asyncio.sleep(2.5)
        assert await schedule.wait_until_up("worker0")
        schedule.pause("worker0")
        await asyncio.sleep(4.5)  # started at 7.5: what was to come at 5 and 6 is over
        schedule.arm_failures(["worker0"])
        await asyncio.sleep(4)

    VirtualLoop().run_until_complete(main())
    assert deaths == [("worker0", 2), ("worker0", 9)]


async def test_calls_of_a_dead_node_end_in_the_order_in_which_they_began():
    """Their callers continue in that order, and not at random."""
    ended = []

    async def call(number):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    node = NodeContext("embedding0")
    waiting = [asyncio.ensure_future(node.call(call(number))) for number in range(50)]
    await asyncio.sleep(0)
    node.end_and_take_records()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert ended == list(range(50))


def test_the_thread_has_freed_its_memory_when_its_result_is_returned():
    """What a thread keeps to itself goes when it ends, after its work: a process that ends meanwhile is aborted by torch."""
    own, gone = threading.local(), []

    class Kept:
        def __del__(self):
            time.sleep(0.2)
            gone.append(self)

    def target():
        own.kept = Kept()
        return "done"

    assert run_in_thread(target, interrupt=lambda: None) == "done" and len(gone) == 1
