"""ShadowSync: Zheng et al., "ShadowSync: Performing Synchronization in the Background for Highly Scalable Distributed
Training", 2020; and the foreground twins that the paper compares its algorithms with.

The rule in one sentence: training threads never synchronise; a shadow task next to them keeps mixing the local replica with
others by elastic interpolation: with a sync server's copy (S-EASGD), with the mean of all replicas (S-MA), or with a global
model that moves towards that mean (S-BMUF). A foreground twin does the same in the training loop, every so many steps or seconds.

Paper -> code: Algorithm 1's shadow thread -> `when`; Algorithm 2's two lines -> `update_centre` (on the sync server) and `merge`
(on the trainer); AllReduce of Algorithms 3 and 4 -> `exchange`; w_global -> what `init` begins and `merge` moves; partitioned
sync servers -> `sync_servers`; embeddings on parameter servers with Hogwild updates -> `rows`; worker threads on one replica
and its optimiser's state -> `worker_threads`.

Special cases: alpha = 0 is training without synchronisation; S-MA with alpha = 1 copies the mean, which loses what was learnt
while it travelled; BMUF with eta = 1 and no momentum is MA; FR-MA with alpha = 1 is local SGD.

Where the text leaves a choice: Algorithm 2's second line has the server's copy as its first line leaves it (`answer="new"`, as
printed) or as it was before ("old"). "Data is all consumed" is the worker's own data (`until="own"`: a worker at its end is
a member of no more groups, so that no collective hangs) or all workers' ("all").

Departures: a shadow task waits for at least one training step between two mixes, since mixing an unchanged replica only
moves it towards a copy that it has just met; on a free network it would otherwise spin. A thread's step and a mix are atomic,
where the paper's are free of locks: of two that meet, both count, and neither waits for the other's work. BMUF's momentum is
the classical one, of "momentum update, Nesterov acceleration etc.", and off by default, as in Algorithm 4.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Lt

from lib.options.checked import Count, Positive, Share
from lib.options.units import Seconds
from lib.protocols.baselines import Async
from lib.protocols.mixing import Background, Centre, Loop, Mean, Mix
from lib.protocols.replica_rule import ReplicaRule

CITE = "Zheng et al., ShadowSync, 2020 (arXiv:2003.03477)"


@dataclass(frozen=True, kw_only=True)
class _Elastic(ReplicaRule):
    """A replica moves part of the way towards what came of a mix, and keeps what it learnt meanwhile."""

    rows: ClassVar = Async()
    blocks: ClassVar = False
    drops: ClassVar = False
    data: ClassVar = "queue"

    alpha: Share = 0.5
    """Elastic parameter: how far a replica moves."""

    def merge(self, memory: Any, mine: np.ndarray, mix: Mix) -> tuple[Any, np.ndarray]:
        return memory, self._towards(mine, mix.theirs)

    def _towards(self, mine: np.ndarray, there: np.ndarray) -> np.ndarray:
        return (1 - self.alpha) * mine + self.alpha * there


@dataclass(frozen=True, kw_only=True)
class _EASGD(_Elastic):
    sync_servers: Count = 1
    """Sync servers, each of which holds a part of the copy."""
    answer: Literal["new", "old"] = "new"
    """The copy that a worker gets in answer: after it has moved, or as it was before."""

    @property
    def exchange(self) -> Centre:
        return Centre(servers=self.sync_servers)

    def update_centre(self, centre: np.ndarray, message: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        moved = (1 - self.alpha) * centre + self.alpha * message
        return moved, moved if self.answer == "new" else centre


@dataclass(frozen=True, kw_only=True)
class _MA(_Elastic):
    exchange: ClassVar = Mean(ahead=False)


@dataclass(frozen=True, kw_only=True)
class _BMUF(_Elastic):
    exchange: ClassVar = Mean(ahead=False)

    eta: Positive = 1.0
    """Step of the global model towards the mean."""
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Share of the last step that the global model takes once more."""

    def init(self, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return start.copy(), np.zeros_like(start)

    def merge(self, memory: Any, mine: np.ndarray, mix: Mix) -> tuple[Any, np.ndarray]:
        whole, step = memory
        step = self.momentum * step + self.eta * (mix.theirs - whole)
        whole = whole + step
        return (whole, step), self._towards(mine, whole)


@dataclass(frozen=True, kw_only=True)
class _Shadow(ReplicaRule):
    until: Literal["own", "all"] = "own"
    """When a shadow ends: with its own worker's data, or when all workers have come to the end of theirs."""

    @property
    def when(self) -> Background:
        return Background(until=self.until)


@dataclass(frozen=True, kw_only=True)
class _Foreground(ReplicaRule):
    every: Count = 1
    """Steps from one mix to the next (the paper's sync gap); of a thread of its own with a sync server, else of all threads."""
    seconds: Seconds = 0.0
    """Seconds from one mix to the next, at least."""

    @property
    def when(self) -> Loop:
        return Loop(every=self.every, seconds=self.seconds)


@dataclass(frozen=True, kw_only=True)
class ShadowEASGD(_Shadow, _EASGD):
    """Elastic averaging with a sync server, in the background."""

    name: ClassVar = "s-easgd"
    cite: ClassVar = f"{CITE}; Zhang et al., EASGD, NeurIPS 2015"


@dataclass(frozen=True, kw_only=True)
class ShadowMA(_Shadow, _MA):
    """Model averaging among all workers, in the background."""

    name: ClassVar = "s-ma"
    cite: ClassVar = CITE


@dataclass(frozen=True, kw_only=True)
class ShadowBMUF(_Shadow, _BMUF):
    """A global model that moves towards the mean of all workers, in the background."""

    name: ClassVar = "s-bmuf"
    cite: ClassVar = f"{CITE}; Chen and Huo, BMUF, ICASSP 2016"


@dataclass(frozen=True, kw_only=True)
class ForegroundEASGD(_Foreground, _EASGD):
    """Elastic averaging with a sync server: every thread stops for it every few steps."""

    name: ClassVar = "fr-easgd"
    cite: ClassVar = f"{CITE}; Zhang et al., EASGD, NeurIPS 2015"


@dataclass(frozen=True, kw_only=True)
class ForegroundMA(_Foreground, _MA):
    """Model averaging: all workers stop for it, every so many steps or seconds."""

    name: ClassVar = "fr-ma"
    cite: ClassVar = CITE
    blocks: ClassVar = True


@dataclass(frozen=True, kw_only=True)
class ForegroundBMUF(_Foreground, _BMUF):
    """A global model that moves towards the mean of all workers, which stop for it every so many steps or seconds."""

    name: ClassVar = "fr-bmuf"
    cite: ClassVar = f"{CITE}; Chen and Huo, BMUF, ICASSP 2016"
    blocks: ClassVar = True
