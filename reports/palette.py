"""How things look in every figure: one colour and one dash for a protocol, wherever it is drawn."""

from __future__ import annotations

import colorsys
import hashlib
import re
from typing import Any

from matplotlib.colors import to_hex, to_rgb

from lib.options.document import load
from reports.markup import TEMPLATES

# Okabe and Ito's colours, which colour-blind readers tell apart.
BLUE, VERMILLION, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, GREY = "#E69F00", "#56B4E9", "#222222", "#BDBDBD"
SOLID, DASHED, DOTTED, DASHDOT = "-", (0, (5, 2)), (0, (1.2, 1.5)), (0, (5, 1.5, 1.2, 1.5))
LONG = (0, (10, 2))
DASHES = DOTTED, DASHED, SOLID, DASHDOT
"""What several lines of one protocol have, one after another, beside its own."""
PALE = "#E4E4E4"

_LOOKS = load(TEMPLATES / "looks.yaml").data
PROTOCOLS: dict[str, tuple[str, Any]] = {
    name: tuple(globals()[each.upper()] for each in look) for name, look in _LOOKS["protocols"].items()
}
"""A protocol looks the same in every figure."""
KINDS: dict[str, str] = {kind: globals()[tone.upper()] for kind, tone in _LOOKS["kinds"].items()}
"""What a node does, in a Gantt chart."""

COMMON = ("sync", "async", "gba", "oac", "pipelined", "sequential")
"""What a stranger is most often compared with, and must not look like."""

MARKS = "os^Dvp"
"""What tells tasks, sizes and other things apart that are no protocols: black marks."""


def colour(name: str) -> tuple[str, Any]:
    """A protocol's colour and dashes: by its name, before any options or variants (`gba(iota=4)`, `gba printed`, `bsp-4k`); a
    stranger's follow from its name too."""
    first = re.split(r"[\s(+/,]", name)[0]
    first = _LOOKS["said"].get(first, first)
    parts = first.split("-")
    for base in (name, first, *("-".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))):
        if base in PROTOCOLS:
            return PROTOCOLS[base]
    spare = [look for look in dict.fromkeys(PROTOCOLS.values()) if look not in map(PROTOCOLS.get, COMMON)]
    return spare[int(hashlib.sha256(name.encode()).hexdigest(), 16) % len(spare)]


def shades(name: str, count: int) -> list[str]:
    """So many variants of one protocol: its colour from light to dark."""
    hue, _, strength = colorsys.rgb_to_hls(*to_rgb(colour(name)[0]))
    lights = [0.72 - 0.5 * place / max(count - 1, 1) for place in range(count)]
    return [to_hex(colorsys.hls_to_rgb(hue, light, strength)) for light in lights]
