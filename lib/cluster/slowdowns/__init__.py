"""What slows workers down, from a formula or fitted to a trace of a real cluster, see `presets`."""

from lib.cluster.slowdowns.base import KINDS, Pace, SamplePath, Slowdown, get, presets
from lib.cluster.slowdowns.kinds import Diurnal, Empirical, Lognormal, Product, Shared, Steady, Transient

__all__ = [
    "KINDS",
    "Diurnal",
    "Empirical",
    "Lognormal",
    "Pace",
    "Product",
    "SamplePath",
    "Shared",
    "Slowdown",
    "Steady",
    "Transient",
    "get",
    "presets",
]
