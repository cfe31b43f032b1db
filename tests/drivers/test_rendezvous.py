"""Who meets whom, asked by hand."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
from lib.drivers.replicas.mix_in_step import Beside

from lib.drivers.membership.rendezvous import Neighbourhoods, Rendezvous
from lib.protocols.decentralised import DPSGD
from tests.drivers.composing import rule


def plan(protocol, workers):
    return SimpleNamespace(protocol=SimpleNamespace(dense=protocol), workers=workers, leg=0)


async def asked(meeting, *questions):
    """What is answered so far to workers that ask for rounds."""
    tasks = [asyncio.ensure_future(meeting.meet(*question)) for question in questions]
    for _ in range(5):
        await asyncio.sleep(0)
    return [task.result().members if task.done() else None for task in tasks]


def test_neighbours_go_when_theirs_have_come_as_far():
    async def main():
        ring = Neighbourhoods(None, plan(DPSGD(), 5))
        assert await asked(ring, (4, 0), (0, 0), (1, 0)) == [None, (0, 1, 4), None]
        await ring.tell(2, "leaves")  # at the end of its data, before the round
        assert await asked(ring, (3, 0)) == [(3, 4)]

    asyncio.run(main())


def test_who_was_lost_is_no_neighbour_and_comes_back_at_a_round_that_nobody_has_begun():
    async def main():
        ring = Neighbourhoods(None, plan(DPSGD(), 5))
        await asked(ring, (1, 0))
        await ring.tell(1, "dies")
        assert await asked(ring, (0, 0), (4, 0), (3, 0)) == [(0, 4), (0, 3, 4), None]
        await ring.tell(1, "comes back")
        assert await ring.first(1) == 1
        assert await asked(ring, (1, 1, 1), (0, 1), (4, 1)) == [None, (0, 1, 4), None]

    asyncio.run(main())


def test_a_question_that_comes_after_the_death_of_who_asked_is_not_taken_for_its_next_lifes():
    """A message may be late: then the others would wait for a worker that never comes."""

    async def main():
        meeting = Rendezvous(None, plan(rule(), 3))
        await meeting.tell(0, "dies")
        await meeting.tell(0, "comes back")
        late = asyncio.ensure_future(meeting.meet(0, 5, 0))
        await asked(meeting)
        assert late.done() and late.result() is None
        assert await asked(meeting, (1, 5), (2, 5)) == [(1, 2), (1, 2)]
        assert await asked(meeting, (0, 5, 1), (1, 6), (2, 6)) == [(0, 1, 2)] * 3

    asyncio.run(main())


def test_who_has_no_data_and_dies_is_answered_and_its_next_life_ends_of_itself():
    async def main():
        meeting = Rendezvous(None, plan(rule(), 2))
        first, late = (asyncio.ensure_future(meeting.end(0, 0)) for _ in range(2))
        await asked(meeting)
        assert first.done() and not late.done()  # asked twice, it waits once
        await meeting.tell(0, "dies")
        await asked(meeting)
        assert late.done()
        await meeting.tell(0, "comes back")
        # The first was on its way when it died.
        before, again = (asyncio.ensure_future(meeting.end(0, generation)) for generation in (0, 1))
        await asked(meeting)
        assert before.done() and not again.done()
        before = asyncio.ensure_future(meeting.end(0, 0))
        await asked(meeting)
        assert before.done() and not again.done()
        await meeting.tell(1, "leaves")
        await asked(meeting)
        assert again.done()

    asyncio.run(main())


def test_after_a_pause_neighbours_go_on_at_one_round():
    async def main():
        ring = Neighbourhoods(None, plan(DPSGD(), 3))
        await asked(ring, (0, 0), (1, 0), (2, 0), (0, 1))
        state = await ring.save()
        for there in (ring, Neighbourhoods(None, plan(DPSGD(), 3))):
            await there.load(state)
            assert [await there.first(rank) for rank in range(3)] == [2, 2, 2]

    asyncio.run(main())


def test_the_gradient_beside_a_mix_is_of_what_was_there_before():
    async def main():
        values = np.zeros(2)
        replica = SimpleNamespace(values=values, pull=values.copy, rate=lambda: 1.0)

        async def mix(*args):
            values[:] = 7

        worker = SimpleNamespace(replica=replica, mix=mix, way=SimpleNamespace(ahead=lambda: None))
        beside = Beside(worker, SimpleNamespace(index=0), None)
        await beside.before()
        await asyncio.sleep(0)
        assert values.tolist() == [7, 7] and beside.values().tolist() == [0, 0]
        await beside.computed()

    asyncio.run(main())


def test_who_asked_and_is_no_more_is_not_answered():
    """On threads a question ends with the task that asked it, and what it waits for with it."""

    async def main():
        meeting = Rendezvous(None, plan(rule(), 2))
        gone = asyncio.ensure_future(meeting.meet(0, 0))
        await asked(meeting)
        gone.cancel()
        await asked(meeting)
        await meeting.tell(0, "leaves")
        assert await asked(meeting, (1, 0)) != [None]

    asyncio.run(main())
