"""Machines that others use too: a worker gets what they leave of its machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Le

from lib.cluster.slowdowns.base import Lasting, Pace, Slowdown, draws
from lib.errors import nearest
from lib.options.checked import NotNegative, Positive, Share

UTILISATION: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        # Fitted by `data_prep.traces.fitting.fit_shared` to 14 machines over 8 days of Alibaba's cluster-trace-v2018
        # (github.com/alibaba/clusterdata, machine_usage.csv): the mean share of a machine's CPU in use, hour by hour.
        "alibaba-2018": (
            *(0.3348, 0.3442, 0.339, 0.3775, 0.4173, 0.4807, 0.6082, 0.5238, 0.4801, 0.4834, 0.4378, 0.4633),
            *(0.4169, 0.4027, 0.3897, 0.3606, 0.3431, 0.3487, 0.3306, 0.3231, 0.3316, 0.3419, 0.3108, 0.2934),
        ),
    }
)
"""Mean shares in use over one day, from midnight of the trace."""


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

    curve: tuple[Share, ...] | str = "alibaba-2018"
    """The cluster's mean share in use in each of so many equal stretches of a day, or a name in `UTILISATION`."""
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

    def __post_init__(self):
        if isinstance(self.curve, str) and self.curve not in UTILISATION:
            self._reject("curve", f"shares in use or a name ({nearest(self.curve, UTILISATION)})")
        if not self.curve:
            self._reject("curve", "at least one share")

    @property
    def used(self) -> tuple[float, ...]:
        """The mean shares in use."""
        return UTILISATION[self.curve] if isinstance(self.curve, str) else self.curve

    def course(self, seed: int, node: str, rank: int, twin: int = 0) -> Pace:
        return _Shared(self, draws(seed, "slowdown", self.name, node, twin=twin))


class _Shared(Pace):
    """Draws are kept: a computation has looked ahead of where the next one begins."""

    def __init__(self, kind: Shared, stream: np.random.Generator):
        self._kind, self._stream, self._used = kind, stream, kind.used
        self._over = stream.random() * kind.hold
        """Seconds of the first stretch that are over when the run begins."""
        self._free: list[float] = []

    def speed(self, time: float) -> tuple[float, float]:
        hold = self._kind.hold
        stretch = math.floor((time + self._over) / hold)
        until = (stretch + 1) * hold - self._over
        if until <= time:  # rounding put the moment before the change that it is
            stretch += 1
            until = (stretch + 1) * hold - self._over
        while len(self._free) <= stretch:
            self._free.append(self._draw((len(self._free) + 0.5) * hold - self._over))
        return self._free[stretch], until

    def _draw(self, middle: float) -> float:
        kind = self._kind
        place = math.floor((middle + kind.begin) / kind.period * len(self._used))
        mean = self._used[place % len(self._used)]
        in_use = mean
        if 0 < mean < 1:
            in_use = self._stream.beta(mean * kind.concentration, (1 - mean) * kind.concentration)
        return max(kind.least, 1 - in_use)
