"""Where workers find out whom they mix with."""

from __future__ import annotations

import asyncio
from typing import Any

from lib.cluster.base import Meeting, Site
from lib.drivers.members import Members
from lib.drivers.plan import Plan
from lib.errors import BadOption
from lib.protocols.replica_rule import mixes_now
from lib.store.checkpoint import Part


class Rendezvous(Part):
    """It carries the rule's groups out among those who are still there."""

    in_checkpoint = ("_members", "_met", "_following", "_resumed")

    def __init__(self, site: Site, plan: Plan):
        self._rule, self._stage = plan.protocol.dense, plan.stage
        self._workers = plan.workers
        self._members = Members.of(plan.workers)
        self._waiting: dict[int, tuple[int, asyncio.Future]] = {}
        self._ended: dict[int, asyncio.Future] = {}
        """Workers that have no more data and wait until nobody has."""
        self._moved: dict[int, float | None] = {}
        self._met = 0
        self._following = 0
        """The round after the last one that a group formed for."""
        self._resumed = 0
        """The round with which all workers go on after a pause."""

    async def meet(self, rank: int, round: int, generation: int = 0, moved: float | None = None) -> Meeting | None:
        """Wait for the group of this round; from here on the worker is certain to come. None: it has left or paused meanwhile, or
        the group does not mix, as its members have not `moved` apart."""
        if rank not in self._members.awaited | self._members.joining or generation < self._members.generations[rank]:
            return None  # its question was on the way when it died, or its group broke when it waited for no more
        future = asyncio.get_running_loop().create_future()
        self._answer(rank, None)
        self._waiting[rank] = self._round(rank, round), future
        self._moved[rank] = moved
        self._members = self._members.heard(rank, generation)
        self._form()
        return await future

    async def tell(self, rank: int, change: str) -> None:
        """Something has become of a worker; groups form without who has left, or pauses until the run has been cut."""
        self._members = self._members.after(rank, change)
        self._answer(rank, None)
        self._let_end(rank)
        self._form()
        self._release()

    async def end(self, rank: int, generation: int) -> None:
        """This worker has no more data: wait until nobody has."""
        if generation < self._members.generations[rank]:
            return  # as in `meet`
        self._let_end(rank)
        self._ended[rank] = over = asyncio.get_running_loop().create_future()
        self._release()
        await over

    async def save(self) -> dict[str, Any]:
        self._members, self._resumed = self._members.after_pause(), self._following
        return await super().save()

    async def load(self, state: dict[str, Any]) -> None:
        await super().load(state)
        self._members = self._members.in_another_process()

    def _round(self, rank: int, round: int) -> int:
        """The round that a worker means: after a cut all go on with the same one, in step as at a barrier for rows, also who asks
        when some groups have gone on already."""
        if self._members.standing[rank] != "resuming":
            return round
        self._members = self._members.after(rank, "comes in")
        return self._resumed

    def _answer(self, rank: int, met: Meeting | None) -> None:
        if rank in self._waiting and not (waiting := self._waiting.pop(rank)[1]).done():  # who asked may be no more
            waiting.set_result(met)

    def _form(self) -> None:
        joining = self._members.joining
        rounds = {rank: round for rank, (round, _) in self._waiting.items() if rank not in joining}
        for rank in sorted(joining & self._waiting.keys()):
            self._take_in(rank, rounds)
        formed = self._rule.form_groups(rounds, self._members.awaited, self._workers)
        grouped = [rank for group in formed for rank in group]
        if len(set(grouped)) < len(grouped) or not rounds.keys() >= set(grouped):
            raise BadOption(
                f"{self._rule.name}: form_groups must make groups of those who wait, each once; it gave {formed}"
            )
        for group in formed:
            self._meet(tuple(sorted(group)), rounds[min(group)])

    def _meet(self, members: tuple[int, ...], round: int) -> None:
        self._met += 1
        self._following = max(self._following, round + 1)
        generations = (
            tuple(self._members.generations[rank] for rank in members) if any(self._members.generations) else ()
        )
        meeting = Meeting(f"{self._stage}.{self._met}", members, round, generations)
        mixes = mixes_now(self._rule, {rank: self._moved[rank] for rank in members})
        for rank in members:
            self._answer(rank, meeting if mixes else None)

    def _take_in(self, rank: int, rounds: dict[int, int]) -> None:
        """Let a new worker come to the round at which its group can go with it."""
        there = self._members.awaited
        for round in sorted(set(rounds.values())) if there else [0]:
            groups = self._rule.form_groups({**rounds, rank: round}, there | {rank}, self._workers)
            if any(rank in group and (len(group) > 1 or not there) for group in groups):
                rounds[rank] = round
                self._members = self._members.after(rank, "comes in")
                return

    def _release(self) -> None:
        """Where nobody has data left, nobody waits for the others'."""
        if self._members.awaited <= self._ended.keys():
            for rank in list(self._ended):
                self._let_end(rank)

    def _let_end(self, rank: int) -> None:
        """Also a dead worker's question is answered: nobody would cancel what waits for it here."""
        waiting = self._ended.pop(rank, None)
        if waiting and not waiting.done():
            waiting.set_result(None)
