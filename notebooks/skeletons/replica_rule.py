"""A replica rule to copy: every worker trains a copy of its own; who mixes with whom, when, and what comes of it."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lib import ReplicaRule
from lib.options.checked import Count, Share
from lib.protocols.mixing import Loop, Mix


@dataclass(frozen=True, kw_only=True)
class Mine(ReplicaRule):
    """Every few steps all workers go part of the way to their mean."""

    name: ClassVar = "mine"
    cite: ClassVar = "none: a skeleton"
    # Promises; the tests measure them once the rule is in `lib.protocols.ALL`.
    blocks: ClassVar = True
    drops: ClassVar = False

    every: Count = 4
    """Steps between two mixes."""
    alpha: Share = 0.5
    """How far a replica moves: 1 is the mean itself."""

    @property
    def when(self) -> Loop:
        return Loop(every=self.every)

    def merge(self, memory, mine: np.ndarray, mix: Mix):
        # `mine` and `mix.theirs` are read-only: return what takes their place, and what this worker remembers.
        return memory, mine + np.float32(self.alpha) * (mix.theirs - mine)
