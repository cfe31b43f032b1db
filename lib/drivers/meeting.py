"""Where replicas meet: the parts that bring workers together, or stand between them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import numpy as np

from lib.cluster.base import Meeting, Site
from lib.cluster.spec import Work
from lib.drivers.plan import Plan
from lib.drivers.record import Record
from lib.protocols.replica_rule import ReplicaRule


class Rendezvous:
    """Where workers find out whom they mix with: it carries the rule's groups out among those who are still there."""

    def __init__(self, site: Site, plan: Plan, rule: ReplicaRule):
        self._rule, self._workers, self._leg = rule, (workers := plan.workers), plan.leg
        self._active, self._away = frozenset(range(workers)), frozenset()
        self._new: set[int] = set()
        """Workers that are there again and wait for a group to take them in: nobody waits for them before."""
        self._waiting: dict[int, tuple[int, asyncio.Future]] = {}
        self._losses: Counter[int] = Counter()
        self._met = 0

    async def meet(self, rank: int, round: int) -> Meeting | None:
        """Wait for the group of this round; from here on the worker is certain to come. None: it has left meanwhile."""
        if rank not in self._active | self._new:  # its question was on the way when it died
            return None
        future = asyncio.get_running_loop().create_future()
        if rank in self._waiting:
            self._waiting.pop(rank)[1].set_result(None)
        self._waiting[rank] = round, future
        self._form()
        return await future

    async def leave(self, rank: int, lost: bool = False, returns: bool = False) -> None:
        """Groups form without this worker; one that `returns` only pauses until the run has been cut."""
        self._losses[rank] += lost
        if returns:
            self._away |= {rank}
        else:
            self._active -= {rank}
            self._new.discard(rank)
        if rank in self._waiting:
            self._waiting.pop(rank)[1].set_result(None)
        self._form()

    async def join(self, rank: int) -> None:
        """A worker that was lost is there again; the first group of its that forms says which round it is."""
        self._new.add(rank)

    async def save(self) -> dict[str, Any]:
        self._away = frozenset()
        return {"active": self._active, "met": self._met, "new": sorted(self._new), "losses": dict(self._losses)}

    async def load(self, state: dict[str, Any]) -> None:
        self._active, self._met, self._new = state["active"], state["met"], set(state["new"])
        self._losses = Counter(state["losses"])

    def _form(self) -> None:
        rounds = {rank: round for rank, (round, _) in self._waiting.items() if rank not in self._new}
        for rank in sorted(self._new & self._waiting.keys()):
            self._take_in(rank, rounds)
        for group in self._rule.form(rounds, self._active - self._away, self._workers):
            self._met += 1
            members = tuple(sorted(group))
            incarnations = tuple(self._losses[rank] for rank in members) if self._losses else ()
            meeting = Meeting(f"{self._leg}.{self._met}", members, rounds[members[0]], incarnations)
            for rank in members:
                self._waiting.pop(rank)[1].set_result(meeting)

    def _take_in(self, rank: int, rounds: dict[int, int]) -> None:
        """Let a new worker come to the round at which its group can go with it."""
        there = self._active - self._away
        for round in sorted(set(rounds.values())) if there else [0]:
            groups = self._rule.form({**rounds, rank: round}, there | {rank}, self._workers)
            if any(rank in group and (len(group) > 1 or not there) for group in groups):
                rounds[rank] = round
                self._active |= {rank}
                self._new.discard(rank)
                return


class SyncServer:
    """The central copy of rules that have one."""

    def __init__(self, site: Site, plan: Plan, rule: ReplicaRule):
        self._site, self._rule, self._copy = site, rule, plan.start(site)
        self.record = Record(site.node, [] if plan.trace else None)

    async def inherit(self, values: np.ndarray) -> None:
        self._copy = values.copy()

    async def exchange(self, theirs: np.ndarray) -> np.ndarray:
        """The copy after it took in a worker's."""
        return await self._site.compute(Work(bytes=3 * theirs.nbytes), self._absorb, theirs)

    async def save(self) -> dict[str, Any]:
        return {"copy": self._copy, "record": self.record}

    async def load(self, state: dict[str, Any]) -> None:
        self._copy = state["copy"]
        self.record.become(state["record"])

    async def report(self) -> Record:
        self.record.final = {"centre": self._copy}
        return self.record

    def _absorb(self, theirs: np.ndarray) -> np.ndarray:
        self._copy = self._rule.absorb(self._copy, theirs)
        return self._copy.copy()
