"""Which workers take part in a run, and where they find out which others they mix with.

Membership is one value, of which every part that waits for workers holds a copy.

A worker has one standing at a time, and the table below lists all changes of it. The part that holds a copy decides what follows
from a change: a server asks its rule, a rendezvous forms its groups, a queue informs its controller. Every such part has
`note_change(rank, change)`. A worker reports, after all that it has sent, that it pauses or has no more data; the roster reports
that it is dead, or up again.

Copies differ by the messages on their way. A worker that joins again is waited for by a server from its first question on, and by
a rendezvous once a group has taken it in.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from lib.cluster.base import Meeting, Site
from lib.drivers.plan import Plan
from lib.errors import BadOption
from lib.protocols.replica_rule import mix_takes_place
from lib.protocols.server_rule import with_value
from lib.store.checkpoint import Part

HERE = frozenset({"in", "resuming"})
PAUSED = frozenset({"paused", "left out"})
CHANGES: dict[str, tuple[frozenset[str], str]] = {
    "dies": (HERE | PAUSED | {"joining", "gone"}, "away"),
    "is missing": (HERE | {"joining"}, "away"),
    "comes back": (frozenset({"away"}), "joining"),
    "comes in": (frozenset({"joining", "resuming"}), "in"),
    "pauses": (HERE, "paused"),
    "goes unawaited": (frozenset({"paused"}), "left out"),
    "goes on": (HERE | PAUSED, "resuming"),
    "leaves": (HERE | PAUSED | {"joining"}, "gone"),
}
"""Change -> from which standings, to which one; from any other standing it changes nothing, as a message that came too late.

- dies: it is lost, and no part waits for it;
- is missing: its node was down when the run began or resumed;
- comes back: its node is up again, and the worker has asked for nothing yet;
- comes in: it asks, or is taken in, and others wait for it from here on;
- pauses: it takes no batch until the checkpoint;
- goes unawaited: no part waits for it until then;
- goes on: the checkpoint is written;
- leaves: it has no more data."""


def _ranks_in_standing(*standings: str) -> cached_property:
    """The ranks of the workers in one of these standings."""
    return cached_property(lambda members: frozenset(r for r, each in enumerate(members.standing) if each in standings))


@dataclass(frozen=True)
class Members:
    """Guaranteed: each worker has exactly one standing, so an awaited worker is neither dead nor away."""

    standing: tuple[str, ...]
    generations: tuple[int, ...]
    """The generation of its node in which each worker last asked; a lost worker asks again from a later one."""

    @classmethod
    def of(cls, workers: int) -> Members:
        return cls(("in",) * workers, (0,) * workers)

    def after(self, rank: int, change: str) -> Members:
        before, then = CHANGES[change]
        if self.standing[rank] not in before:
            return self
        changed = replace(self, standing=with_value(self.standing, rank, then))
        return changed.with_generation(rank, self.generations[rank] + 1) if change == "dies" else changed

    def with_all_resuming(self) -> Members:
        """All that take part go on together."""
        before, then = CHANGES["goes on"]
        return replace(self, standing=tuple(then if each in before else each for each in self.standing))

    def with_generation(self, rank: int, generation: int) -> Members:
        """After a question from that generation of the worker's node."""
        if self.generations[rank] == generation:
            return self
        return replace(self, generations=with_value(self.generations, rank, generation))

    def with_zero_generations(self) -> Members:
        """A new process counts the generations of its nodes anew."""
        return replace(self, generations=(0,) * len(self.generations))

    active = _ranks_in_standing(*HERE, *PAUSED)
    """Workers that take part, now or after a pause."""
    awaited = _ranks_in_standing(*HERE)
    """Workers that others may wait for."""
    paused = _ranks_in_standing("paused")
    """Workers that have paused and are still waited for."""
    left_out = _ranks_in_standing("left out")
    """Workers that have paused and are not waited for."""
    joining = _ranks_in_standing("joining")
    """Workers that are up again and not waited for yet."""


