"""ShadowSync: Zheng et al., "ShadowSync: Performing Synchronization in the Background for Highly Scalable Distributed
Training", 2020.

The rule in one sentence: training threads never synchronise; a shadow task beside them keeps mixing the local replica with
a sync server's copy by elastic interpolation.

Paper -> code: Algorithm 2's two lines -> `absorb` (on the sync server) and `merge` (on the trainer); the shadow thread ->
`when`; partitioned sync servers -> `exchange`; embeddings on parameter servers with Hogwild updates -> `rows`; worker threads
on one replica -> `worker_threads`.

Special cases: alpha = 0 is training without synchronisation.

Departure: a shadow task waits for at least one training step between two mixes, since mixing an unchanged replica only
moves it towards a copy that it has just met; on a free network it would otherwise spin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lib.options.checked import Count, Share
from lib.protocols.baselines import Async
from lib.protocols.mixing import Background, Centre, Mix
from lib.protocols.replica_rule import ReplicaRule


@dataclass(frozen=True, kw_only=True)
class ShadowEASGD(ReplicaRule):
    """Elastic averaging with a sync server, in the background."""

    name: ClassVar = "s-easgd"
    cite: ClassVar = "Zheng et al., ShadowSync, 2020 (arXiv:2003.03477); Zhang et al., EASGD, NeurIPS 2015"
    when: ClassVar = Background()
    rows: ClassVar = Async()
    blocks: ClassVar = False
    drops: ClassVar = False
    data: ClassVar = "queue"

    alpha: Share = 0.5
    """Elastic parameter: how far each side moves towards the other."""
    sync_servers: Count = 1
    """Sync servers, each of which holds a part of the copy."""

    @property
    def exchange(self) -> Centre:
        return Centre(servers=self.sync_servers)

    def absorb(self, copy: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        copy = (1 - self.alpha) * copy + self.alpha * theirs
        return copy, copy

    def merge(self, memory: None, mine: np.ndarray, mix: Mix) -> tuple[None, np.ndarray]:
        return memory, (1 - self.alpha) * mine + self.alpha * mix.theirs
