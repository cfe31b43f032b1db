"""Colours and dashes: a protocol has the same ones in every figure."""

import colorsys
import hashlib
import re
from collections.abc import Iterable
from functools import cache
from itertools import cycle
from typing import Any

from matplotlib.colors import to_hex, to_rgb

from lib.options.yaml_source import load
from reports.families import families
from reports.markup import TEMPLATES

# Hues that colour-blind readers distinguish, dark enough for text on white (4.5 to 1 and more).
BLUE, VERMILLION, GREEN, PINK = "#0068B0", "#B84A00", "#007A58", "#B0357A"
ORANGE, SKY, PURPLE, BLACK = "#8A6400", "#00758F", "#6B42A8", "#222222"
GREY, PALE = "#BDBDBD", "#E4E4E4"
SOLID, DASHED, DOTTED, DASHDOT = "-", (0, (5, 2)), (0, (1.2, 1.5)), (0, (5, 1.5, 1.2, 1.5))
LONG, DASHDOTDOT = (0, (10, 2)), (0, (6, 1.5, 1.2, 1.5, 1.2, 1.5))
DASHES = DOTTED, DASHED, SOLID, DASHDOT
"""The dashes of further lines of one protocol."""
LINES = SOLID, DASHED, DASHDOT, LONG, DOTTED, DASHDOTDOT
"""The dashes of a family's members."""
LIGHTS = 1.0, 0.55, 0.78
"""How light its members are, as a share of the family's hue."""

_PALETTE = load(TEMPLATES / "palette.yaml")
KINDS: dict[str, str] = {kind: globals()[tone.upper()] for kind, tone in _PALETTE["kinds"].items()}
"""What a node does -> its colour in a Gantt chart."""

OWN = ("#9A1F1F", "#5F6B00")
"""The colours of protocols that no family names, and of no other."""


@cache
def protocols() -> dict[str, tuple[str, Any]]:
    """Each protocol's colour and dashes: a family has one hue, and its members differ in lightness and in their lines."""
    found = {}
    for family in families():
        for rank, name in enumerate(family["members"]):
            hue, light, strength = colorsys.rgb_to_hls(*to_rgb(globals()[family["colour"].upper()]))
            tone = to_hex(colorsys.hls_to_rgb(hue, light * LIGHTS[rank % 3], strength))
            found[name] = tone, LINES[(rank // 3 + rank % 3) % len(LINES)]
    return found | {name: (tone, globals()[line.upper()]) for name, (tone, line) in _PALETTE["own"].items()}


MARKS = "os^Dvp"
"""The marks of tasks, sizes and other things that are no protocols."""


def colour(name: str) -> tuple[str, Any]:
    """A protocol's colour and dashes, by its name without options and variants (`gba(iota=4)`, `gba printed`, `bsp-4k`).

    Those of an unknown protocol follow from a hash of its name.
    """
    spare = [(tone, dashes) for dashes in (SOLID, DASHED, DASHDOT, LONG, DASHDOTDOT) for tone in OWN]
    return _known(name) or spare[int(hashlib.sha256(name.encode()).hexdigest(), 16) % len(spare)]


def colours(names: Iterable[str]) -> dict[str, tuple[str, Any]]:
    """The colours and dashes of what a figure compares; several that are no protocols, as codecs, have the hues in turn."""
    names = [*names]
    strange = [name for name in names if _known(name) is None]
    turn = zip(strange, cycle((*OWN, SKY, PURPLE, ORANGE, PINK, BLUE, GREEN)), strict=False)
    return {name: colour(name) for name in names} | {name: (tone, SOLID) for name, tone in turn if len(strange) > 1}


def _known(name: str) -> tuple[str, Any] | None:
    first = re.split(r"[\s(+/,]", name)[0]
    first = _PALETTE["aliases"].get(first, first)
    parts = first.split("-")
    bases = (name, first, *("-".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)))
    return next((protocols()[base] for base in bases if base in protocols()), None)


def shades(name: str, count: int) -> list[str]:
    """The colours of so many variants of one protocol, from light to dark."""
    hue, _, strength = colorsys.rgb_to_hls(*to_rgb(colour(name)[0]))
    lights = [0.72 - 0.5 * place / max(count - 1, 1) for place in range(count)]
    return [to_hex(colorsys.hls_to_rgb(hue, light, strength)) for light in lights]
