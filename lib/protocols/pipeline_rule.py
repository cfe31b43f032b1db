"""Pipeline rules: one device, many batches in flight over a host store, and the rule says how many and what is validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from lib.errors import BadOption
from lib.protocols.rule import Rule


@dataclass(frozen=True, slots=True)
class Admission:
    """What a batch learns on the host just before its rows are read."""

    seen: int
    """Updates that are in the store."""
    safe: int
    """STE: cached rows up to this timestamp can never be needed again."""


@dataclass(frozen=True, slots=True)
class HostState:
    """What a pipeline rule remembers beside the host store."""

    finished: int = -1
    """MFT: the largest timestamp such that it and all before it are written."""
    early: frozenset[int] = frozenset()
    """Timestamps written out of order, beyond `finished` + 1."""
    outstanding: Mapping[int, int] = field(default_factory=dict)
    """Batch -> the MFT it was admitted with, from its reading to its writing."""


@dataclass(frozen=True, kw_only=True)
class PipelineRule(Rule):
    """How many batches may be in flight? Is a batch's read set validated before it is computed?"""

    family: ClassVar = "pipeline"
    blocks: ClassVar = False
    drops: ClassVar = False
    data: ClassVar = "queue"

    validates: ClassVar[bool]
    """Values that a batch read are replaced by newer ones of the device's cache before compute."""

    in_flight: int = 8
    """Most batches between the start of their reading and the end of their writing."""
    readers: int = 4
    """Reader tasks: host store to device queue."""
    writers: int = 4
    """Writer tasks: device to host store."""

    def __post_init__(self):
        for option in ("in_flight", "readers", "writers"):
            if getattr(self, option) < 1:
                raise BadOption(f"{self.name}: {option} must be at least 1, not {getattr(self, option)}")

    def init(self) -> HostState:
        return HostState()

    def may_read(self, state: HostState) -> bool:
        return len(state.outstanding) < self.in_flight

    def on_read(self, state: HostState, batch: int) -> tuple[HostState, Admission]:
        """Atomic with the reading of MFT: the batch becomes outstanding and learns what may be evicted."""
        outstanding = {**state.outstanding, batch: state.finished}
        seen = state.finished + 1 + len(state.early)
        return replace(state, outstanding=outstanding), Admission(seen, min(outstanding.values()))

    def on_written(self, state: HostState, batch: int, stamp: int) -> HostState:
        """A batch is in the store; MFT moves over all timestamps that are now without a gap."""
        early, finished = set(state.early) | {stamp}, state.finished
        while finished + 1 in early:
            finished += 1
            early.discard(finished)
        outstanding = {key: value for key, value in state.outstanding.items() if key != batch}
        return HostState(finished=finished, early=frozenset(early), outstanding=outstanding)

    def on_abandoned(self, state: HostState, batch: int) -> HostState:
        """A batch that was read will never be written."""
        return replace(state, outstanding={key: value for key, value in state.outstanding.items() if key != batch})

    def stale(self, read: np.ndarray, cached: np.ndarray) -> np.ndarray:
        """Which values of a batch must give way, by the timestamp that was read and the cache's (-1: not cached)."""
        return cached > read if self.validates else np.zeros(len(read), dtype=bool)
