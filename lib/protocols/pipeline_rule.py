"""Pipeline rules: one device, many batches in flight over a host store; the rule says how many, and which rows are validated."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from lib.options.checked import Count
from lib.protocols.rule import Rule


@dataclass(frozen=True, slots=True)
class ReadView:
    """What a batch whose rows are about to be read will see."""

    seen: int
    """Updates that are in the store."""
    safe: int = -1
    """Rows that the device caches up to this timestamp can never be needed again."""


@dataclass(frozen=True, slots=True)
class HostState:
    """The state of a pipeline rule, next to the host store."""

    outstanding: frozenset[int] = frozenset()
    """Batches that are read and not yet written."""
    written: int = 0
    """Updates that are in the store."""


@dataclass(frozen=True, kw_only=True)
class PipelineRule(Rule):
    """How many batches may be in flight? Is a batch's read set validated before it is computed?"""

    family: ClassVar = "pipeline"
    blocks: ClassVar = False
    drops: ClassVar = False
    data: ClassVar = "queue"
    states: ClassVar = (HostState,)
    validates: ClassVar[bool]
    """The device caches its updates. Before compute, newer values in the cache replace those that a batch read (`stale_reads`),
    and the store takes no row that is older than its own."""

    in_flight: Count = 8
    """Most batches between the start of their reading and the end of their writing."""
    readers: Count = 4
    """Reader tasks, each with one batch: host store, transfer, device queue."""
    writers: Count = 4
    """Writer tasks, each with one batch: output queue, transfer, host store."""
    queue: Count = 8
    """Most batches that wait for the device, and most that wait for a writer."""

    @property
    def most_in_flight(self) -> int:
        """Batches that can be in flight: each is with a reader, in a queue, on the device or with a writer."""
        return min(self.in_flight, self.readers + self.queue + 1 + self.queue + self.writers)

    def init(self) -> HostState:
        return HostState()

    def may_read(self, state: HostState) -> bool:
        return len(state.outstanding) < self.in_flight

    def on_read(self, state: HostState, batch: int) -> tuple[HostState, ReadView]:
        """A batch is about to be read."""
        return replace(state, outstanding=state.outstanding | {batch}), ReadView(state.written)

    def on_written(self, state: HostState, batch: int, stamp: int) -> HostState:
        """A batch is in the store, with the timestamp that the device gave it."""
        return HostState(state.outstanding - {batch}, state.written + 1)

    def stale_reads(self, read_stamps: np.ndarray, cached_stamps: np.ndarray) -> np.ndarray:
        """Which rows of a batch the cache replaces, by the timestamps that were read and the cache's (-1: not cached)."""
        return np.zeros(len(read_stamps), dtype=bool)
