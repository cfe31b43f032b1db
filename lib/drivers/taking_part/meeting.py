"""Where workers find out whom they mix with."""

from __future__ import annotations

import asyncio
from typing import Any

from lib.cluster.base import Handle, Site
from lib.cluster.board import Meeting
from lib.drivers.run.plan import Plan
from lib.errors import BadOption
from lib.protocols.replica_rule import neighbours


class Rendezvous:
    """It carries the rule's groups out among those who are still there."""

    def __init__(self, site: Site, plan: Plan):
        self._site, self._rule, self._workers, self._leg = (
            site,
            plan.protocol.dense,
            (workers := plan.workers),
            plan.leg,
        )
        self._active, self._away = frozenset(range(workers)), frozenset()
        self._new: set[int] = set()
        """Workers that are there again and wait for a group to take them in: nobody waits for them before."""
        self._waiting: dict[int, tuple[int, asyncio.Future]] = {}
        self._ended: dict[int, asyncio.Future] = {}
        """Workers that have no more data and wait until nobody has."""
        self._handles: dict[int, Handle] = {}
        self._lives = [0] * workers
        """Which life of its node each worker was in when it asked last; one that was lost asks from a later one."""
        self._met = 0
        self._following = 0
        """The round after the last one that a group formed for."""
        self._goes_on = 0
        """The same at the last cut."""
        self._paused: set[int] = set()
        """Workers that have not asked since the last cut, before which they had come to unlike rounds."""

    async def meet(self, rank: int, round: int, life: int = 0) -> Meeting | None:
        """Wait for the group of this round; from here on the worker is certain to come. None: it has left or paused meanwhile."""
        if rank not in (self._active | self._new) - self._away or life < self._lives[rank]:
            return None  # its question was on the way when it died, or its group broke when it waited for no more
        self._lives[rank] = life
        round = self._aligned(rank, round)
        future = asyncio.get_running_loop().create_future()
        if rank in self._waiting:
            self._waiting.pop(rank)[1].set_result(None)
        self._waiting[rank] = round, future
        self._form()
        return await future

    async def leave(self, rank: int, lost: bool = False, returns: bool = False) -> None:
        """Groups form without this worker; one that `returns` only pauses until the run has been cut."""
        if lost:
            self._handles.pop(rank, None)
            self._lives[rank] += 1
        if returns:
            self._away |= {rank}
        else:
            self._active -= {rank}
            self._new.discard(rank)
            self._paused.discard(rank)
        if rank in self._waiting:
            self._waiting.pop(rank)[1].set_result(None)
        self._form()
        self._release()

    async def join(self, rank: int) -> None:
        """A worker that was lost is there again; the first group of its that forms says which round it is."""
        self._new.add(rank)

    async def end(self, rank: int) -> None:
        """This worker has no more data: wait until nobody has."""
        self._ended[rank] = over = asyncio.get_running_loop().create_future()
        self._release()
        await over

    async def enroll(self, rank: int, worker: Handle) -> None:
        """Make a worker known to the others, and the others to it."""
        self._handles[rank] = worker = worker.seen_from(self._site)
        told = [worker.know(other, handle) for other, handle in self._handles.items() if other != rank]
        told += [handle.know(rank, worker) for other, handle in self._handles.items() if other != rank]
        await asyncio.gather(*told, return_exceptions=True)  # who is dead needs not know

    async def save(self) -> dict[str, Any]:
        self._away, self._paused, self._goes_on = frozenset(), set(self._active), self._following
        return {"active": self._active, "met": self._met, "following": self._following, "new": sorted(self._new)}

    async def load(self, state: dict[str, Any]) -> None:
        self._active, self._met, self._following = state["active"], state["met"], state["following"]
        self._new, self._paused, self._goes_on = set(state["new"]), set(self._active), self._following

    def _aligned(self, rank: int, round: int) -> int:
        """The round that a worker means: after a pause all go on with the same one, in step as at a barrier for rows, also who
        asks when some groups have gone on already."""
        if rank not in self._paused:
            return round
        self._paused.remove(rank)
        return self._goes_on

    def _form(self) -> None:
        rounds = {rank: round for rank, (round, _) in self._waiting.items() if rank not in self._new}
        for rank in sorted(self._new & self._waiting.keys()):
            self._take_in(rank, rounds)
        there = self._active - self._away
        formed = self._rule.form(rounds, there, self._workers)
        members = [rank for group in formed for rank in group]
        if len(set(members)) < len(members) or not rounds.keys() >= set(members):
            raise BadOption(f"{self._rule.name}: form must make groups of those who wait, each once; it gave {formed}")
        for group in formed:
            self._meet(tuple(sorted(group)), rounds[min(group)])

    def _meet(self, members: tuple[int, ...], round: int) -> None:
        self._met += 1
        self._following = max(self._following, round + 1)
        incarnations = tuple(self._lives[rank] for rank in members) if any(self._lives) else ()
        meeting = Meeting(f"{self._leg}.{self._met}", members, round, incarnations)
        for rank in members:
            self._waiting.pop(rank)[1].set_result(meeting)

    def _take_in(self, rank: int, rounds: dict[int, int]) -> None:
        """Let a new worker come to the round at which its group can go with it."""
        there = self._active - self._away
        for round in sorted(set(rounds.values())) if there else [0]:
            groups = self._rule.form({**rounds, rank: round}, there | {rank}, self._workers)
            if any(rank in group and (len(group) > 1 or not there) for group in groups):
                rounds[rank] = round
                self._admit(rank)
                return

    def _admit(self, rank: int) -> None:
        self._active |= {rank}
        self._new.discard(rank)

    def _release(self) -> None:
        """Where nobody has data left, nobody waits for the others'."""
        if self._active - self._away <= self._ended.keys():
            for waiting in self._ended.values():
                if not waiting.done():
                    waiting.set_result(None)
            self._ended.clear()


