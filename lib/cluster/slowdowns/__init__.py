"""What slows workers down, from a formula or fitted to a trace of a real cluster, see `presets`."""

from lib.cluster.slowdowns.base import Pace, SamplePath, Slowdown
from lib.cluster.slowdowns.batchwise import Empirical, Lognormal, Steady
from lib.cluster.slowdowns.presets import get, presets
from lib.cluster.slowdowns.product import Product
from lib.cluster.slowdowns.reading import SLOWDOWNS
from lib.cluster.slowdowns.shared_machines import Shared
from lib.cluster.slowdowns.timed import Diurnal, Transient

__all__ = [
    "SLOWDOWNS",
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
