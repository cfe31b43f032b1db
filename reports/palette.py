"""Colours and dashes: a protocol has the same ones in every figure."""

import colorsys
import hashlib
import re
from typing import Any

from matplotlib.colors import to_hex, to_rgb

from lib.options.yaml_source import load
from reports.markup import TEMPLATES

# Okabe and Ito's colours, which colour-blind readers tell apart.
BLUE, VERMILLION, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, GREY = "#E69F00", "#56B4E9", "#222222", "#BDBDBD"
SOLID, DASHED, DOTTED, DASHDOT = "-", (0, (5, 2)), (0, (1.2, 1.5)), (0, (5, 1.5, 1.2, 1.5))
LONG, DASHDOTDOT = (0, (10, 2)), (0, (6, 1.5, 1.2, 1.5, 1.2, 1.5))
DASHES = DOTTED, DASHED, SOLID, DASHDOT
"""The dashes of further lines of one protocol."""
PALE = "#E4E4E4"

_PALETTE = load(TEMPLATES / "palette.yaml")
PROTOCOLS: dict[str, tuple[str, Any]] = {
    name: tuple(globals()[each.upper()] for each in style) for name, style in _PALETTE["protocols"].items()
}
"""Protocol -> its colour and its dashes."""
KINDS: dict[str, str] = {kind: globals()[tone.upper()] for kind, tone in _PALETTE["kinds"].items()}
"""What a node does -> its colour in a Gantt chart."""

OWN = ("#6A3D9A", "#8C564B")
"""The colours of protocols that the palette does not name, and of no other."""

MARKS = "os^Dvp"
"""The marks of tasks, sizes and other things that are no protocols."""


def colour(name: str) -> tuple[str, Any]:
    """A protocol's colour and dashes, by its name without options and variants (`gba(iota=4)`, `gba printed`, `bsp-4k`).

    Those of an unknown protocol follow from a hash of its name.
    """
    first = re.split(r"[\s(+/,]", name)[0]
    first = _PALETTE["aliases"].get(first, first)
    parts = first.split("-")
    for base in (name, first, *("-".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))):
        if base in PROTOCOLS:
            return PROTOCOLS[base]
    spare = [(tone, dashes) for dashes in (SOLID, DASHED, DASHDOT, LONG, DASHDOTDOT) for tone in OWN]
    return spare[int(hashlib.sha256(name.encode()).hexdigest(), 16) % len(spare)]


def shades(name: str, count: int) -> list[str]:
    """The colours of so many variants of one protocol, from light to dark."""
    hue, _, strength = colorsys.rgb_to_hls(*to_rgb(colour(name)[0]))
    lights = [0.72 - 0.5 * place / max(count - 1, 1) for place in range(count)]
    return [to_hex(colorsys.hls_to_rgb(hue, light, strength)) for light in lights]
