"""An all-reduce that takes long: model averaging in the background whose average is there some mixes after it was asked for.

In the paper five trainers average 50 MB in some 20 seconds, in which each makes hundreds of steps (Sec. 4.1.3). A modelled ring
takes 30 ms, in which a trainer makes one or two: then a copy undoes next to nothing. Here what was sent first comes back last.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lib.options.checked import Count
from lib.protocols.mixing import Mix
from lib.protocols.shadowsync import ShadowMA
from notebooks.shadowsync import tasks

WAYS = {"half": 0.5, "copied": 1.0, "never": 0.0}
"""How far of the way to the average a replica goes."""


@dataclass(frozen=True, kw_only=True)
class SlowMA(ShadowMA):
    """S-MA (Algorithm 3) whose every so-many mixes are one: the average of what all sent in the first is merged in the last, and
    what passes in between is left alone."""

    name: ClassVar = "slow s-ma"

    lasts: Count = 1
    """Mixes of a fast ring that one slow one takes; 1 is S-MA."""

    def init(self, start: np.ndarray) -> np.ndarray:
        return start.copy()

    def merge(self, memory: np.ndarray, mine: np.ndarray, mix: Mix) -> tuple[Any, np.ndarray]:
        position = mix.round % self.lasts
        average = mix.theirs.copy() if position == 0 else memory
        return average, self._towards(mine, average) if position == self.lasts - 1 else mine


def job(trainers: int, lasts: int, way: str, seed: int, *, samples: int, threads: int) -> dict[str, Any]:
    """A run that learns under it, one of `WAYS`."""
    rule = SlowMA(lasts=lasts, alpha=WAYS[way], worker_threads=threads)
    return tasks.learning_job(rule, trainers, seed, samples=samples)
