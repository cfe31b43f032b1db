"""What slows workers down, from a formula or fitted to a trace of a real cluster, see `PRESETS`."""

from lib.cluster.slowdown.base import BadField, Course, Pace, Slowdown
from lib.cluster.slowdown.batchwise import Empirical, Lognormal, Steady
from lib.cluster.slowdown.presets import PRESETS, Preset, get
from lib.cluster.slowdown.product import Product
from lib.cluster.slowdown.reading import SLOWDOWNS, from_dict
from lib.cluster.slowdown.shared import UTILISATION, Shared
from lib.cluster.slowdown.timed import CURVES, Bursts, Day, Transient

__all__ = [
    "CURVES",
    "PRESETS",
    "SLOWDOWNS",
    "UTILISATION",
    "BadField",
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
    "from_dict",
    "get",
]
