"""Who dies when, and who cannot."""

from __future__ import annotations

import asyncio
from functools import partial

from lib import Failure, VirtualCluster
from lib.cluster.faults.nodes import FailureSchedule, NodeContext
from lib.cluster.virtual.loop import VirtualLoop


def test_who_is_being_started_cannot_die():
    """Processes take seconds to start: a run whose workers die every second would never see one that is there."""
    plan = [Failure(node="worker0", kind="dies", at=at, lasts=1.0) for at in (2, 5, 6, 9)]
    deaths = []

    async def main():
        clock = asyncio.get_running_loop().time
        plan_of = partial(VirtualCluster(failures=plan).failures_of, 0)
        schedule = FailureSchedule(plan_of, lambda node: deaths.append((node, clock())))
        schedule.start_clock(["worker0", "worker1"])
        await asyncio.sleep(2.5)
        assert await schedule.wait_until_up("worker0")
        schedule.pause("worker0")
        await asyncio.sleep(4.5)  # started at 7.5: what was to come at 5 and 6 is over
        schedule.start_clock(["worker0"])
        await asyncio.sleep(4)

    VirtualLoop().run_until_complete(main())
    assert deaths == [("worker0", 2), ("worker0", 9)]


def test_calls_of_a_dead_node_end_in_the_order_in_which_they_began():
    """Those who wait for them go on in that order, and in none of chance."""
    ended = []

    async def call(number):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    async def main():
        node = NodeContext("embedding0")
        waiting = [asyncio.ensure_future(node.call(call(number))) for number in range(50)]
        await asyncio.sleep(0)
        node.end()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(main())
    assert ended == list(range(50))
