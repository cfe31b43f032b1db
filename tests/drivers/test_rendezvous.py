"""Who meets whom, asked by hand."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from lib.cluster.base import Handle
from lib.drivers.exchangers import NeighbourExchanger
from lib.drivers.membership import Rendezvous
from lib.drivers.record import PartLog
from lib.errors import BadOption, NodeLost
from lib.protocols.decentralised import DPSGD
from tests.drivers.composing import rule


def plan(protocol, workers):
    return SimpleNamespace(protocol=SimpleNamespace(dense=protocol), workers=workers, stage=0)


async def asked(meeting, *questions):
    """What is answered so far to workers that ask for rounds."""
    tasks = [asyncio.ensure_future(meeting.join_group(*question)) for question in questions]
    for _ in range(5):
        await asyncio.sleep(0)
    return [task.result().members if task.done() else None for task in tasks]


class Peers(Handle):
    """A worker's exchanger, called as the others call its worker."""

    def __init__(self, exchanger):
        self.exchanger, self.dead = exchanger, False

    def bind(self, site):
        return self

    async def _call(self, method, *args):
        if self.dead:
            raise NodeLost(f"worker{self.exchanger.rank}")
        if method == "round_for_peer":
            return self.exchanger.round_for_peer(*args)
        return await self.exchanger.serve_message(*args)


class Clock:
    """A site whose computations take no time."""

    generation = 0

    def now(self):
        return 0.0

    async def compute(self, work, function, *args):
        return function(*args)


def ring(workers):
    """Workers of D-PSGD whose messages are their ranks; each merge is noted."""
    peers, merged = [], []
    for rank in range(workers):

        async def merge(mix, rank=rank):
            merged.append((rank, mix.round, round(float(mix.theirs[0]), 3)))

        replica = SimpleNamespace(message=lambda round, rank=rank: np.full(1, rank, np.float64), merge=merge)
        exchanger = NeighbourExchanger(Clock(), plan(DPSGD(), workers), rank, replica, PartLog("", None), None, (), [])
        peers.append(Peers(exchanger))
    for one in peers:
        one.exchanger.others = {other.exchanger.rank: other for other in peers if one is not other}
    return peers, merged


async def started(workers):
    peers, merged = ring(workers)
    for each in peers:
        await each.exchanger.start(10, False)
    return peers, merged


async def mixes(*peers):
    """Let these workers begin a mix; those that are done."""
    tasks = [asyncio.ensure_future(each.exchanger.mix(0)) for each in peers]
    for _ in range(20):
        await asyncio.sleep(0)
    return [task.done() for task in tasks]


async def test_a_neighbour_is_waited_for_until_it_begins_the_round_or_stops():
    (zero, one, two, three, four), merged = await started(5)
    assert await mixes(four, zero, one) == [False, True, False]
    assert merged == [(0, 0, round((4 + 0 + 1) / 3, 3))]
    two.exchanger.stop(10)  # at the end of its data, before the round
    assert await mixes(three) == [True]
    assert {(1, 0, round((0 + 1 + 1) / 3, 3)), (3, 0, round((3 + 3 + 4) / 3, 3))} <= {*merged}
    assert len(merged) == 4


async def test_a_lost_neighbour_is_left_out_and_joins_at_a_round_that_no_other_has_begun():
    (zero, one, two), merged = await started(3)
    one.dead = True
    assert await mixes(zero, two) == [True, True]
    fresh, _ = ring(3)
    one.exchanger, one.dead = fresh[1].exchanger, False
    one.exchanger.others = {0: zero, 2: two}
    waiting = asyncio.ensure_future(mixes(zero))  # it is there, and has not started yet
    await asyncio.sleep(0)
    await one.exchanger.start(10, True)
    assert one.exchanger.round == 2 and await waiting == [False]
    assert await mixes(two) == [True] and (0, 1) in {each[:2] for each in merged}
    assert await mixes(zero, two) == [False, False]
    assert await mixes(one) == [True] and {(0, 2), (2, 2)} <= {each[:2] for each in merged}