class Rendezvous(Part):
    """The exchange of the rule's groups among the workers that are still active."""

    in_checkpoint = ("_members", "_met", "_following", "_resumed")

    def __init__(self, site: Site, plan: Plan):
        self._rule, self._stage = plan.protocol.dense, plan.stage
        self._workers = plan.workers
        self._members = Members.of(plan.workers)
        self._waiting: dict[int, tuple[int, asyncio.Future]] = {}
        self._ended: dict[int, asyncio.Future] = {}
        """Workers that have no more data and wait until all others have none either."""
        self._distances: dict[int, float | None] = {}
        self._met = 0
        self._following = 0
        """The round after the last one that a group formed for."""
        self._resumed = 0
        """The round with which all workers go on after a pause."""

    async def join_group(
        self, rank: int, round: int, generation: int = 0, distance_since_mix: float | None = None
    ) -> Meeting | None:
        """Wait for the group of this round; from here on the worker is certain to come. None: it has left or paused meanwhile, or
        the group does not mix, as its members have not moved apart."""
        if rank not in self._members.awaited | self._members.joining or generation < self._members.generations[rank]:
            return None  # its question was on the way when it died, or its group broke when it waited for no more
        future = asyncio.get_running_loop().create_future()
        self._answer(rank, None)
        self._waiting[rank] = self._resume_round(rank, round), future
        self._distances[rank] = distance_since_mix
        self._members = self._members.with_generation(rank, generation)
        self._form_groups()
        return await future

    async def note_change(self, rank: int, change: str) -> None:
        """A worker's standing has changed; groups form without a worker that left or that pauses until the run has been cut."""
        self._members = self._members.after(rank, change)
        self._answer(rank, None)
        self._answer_end(rank)
        self._form_groups()
        self._release_if_all_ended()

    async def wait_for_end(self, rank: int, generation: int) -> None:
        """This worker has no more data: wait until all others have none either."""
        if generation < self._members.generations[rank]:
            return  # as in `join_group`
        self._answer_end(rank)
        self._ended[rank] = over = asyncio.get_running_loop().create_future()
        self._release_if_all_ended()
        await over

    async def save(self) -> dict[str, Any]:
        self._members, self._resumed = self._members.with_all_resuming(), self._following
        return await super().save()

    async def load(self, state: dict[str, Any]) -> None:
        await super().load(state)
        self._members = self._members.with_zero_generations()

    def _resume_round(self, rank: int, round: int) -> int:
        """The round that a worker means: after a cut all go on with the same one, in step as at a barrier for rows, even a worker
        that asks when some groups have gone on already."""
        if self._members.standing[rank] != "resuming":
            return round
        self._members = self._members.after(rank, "comes in")
        return self._resumed

    def _answer(self, rank: int, met: Meeting | None) -> None:
        if rank in self._waiting and not (waiting := self._waiting.pop(rank)[1]).done():  # who asked may be no more
            waiting.set_result(met)

    def _form_groups(self) -> None:
        joining = self._members.joining
        rounds = {rank: round for rank, (round, _) in self._waiting.items() if rank not in joining}
        for rank in sorted(joining & self._waiting.keys()):
            self._take_in(rank, rounds)
        formed = self._rule.form_groups(rounds, self._members.awaited, self._workers)
        grouped = [rank for group in formed for rank in group]
        if len(set(grouped)) < len(grouped) or not rounds.keys() >= set(grouped):
            right = "must make groups of those who wait, each once"
            raise BadOption(f"{self._rule.name}: form_groups {right}; it gave {formed}")
        for group in formed:
            self._answer_group(tuple(sorted(group)), rounds[min(group)])

    def _answer_group(self, members: tuple[int, ...], round: int) -> None:
        self._met += 1
        self._following = max(self._following, round + 1)
        generations = tuple(self._members.generations[rank] for rank in members)
        meeting = Meeting(f"{self._stage}.{self._met}", members, round, generations)
        mixes = mix_takes_place(self._rule, {rank: self._distances[rank] for rank in members})
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

    def _release_if_all_ended(self) -> None:
        """Where no worker has data left, let all that wait for the others' end."""
        if self._members.awaited <= self._ended.keys():
            for rank in list(self._ended):
                self._answer_end(rank)

    def _answer_end(self, rank: int) -> None:
        """Answer a worker's wait, also that of a dead worker, since nothing else would cancel it."""
        waiting = self._ended.pop(rank, None)
        if waiting and not waiting.done():
            waiting.set_result(None)
