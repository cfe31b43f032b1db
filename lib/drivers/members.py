"""Which workers take part in a run: one value, of which every part that waits for workers holds a copy.

A worker has one standing at a time, and the table below lists all changes of it. The part that holds a copy decides what follows
from a change: a server asks its rule, a rendezvous forms its groups, a queue informs its controller. Every such part has
`tell(rank, change)`. A worker tells, after all that it has sent, that it pauses or has no more data; the roster tells that it is
dead, or up again.

Copies differ by the messages on their way. A worker that joins again is waited for by a server from its first question on, and by
a rendezvous once a group has taken it in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

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
        changed = replace(self, standing=_at(self.standing, rank, then))
        return changed.heard(rank, self.generations[rank] + 1) if change == "dies" else changed

    def after_pause(self) -> Members:
        """All that take part go on together."""
        before, then = CHANGES["goes on"]
        return replace(self, standing=tuple(then if each in before else each for each in self.standing))

    def heard(self, rank: int, generation: int) -> Members:
        """After a question from that generation of the worker's node."""
        if self.generations[rank] == generation:
            return self
        return replace(self, generations=_at(self.generations, rank, generation))

    def in_another_process(self) -> Members:
        """A new process counts the generations of its nodes anew."""
        return replace(self, generations=(0,) * len(self.generations))

    @cached_property
    def active(self) -> frozenset[int]:
        """Workers that take part, now or after a pause."""
        return self._of(HERE | PAUSED)

    @cached_property
    def awaited(self) -> frozenset[int]:
        """Workers that others may wait for."""
        return self._of(HERE)

    @cached_property
    def paused(self) -> frozenset[int]:
        """Workers that have paused and are still waited for."""
        return self._of({"paused"})

    @cached_property
    def left_out(self) -> frozenset[int]:
        """Workers that have paused and are not waited for."""
        return self._of({"left out"})

    @cached_property
    def joining(self) -> frozenset[int]:
        """Workers that are up again and not waited for yet."""
        return self._of({"joining"})

    def _of(self, standings: frozenset[str] | set[str]) -> frozenset[int]:
        return frozenset(rank for rank, each in enumerate(self.standing) if each in standings)


def _at(values: tuple, rank: int, value: object) -> tuple:
    return (*values[:rank], value, *values[rank + 1 :])
