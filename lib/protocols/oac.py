"""OAC: Waleffe and Mohoney, "Optimistic Asynchrony Control: Achieving Synchronous Convergence With Asynchronous Throughput
for Embedding Model Training".

The rule of oac in one sentence: batches are read, moved and written concurrently, and each is validated against the device's
cache of recent updates just before it is computed. The result is that of a serial run in computation order.

Paper -> code: MFT, outstanding batches and STE (3.3) -> `OptimisticState`, `OAC.on_read`, `OAC.on_written`;
validation (3.2) -> `stale_reads`; "smaller timestamps are not allowed to overwrite larger timestamps" -> the driver's write,
which every pipeline rule shares where `validates` is set; locks (3.2) -> the table's own lock, which a call
holds for all of its rows at once.

Guarantee: values, optimiser state and timestamps equal a serial execution in computation order, bit for bit.

Departure: the paper bounds the batches in flight, and with them the cache as long as batches are written about in order. One
write that hangs holds MFT, and the cache then grows with all that goes on meanwhile. So a batch is admitted only where no more
than 2 F - 1 updates can come beyond STE, F being the batches that can be in flight (`most_in_flight`): what is written in the
order of admission never comes to that. It bounds the cache, by `most_cached_updates`:

- STE is the MFT of some batch x outstanding when b is admitted. With b, 2 F - 1 batches at most are then admitted beyond it.
- x and b are not written yet, so b's own MFT is at most STE + 2 F - 3; or x is b, and it is STE.
- While b is outstanding STE never exceeds b's MFT, so when b is computed its timestamp is at most that MFT + 2 F - 1.
- b has let go of all up to its STE: with its own, max(2 F - 1, 4 F - 4) updates are left at most. There are runs that come to it.

The two baselines are the paper's: one batch at a time, and concurrent batches without validation, where the last write
wins and updates are lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np

from lib.protocols.pipeline_rule import PipelineRule, ReadView

_OAC = "Waleffe and Mohoney, Optimistic Asynchrony Control"


@dataclass(frozen=True, kw_only=True)
class Sequential(PipelineRule):
    """One batch at a time: read, compute and write before the next is read."""

    name: ClassVar = "sequential"
    cite: ClassVar = f"{_OAC}, Fig. 1a"
    blocks: ClassVar = True
    validates: ClassVar = False
    max_staleness: ClassVar = 0

    in_flight: Literal[1] = 1
    """Always 1, and so are the others: batches are computed in the order of the data."""
    readers: Literal[1] = 1
    """Always 1."""
    writers: Literal[1] = 1
    """Always 1."""
    queue: Literal[1] = 1
    """Always 1."""


@dataclass(frozen=True, kw_only=True)
class Pipelined(PipelineRule):
    """Many batches in flight, none validated: as fast as it gets, with lost updates where batches overlap."""

    name: ClassVar = "pipelined"
    cite: ClassVar = f"{_OAC}, Fig. 1b; Mohoney et al., Marius, OSDI 2021"
    validates: ClassVar = False

    @property
    def max_staleness(self) -> float:
        return self.most_in_flight - 1


@dataclass(frozen=True, slots=True)
class OptimisticState:
    """Finished updates, and those that each batch in flight was read with."""

    finished: int = -1
    """MFT: the largest timestamp such that it and all before it are written."""
    early: frozenset[int] = frozenset()
    """Timestamps written out of order, beyond `finished` + 1."""
    outstanding: Mapping[int, int] = field(default_factory=dict)
    """Batch -> the MFT that it was read with, until it is written."""

    @property
    def seen(self) -> int:
        """Updates that are in the store."""
        return self.finished + 1 + len(self.early)


@dataclass(frozen=True, kw_only=True)
class OAC(PipelineRule):
    """Many batches in flight, each validated before compute: the serial result at the pipeline's speed."""

    name: ClassVar = "oac"
    cite: ClassVar = _OAC
    states: ClassVar = (OptimisticState,)
    validates: ClassVar = True
    max_staleness: ClassVar = 0

    @property
    def most_cached_updates(self) -> int:
        """Most updates in the cache at once."""
        return max(2 * self.most_in_flight - 1, 4 * self.most_in_flight - 4)

    def init(self) -> OptimisticState:
        return OptimisticState()

    def may_read(self, state: OptimisticState) -> bool:
        """Admit a batch also only while the cache stays within its bound."""
        safe = min(state.outstanding.values(), default=state.finished)
        beyond = state.seen + len(state.outstanding) - (safe + 1)
        return super().may_read(state) and beyond < 2 * self.most_in_flight - 1

    def on_read(self, state: OptimisticState, batch: int) -> tuple[OptimisticState, ReadView]:
        """In one turn read MFT, make the batch outstanding and give it STE, the least MFT of all outstanding batches."""
        outstanding = {**state.outstanding, batch: state.finished}
        return replace(state, outstanding=outstanding), ReadView(state.seen, safe=min(outstanding.values()))

    def on_written(self, state: OptimisticState, batch: int, stamp: int) -> OptimisticState:
        """MFT moves over all timestamps that are now without a gap."""
        early, finished = set(state.early) | {stamp}, state.finished
        while finished + 1 in early:
            finished += 1
            early.discard(finished)
        outstanding = {key: value for key, value in state.outstanding.items() if key != batch}
        return OptimisticState(finished=finished, early=frozenset(early), outstanding=outstanding)

    def stale_reads(self, read_stamps: np.ndarray, cached_stamps: np.ndarray) -> np.ndarray:
        return cached_stamps > read_stamps
