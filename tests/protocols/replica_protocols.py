"""Six protocols of the literature, written on the contract of replica rules alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lib.protocols.baselines import Async
from lib.protocols.mixing import Centre, Loop, Mix, Neighbours, Peer
from lib.protocols.replica_rule import ReplicaRule


@dataclass(frozen=True, kw_only=True)
class EASGD(ReplicaRule):
    """Every few steps a worker and the centre move towards each other, by the same elastic force; the centre is the model."""

    name: ClassVar = "easgd"
    cite: ClassVar = "Zhang et al., Deep learning with Elastic Averaging SGD, NeurIPS 2015, Algorithm 1"
    blocks: ClassVar = False
    drops: ClassVar = False
    data: ClassVar = "queue"
    rows: ClassVar = Async()
    model: ClassVar = "centre"

    every: int = 1
    """Steps between two exchanges (tau)."""
    alpha: float = 0.25
    """Elastic force."""
    sync_servers: int = 1
    """Parts of the centre."""

    @property
    def when(self) -> Loop:
        return Loop(every=self.every)

    @property
    def exchange(self) -> Centre:
        return Centre(servers=self.sync_servers)

    def absorb(self, copy, theirs):
        return copy + self.alpha * (theirs - copy), copy

    def merge(self, memory, mine: np.ndarray, mix: Mix):
        return memory, mine - self.alpha * (mix.sent - mix.theirs)


@dataclass(frozen=True, kw_only=True)
class LocalSGD(ReplicaRule):
    """Every worker trains alone for a few steps, then all take the mean."""

    name: ClassVar = "local-sgd"
    cite: ClassVar = "Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019"
    blocks: ClassVar = True
    drops: ClassVar = False

    every: int = 4
    """Local steps (H)."""

    @property
    def when(self) -> Loop:
        return Loop(every=self.every)


@dataclass(frozen=True, kw_only=True)
class PostLocalSGD(LocalSGD):
    """Local SGD that begins as its synchronous self."""

    name: ClassVar = "post-local-sgd"
    cite: ClassVar = "Lin et al., Don't Use Large Mini-Batches, Use Local SGD, ICLR 2020"

    until: int = 4
    """Steps in which all workers mix each time (t')."""

    def due(self, step: int, seconds: float) -> bool:
        return step <= self.until or (step - self.until) % self.every == 0


@dataclass(frozen=True, kw_only=True)
class SlowMo(LocalSGD):
    """Local SGD whose means are gradients of an outer copy with momentum; that copy is the model."""

    name: ClassVar = "slowmo"
    cite: ClassVar = "Wang et al., SlowMo: Improving Communication-Efficient Distributed SGD, ICLR 2020, Algorithm 1"

    beta: float = 0.7
    """Slow momentum."""
    alpha: float = 1.0
    """Slow learning rate."""
    rate: float = 0.1
    """The local steps' learning rate (gamma)."""

    def init(self, start: np.ndarray):
        return start.copy(), np.zeros_like(start)

    def merge(self, memory, mine: np.ndarray, mix: Mix):
        outer, momentum = memory
        momentum = self.beta * momentum + (outer - mix.theirs) / self.rate
        outer = outer - self.alpha * self.rate * momentum
        return (outer, momentum), outer

    def stands_for(self, memory, mine: np.ndarray) -> np.ndarray:
        return memory[0]


@dataclass(frozen=True, kw_only=True)
class DPSGD(ReplicaRule):
    """On a ring, while it computes its gradient, a worker takes the mean of its own and its two neighbours' parameters."""

    name: ClassVar = "d-psgd"
    cite: ClassVar = "Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?, NeurIPS 2017"
    blocks: ClassVar = True
    drops: ClassVar = False
    exchange: ClassVar = Neighbours()
    when: ClassVar = Loop(place="beside")
    rows: ClassVar = Async()
    model: ClassVar = "average"

    def weights(self, round: int, rank: int, workers: int):
        row = Counter()
        for other in (rank - 1, rank, rank + 1):
            row[other % workers] += 1 / 3
        return row


@dataclass(frozen=True, kw_only=True)
class ADPSGD(ReplicaRule):
    """While it computes its gradient, a worker of even rank averages with one of odd rank, which does not wait for it."""

    name: ClassVar = "ad-psgd"
    cite: ClassVar = (
        "Lian et al., Asynchronous Decentralized Parallel SGD, ICML 2018, Algorithm 1 (bipartite, Appendix A)"
    )
    blocks: ClassVar = False
    drops: ClassVar = False
    data: ClassVar = "queue"
    exchange: ClassVar = Peer()
    when: ClassVar = Loop(place="beside")
    rows: ClassVar = Async()
    model: ClassVar = "average"

    def partner(self, round: int, rank: int, workers: int) -> int | None:
        return None if rank % 2 else 2 * ((rank // 2 + round) % (workers // 2)) + 1

    def absorb(self, copy, theirs):
        half = (theirs - copy) / 2
        return copy + half, -half

    def merge(self, memory, mine: np.ndarray, mix: Mix):
        return memory, mine + mix.theirs


WRITTEN = (EASGD, LocalSGD, PostLocalSGD, SlowMo, DPSGD, ADPSGD)