class Neighbourhoods(Rendezvous):
    """Every worker is told who of its neighbours sends it something, as soon as they have all begun the round or left."""

    def __init__(self, site: Site, plan: Plan):
        super().__init__(site, plan)
        self._since = [0] * plan.workers
        """The first round that each takes part in."""
        self._reached = [-1] * plan.workers
        """The last round that each is certain to come to."""

    async def first(self, rank: int) -> int:
        """The round that a worker begins with, or goes on with."""
        if rank in self._new:
            self._since[rank] = 1 + max(self._reached)  # nobody has reached it, so everybody will wait
            self._admit(rank)
        return max(self._since[rank], self._reached[rank] + 1)

    async def meet(self, rank: int, round: int, life: int = 0) -> Meeting | None:
        if rank in self._active and life >= self._lives[rank]:
            self._reached[rank] = round
        return await super().meet(rank, round, life)

    def _aligned(self, rank: int, round: int) -> int:
        """They were told, for they send before they ask."""
        return round

    async def leave(self, rank: int, lost: bool = False, returns: bool = False) -> None:
        if lost:
            self._reached[rank] = -1
        await super().leave(rank, lost, returns)
        if lost:  # what it has not sent will never come
            later = self._lives[rank]
            told = (self._handles[other].forget(rank, later) for other in self._active & self._handles.keys())
            await asyncio.gather(*told, return_exceptions=True)  # who is dead as well needs not know

    async def save(self) -> dict[str, Any]:
        self._since = [1 + max(self._reached)] * self._workers  # workers pause after unlike numbers of rounds
        return {**await super().save(), "since": self._since, "reached": self._reached}

    async def load(self, state: dict[str, Any]) -> None:
        await super().load(state)
        self._since, self._reached = list(state["since"]), list(state["reached"])

    def _form(self) -> None:
        there = self._active - self._away
        for rank, (round, future) in list(self._waiting.items()):
            row = neighbours(self._rule, round, rank, self._workers)
            near = sorted(other for other in row if self._since[other] <= round)
            if all(self._reached[other] >= round for other in near if other in there):
                members = tuple(other for other in near if self._reached[other] >= round)
                incarnations = tuple(self._lives[other] for other in members)
                del self._waiting[rank]
                future.set_result(Meeting(f"{self._leg}.{round}.{rank}", members, round, incarnations))