async def test_after_a_pause_neighbours_go_on_at_one_round():
    peers, _ = await started(3)
    await mixes(*peers)
    for each in peers[1:]:
        each.exchanger.stop(10)
    await mixes(peers[0])  # fed from a queue, it makes a round more
    peers[0].exchanger.stop(10)
    again, _ = ring(3)
    for old, new in zip(peers, again, strict=True):
        new.exchanger.restore(old.exchanger.dump())
    for each in (peers, again):
        await each[0].exchanger.start(20, False)
        await mixes(each[0])
        for other in each[1:]:
            await other.exchanger.start(20, False)
        assert [other.exchanger.round for other in each] == [3, 2, 2]
        assert await mixes(*each[1:]) == [True, True]


async def test_a_question_that_comes_after_the_death_of_who_asked_is_not_taken_for_its_next_lifes():
    """A message may be late: then the others would wait for a worker that never comes."""
    meeting = Rendezvous(None, plan(rule(), 3))
    await meeting.note_change(0, "dies")
    await meeting.note_change(0, "comes back")
    late = asyncio.ensure_future(meeting.join_group(0, 5, 0))
    await asked(meeting)
    assert late.done() and late.result() is None
    assert await asked(meeting, (1, 5), (2, 5)) == [(1, 2), (1, 2)]
    assert await asked(meeting, (0, 5, 1), (1, 6), (2, 6)) == [(0, 1, 2)] * 3


async def test_who_has_no_data_and_dies_is_answered_and_its_next_life_ends_of_itself():
    meeting = Rendezvous(None, plan(rule(), 2))
    first, late = (asyncio.ensure_future(meeting.wait_for_end(0, 0)) for _ in range(2))
    await asked(meeting)
    assert first.done() and not late.done()  # asked twice, it waits once
    await meeting.note_change(0, "dies")
    await asked(meeting)
    assert late.done()
    await meeting.note_change(0, "comes back")
    # The first was on its way when it died.
    before, again = (asyncio.ensure_future(meeting.wait_for_end(0, generation)) for generation in (0, 1))
    await asked(meeting)
    assert before.done() and not again.done()
    before = asyncio.ensure_future(meeting.wait_for_end(0, 0))
    await asked(meeting)
    assert before.done() and not again.done()
    await meeting.note_change(1, "leaves")
    await asked(meeting)
    assert again.done()


async def test_who_asked_and_is_no_more_is_not_answered():
    """On threads a question ends with the task that asked it, and what it waits for with it."""
    meeting = Rendezvous(None, plan(rule(), 2))
    gone = asyncio.ensure_future(meeting.join_group(0, 0))
    await asked(meeting)
    gone.cancel()
    await asked(meeting)
    await meeting.note_change(0, "leaves")
    assert await asked(meeting, (1, 0)) != [None]


@pytest.mark.parametrize("groups", [[(0, 1), (1,)], [(0, 0)], [(0, 2)]])
async def test_groups_have_each_of_those_who_wait_once(groups):
    twice = SimpleNamespace(
        name="twice", form_groups=lambda rounds, awaited, workers: groups if len(rounds) == 2 else []
    )
    meeting = Rendezvous(None, plan(twice, 3))
    with pytest.raises(BadOption, match="twice: form_groups must make groups of those who wait, each once; it gave"):
        await asked(meeting, (0, 0), (1, 0))


async def test_a_worker_that_was_missing_at_the_start_waits_at_its_end_for_the_others():
    """Its generation is later than any that the rendezvous has heard of."""
    meeting = Rendezvous(None, plan(rule(), 2))
    await meeting.note_change(0, "is missing")
    await meeting.note_change(0, "comes back")
    ended = asyncio.ensure_future(meeting.wait_for_end(0, 1))
    await asked(meeting)
    assert not ended.done()
    await meeting.note_change(1, "leaves")
    await asked(meeting)
    assert ended.done()
