"""Replica rules: every worker updates its own copy, and the rule says how copies are mixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from lib.errors import BadOption
from lib.protocols.rule import Rule

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class ReplicaRule(Rule):
    """Who mixes with whom, when, in the background or in the loop? How do mine and theirs merge?"""

    family: ClassVar = "replica"
    mixes: ClassVar[Literal["parameters", "gradients"]] = "parameters"
    background: ClassVar[bool] = False
    """A shadow task mixes while training goes on; else the worker mixes in its loop."""
    scheduled: ClassVar[bool] = True
    """Groups are known beforehand, and asked for while the worker computes; else when it is ready to mix."""
    centre: ClassVar[bool] = False
    """Each worker mixes with a copy on a sync server, whenever it likes; else workers meet in groups."""

    buckets: ClassVar[int] = 1
    """Parts in which a gradient is mixed."""

    every: int = 1
    """Steps between two mixes in the loop (k); a shadow task mixes as often as the network lets it."""

    def __post_init__(self):
        if self.every < 1:
            raise BadOption(f"{self.name}: every must be at least 1, not {self.every}")

    def batches_a_step(self, workers: int) -> int:
        return workers

    def init(self, start: np.ndarray) -> Any:
        """What one replica remembers between mixes (BMUF's global copy, for one); None where nothing."""
        return None

    def groups(self, round: int, workers: int) -> Groups:
        """The scheduled groups of a mixing round: a partition of the ranks."""
        return (tuple(range(workers)),)

    def form(self, waiting: Mapping[int, int], active: frozenset[int], workers: int) -> Groups:
        """The groups that can go now, given who waits at which round. By default: scheduled groups whose members that
        are still active all wait at the same round, without those who wait at a later one (they were lost, or the group
        broke when another was); a rule of dynamic groups decides by who is there."""
        formed, seen = [], set()
        for rank, round in sorted(waiting.items()):
            if rank in seen or rank not in active:
                continue
            scheduled = next(group for group in self.groups(round, workers) if rank in group)
            group = tuple(member for member in scheduled if member in active and waiting.get(member, round) <= round)
            if all(waiting.get(member) == round for member in group):
                formed.append(group)
                seen.update(group)
        return tuple(formed)

    def absorb(self, centre: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        """The sync server's copy after a worker brought its own."""
        raise NotImplementedError(f"{self.name} has no sync server")

    def merge(self, memory: Any, mine: np.ndarray, theirs: np.ndarray) -> tuple[Any, np.ndarray]:
        """A replica after it met `theirs`: the group's mean, or the sync server's copy."""
        return memory, theirs
