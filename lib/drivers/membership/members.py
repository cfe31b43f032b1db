"""Who takes part in a run: one value, of which every part that waits for workers holds a copy, or asks who holds one.

A worker has one standing at a time, and the table below is all that may become of it. What follows from a change is the affair
of whoever holds the copy: a server asks its rule, a rendezvous forms its groups, a queue tells its controller. Who hears of a
change first makes it known by `tell(rank, change)`, which every such part has: the worker itself, behind all that it has sent,
that it pauses or has no more data; its supervisor that it is dead, or there again.

Copies differ by what is on its way, and by who has asked whom: a worker that is there again is waited for by a server from its
first question on, by a rendezvous once a group has taken it in.
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
"""Change -> from which standings, to which one; from any other it changes nothing, for it is a message of before.

- dies: it is told of as lost, and nobody waits for it;
- is missing: it was dead when the run began, or went on, in a generation that nobody knows of;
- comes back: its node is there again, and it has asked for nothing yet;
- comes in: it asks, or is taken in: from here on others wait for it;
- pauses: it takes no batch until the run has been cut;
- goes unawaited: nor does anybody wait for it until then;
- goes on: the run has been cut;
- leaves: it has no more data."""


@dataclass(frozen=True)
class Members:
    """Guaranteed: each is in exactly one standing, so whoever is waited for is neither dead nor away."""

    standing: tuple[str, ...]
    generations: tuple[int, ...]
    """Which generation of its node each was in when it was last heard of; one that was lost asks from a later one."""

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
        """It has asked for something in that generation."""
        if self.generations[rank] == generation:
            return self
        return replace(self, generations=_at(self.generations, rank, generation))

    def in_another_process(self) -> Members:
        """Who goes on from a cut counts the generations of its nodes anew."""
        return replace(self, generations=(0,) * len(self.generations))

    @cached_property
    def active(self) -> frozenset[int]:
        """Who takes part, be it after a pause."""
        return self._of(HERE | PAUSED)

    @cached_property
    def awaited(self) -> frozenset[int]:
        """Who may be waited for."""
        return self._of(HERE)

    @cached_property
    def paused(self) -> frozenset[int]:
        """Who has paused and is waited for all the same."""
        return self._of({"paused"})

    @cached_property
    def left_out(self) -> frozenset[int]:
        """Who has paused and is waited for no more."""
        return self._of({"left out"})

    @cached_property
    def joining(self) -> frozenset[int]:
        """Who is there again, and is not waited for yet."""
        return self._of({"joining"})

    def _of(self, standings: frozenset[str] | set[str]) -> frozenset[int]:
        return frozenset(rank for rank, each in enumerate(self.standing) if each in standings)


def _at(values: tuple, rank: int, value: object) -> tuple:
    return (*values[:rank], value, *values[rank + 1 :])
