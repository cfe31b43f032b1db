"""Clicks for studies of synchronisation, where thousands of updates of many workers must take a minute (lib.models.light)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

from lib.data.hashed import HashedClicks
from lib.models.light import LightFM
from lib.options.checked import Count, Natural
from lib.workloads.ctr import ClickThrough


@dataclass(frozen=True, kw_only=True)
class LightClicks(ClickThrough):
    """Clicks, planted or real, for a factorisation machine with a small dense network: what rows and what dense parameters do.

    `hidden=[]` leaves the network out: rows alone, and a bias.
    """

    name: ClassVar[str] = "clicks-light"

    batch_size: Count = 64
    fields: Count = 8
    hidden: tuple[Count, ...] = (16,)
    dense_features: Natural = 0

    def __post_init__(self):
        super().__post_init__()
        if self.network != "deepfm":
            self._reject("network", "left out: its model is a factorisation machine with compiled gradients")
        if len(self.hidden) > 1:
            self._reject("hidden", "one width, or none for rows alone; ctr-synthetic takes more layers")

    def model(self, seed: int) -> LightFM:
        return LightFM(**self._shape, seed=seed)

    @functools.cached_property
    def _planted(self) -> HashedClicks:
        return HashedClicks(**{name: getattr(self, name) for name in HashedClicks.__dataclass_fields__})
