"""The front page's picture of every protocol in every condition: places in per cent, and the fastest of each condition."""

import math
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from reports.families import members
from reports.markup import rounded
from reports.protocol_pages import best, sound, words

Measured = Mapping[str, Mapping[str, list[float]]]
"""Condition -> protocol -> speed as a multiple of Sync's with its interval, and AUC minus Sync's with its interval."""
SPEEDS, AUCS = (0.2, 0.35, 0.5, 0.7, 1, 1.4, 2, 3, 4), (0.001, 0, -0.001, -0.003, -0.006, -0.01, -0.02, -0.04)
"""Where the axes have marks."""
NAMED = ("sync", "all-reduce", "async", "gba", "hybrid", "s-easgd", "local-sgd", "ds-sync")
"""The protocols that have their names in the picture."""
HEIGHT, LINE = 416, 15
"""Pixels: the picture's height, and from one name to the next."""


def root(auc: float) -> float:
    """The scale is of square roots, so that thousandths and hundredths can both be seen."""
    return math.copysign(math.sqrt(abs(auc)), auc)


def places(measured: Measured) -> dict[str, dict[str, Any]]:
    """Condition -> `dots`, and the marks of the axes, `x` and `y`.

    A dot has a protocol's place from the left and from the top, whether its AUC is not Sync's, its name's shift, and its
    numbers in words.
    """
    return {condition: _picture(row) for condition, row in measured.items()}


def _picture(row: Mapping[str, list[float]]) -> dict[str, Any]:
    speeds, aucs = [math.log(each[0]) for each in row.values()], [root(each[3]) for each in row.values()]
    left, right = min(*speeds, -0.3) - 0.12, max(*speeds, 0.3) + 0.12
    top, bottom = max(*aucs, 0.03), min(*aucs, -0.05)

    def across(speed: float) -> float:
        return round(100 * (math.log(speed) - left) / (right - left), 1)

    def down(auc: float) -> float:
        return round(6 + 86 * (top - root(auc)) / (top - bottom), 1)

    names: list[tuple[float, float]] = []
    dots = {}
    for name, numbers in sorted(row.items(), key=lambda each: -each[1][3]):
        x, y = across(numbers[0]), down(numbers[3])
        line = y * HEIGHT / 100
        if name in NAMED:
            while any(abs(line - other) < LINE and abs(place - x) < 40 for place, other in names):
                line += 1
            names.append((x, line))
        differs, shift = not (sound(numbers) and numbers[4] <= 0), round(line - y * HEIGHT / 100)
        speed, auc, text = words(numbers)
        dots[name] = x, y, differs, shift, f"{name}: {speed} Sync's speed, AUC − Sync's {auc}: {text}"
    columns = [(across(speed), f"{speed:g}×") for speed in SPEEDS]
    rows = [(down(auc), f"{auc:+g}".replace("-", "−") if auc else "Sync's AUC") for auc in AUCS]
    x, y = ([each for each in marks if 0 < each[0] < most] for marks, most in ((columns, 100), (rows, 92)))
    return {"dots": dots, "x": x, "y": y}


def winners(measured: Measured) -> list[tuple[str, str, str, str]]:
    """For each condition the fastest protocols without a measurable loss of AUC, those that are faster but lose, and the speed
    of an all-reduce, with which readers compare; combinations of protocols are left out, `=` joins identical ones."""
    rows = []
    for condition, row in measured.items():
        row = {name: row[name] for name in members() if name in row}
        speed = best(row)
        first = [name for name, numbers in row.items() if sound(numbers) and numbers[0] > 0.98 * speed]
        faster = sorted((numbers[0], name) for name, numbers in row.items() if numbers[0] > 1.02 * speed)
        then = ", ".join(f"{name} {more:.2f}× ({rounded(row[name][3], 4)})" for more, name in faster[:-4:-1])
        usual = f"{row['all-reduce'][0]:.2f}×" if "all-reduce" in row else ""
        names = ", ".join(" = ".join(identical) for _, identical in groupby(first, row.get))
        rows.append((condition, f"{names}: {speed:.2f}×", then or "none", usual))
    return rows
