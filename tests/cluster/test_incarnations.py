"""The end of a node's life on a wall clock: who is dead hears nothing, and who is to end does."""

from __future__ import annotations

import asyncio

import pytest

from lib import Failure, LocalCluster, VirtualCluster
from lib.cluster.faults.nodes import NodeContext
from lib.errors import NodeLost


class Answers:
    def __init__(self, site):
        self.site = site

    async def seven(self):
        return 7


def test_who_is_dead_and_has_not_ended_yet_gets_no_answer():
    """It got None, with which it went on until its end reached it: an error out of a run that may lose workers."""
    cluster = LocalCluster(workers=1, failures=[Failure(node="worker0", kind="dies", at=100.0, lasts=1.0)])

    async def main(world):
        answers = (await world.host(Answers, node="server0")).bind(world.site("worker0"))
        assert await answers.seven() == 7
        call = asyncio.ensure_future(answers.seven())
        world.site("worker0").end()
        await asyncio.wait([call])
        return call.cancelled()

    assert cluster.open(0, 1).run(main)


def test_who_is_to_end_does_so_though_whom_it_waits_for_is_dead_as_well():
    """A keeper that was to end went on with a worker that had died at that moment, and waited for ever."""

    async def never():
        await asyncio.Event().wait()

    async def main():
        node = NodeContext("worker0")
        waits, ends = (asyncio.ensure_future(node.call(never())) for _ in range(2))
        await asyncio.sleep(0)
        ends.cancel()
        node.end()
        await asyncio.wait([waits, ends])
        return ends.cancelled(), type(waits.exception())

    assert asyncio.run(main()) == (True, NodeLost)


@pytest.mark.parametrize("kind", [LocalCluster, VirtualCluster])
def test_who_calls_a_dead_node_among_others_hears_of_it_where_it_waits(kind):
    """The call itself raised: a worker that came back while another was dead was made known to nobody."""
    cluster = kind(workers=2, failures=[Failure(node="worker0", kind="dies", at=100.0, lasts=1.0)])

    async def main(world):
        parts = [await world.host(Answers, node=f"worker{rank}") for rank in range(2)]
        dead, well = (part.bind(world.site("server0")) for part in parts)
        world.site("worker0").end()
        return await asyncio.gather(dead.seven(), well.seven(), return_exceptions=True)

    lost, seven = cluster.open(0, 2).run(main)
    assert isinstance(lost, NodeLost) and seven == 7
