"""OAC: Waleffe and Mohoney, "Optimistic Asynchrony Control: Achieving Synchronous Convergence With Asynchronous Throughput
for Embedding Model Training".

The rule in one sentence: batches are read, moved and written concurrently, and each is validated against the device's
cache of recent updates just before it is computed, so that the result is that of a serial run in computation order.

Paper -> code: MFT, outstanding batches and STE (3.3) -> `OptimisticState`, `OAC.on_read`, `OAC.on_written`;
validation (3.2) -> `stale`; "smaller timestamps are not allowed to overwrite larger timestamps" -> the driver's write,
which every pipeline rule shares where `validates` is set.

Guarantee: values, optimiser state and timestamps equal a serial execution in computation order, bit for bit.

The two baselines are the paper's: one batch at a time, and concurrent batches without validation, where the last write
wins and updates are lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np

from lib.protocols.pipeline_rule import Admission, PipelineRule

_OAC = "Waleffe and Mohoney, Optimistic Asynchrony Control"


@dataclass(frozen=True, kw_only=True)
class Sequential(PipelineRule):
    """One batch at a time: read, compute and write before the next is read."""

    name: ClassVar = "sequential"
    cite: ClassVar = f"{_OAC}, Fig. 1a"
    blocks: ClassVar = True
    validates: ClassVar = False

    in_flight: Literal[1] = 1
    """Always 1, and so are the others: batches are computed in the order of the data."""
    readers: Literal[1] = 1
    """Always 1."""
    writers: Literal[1] = 1
    """Always 1."""

    @property
    def max_staleness(self) -> float:
        return 0


@dataclass(frozen=True, kw_only=True)
class Pipelined(PipelineRule):
    """Many batches in flight, none validated: as fast as it gets, with lost updates where batches overlap."""

    name: ClassVar = "pipelined"
    cite: ClassVar = f"{_OAC}, Fig. 1b; Mohoney et al., Marius, OSDI 2021"
    validates: ClassVar = False

    @property
    def max_staleness(self) -> float:
        return self.in_flight - 1


@dataclass(frozen=True, slots=True)
class OptimisticState:
    """What is known of finished updates, and by batches under way."""

    finished: int = -1
    """MFT: the largest timestamp such that it and all before it are written."""
    early: frozenset[int] = frozenset()
    """Timestamps written out of order, beyond `finished` + 1."""
    outstanding: Mapping[int, int] = field(default_factory=dict)
    """Batch -> the MFT that it was read with, until it is written."""


@dataclass(frozen=True, kw_only=True)
class OAC(PipelineRule):
    """Many batches in flight, each validated before compute: the serial result at the pipeline's speed."""

    name: ClassVar = "oac"
    cite: ClassVar = _OAC
    states: ClassVar = (OptimisticState,)
    validates: ClassVar = True

    @property
    def max_staleness(self) -> float:
        return 0

    def init(self) -> OptimisticState:
        return OptimisticState()

    def on_read(self, state: OptimisticState, batch: int) -> tuple[OptimisticState, Admission]:
        """Atomic with the reading of MFT: the batch becomes outstanding and learns STE, the least MFT of all that are."""
        outstanding = {**state.outstanding, batch: state.finished}
        seen = state.finished + 1 + len(state.early)
        return replace(state, outstanding=outstanding), Admission(seen, safe=min(outstanding.values()))

    def on_written(self, state: OptimisticState, batch: int, stamp: int) -> OptimisticState:
        """MFT moves over all timestamps that are now without a gap."""
        early, finished = set(state.early) | {stamp}, state.finished
        while finished + 1 in early:
            finished += 1
            early.discard(finished)
        outstanding = {key: value for key, value in state.outstanding.items() if key != batch}
        return OptimisticState(finished=finished, early=frozenset(early), outstanding=outstanding)

    def stale(self, read: np.ndarray, cached: np.ndarray) -> np.ndarray:
        return cached > read
