"""What slows workers down, from a formula or fitted to a trace of a real cluster, see `PRESETS`."""

from lib.cluster.slowdowns.base import Course, Pace, Slowdown
from lib.cluster.slowdowns.batchwise import Empirical, Lognormal, Steady
from lib.cluster.slowdowns.presets import PRESETS, Preset, get
from lib.cluster.slowdowns.product import Product
from lib.cluster.slowdowns.reading import SLOWDOWNS
from lib.cluster.slowdowns.shared_machines import UTILISATION, Shared
from lib.cluster.slowdowns.timed import CURVES, Bursts, Day, Transient

__all__ = [
    "CURVES",
    "PRESETS",
    "SLOWDOWNS",
    "UTILISATION",
    "Bursts",
    "Course",
    "Day",
    "Empirical",
    "Lognormal",
    "Pace",
    "Preset",
    "Product",
    "Shared",
    "Slowdown",
    "Steady",
    "Transient",
    "get",
]
