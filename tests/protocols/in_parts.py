"""A background rule in a file of its own, as a user would write it: nothing in lib knows of it."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lib.options.checked import Count, Share
from lib.protocols.baselines import Async
from lib.protocols.mixing import Background, Mean, Mix
from lib.protocols.replica_rule import ReplicaRule


@dataclass(frozen=True, kw_only=True)
class InParts(ReplicaRule):
    """A shadow that averages one part of the parameters after another, so that a mix is as much smaller."""

    name: ClassVar = "in-parts"
    cite: ClassVar = "none: an example"
    blocks: ClassVar = False
    drops: ClassVar = False
    data: ClassVar = "queue"
    rows: ClassVar = Async()
    exchange: ClassVar = Mean(ahead=False)
    when: ClassVar = Background()

    parts: Count = 4
    """Mixes until all parameters have been averaged once."""
    alpha: Share = 0.5
    """How far a replica moves."""

    def send(self, memory, mine: np.ndarray, round: int) -> np.ndarray:
        return mine[self._part(mine.size, round)]

    def merge(self, memory, mine: np.ndarray, mix: Mix):
        moved = mine.copy()
        moved[self._part(mine.size, mix.round)] += self.alpha * (mix.theirs - mix.sent)
        return memory, moved

    def _part(self, size: int, round: int) -> slice:
        part = round % self.parts
        return slice(size * part // self.parts, size * (part + 1) // self.parts)
