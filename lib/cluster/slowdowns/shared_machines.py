"""Machines that others use too: a worker gets what they leave of its machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Le, MinLen

from lib.cluster.slowdowns.base import Lasting, Pace, Slowdown, Stretches, draws
from lib.options.checked import NotNegative, Positive, Share


@dataclass(frozen=True, kw_only=True)
class Shared(Slowdown):
    """What others use of a worker's machine is drawn anew every `hold` seconds; what they leave is its speed.

    The share in use is Beta-distributed: its mean m follows the cluster's through the day, its variance is
    m (1 - m) / (concentration + 1). So a vacant cluster's workers are nearly alike, and a busy one's are not: the time of
    a computation goes with 1 / (1 - share in use), whose spread grows without any further assumption.

    Workers draw independently, at moments of their own. A draw follows the mean at the middle of its stretch.
    """

    name: ClassVar = "shared"
    times: ClassVar = ("hold", "period", "begin")

    curve: Annotated[tuple[Share, ...], MinLen(1)]
    """The cluster's mean share in use in each of so many equal stretches of a day."""
    concentration: Positive
    """How alike machines are: the larger, the closer to the mean."""
    hold: Lasting
    """Seconds for which a machine's share stays as it is."""
    least: Annotated[float, Ge(1e-9), Le(1)] = 0.01
    """The least share that a worker gets: a machine that is all in use still gives a newcomer its time slices."""
    period: Positive = 86_400.0
    """Seconds that a day lasts."""
    begin: NotNegative = 0.0
    """Seconds of the day that are over when the run begins."""

    def sample_path(self, seed: int, node: str, rank: int, twin: int = 0) -> Pace:
        return Stretches(self._shares(draws(seed, "slowdown", self.name, node, twin=twin)))

    def _shares(self, stream: np.random.Generator) -> Iterator[tuple[float, float]]:
        over = stream.random() * self.hold  # seconds of the first stretch that are over when the run begins
        for place in count():
            middle = (place + 0.5) * self.hold - over
            hour = math.floor((middle + self.begin) / self.period * len(self.curve))
            mean = in_use = self.curve[hour % len(self.curve)]
            if 0 < mean < 1:
                in_use = stream.beta(mean * self.concentration, (1 - mean) * self.concentration)
            yield max(self.least, 1 - in_use), (place + 1) * self.hold - over
