"""A data set to copy: a click log whose rows have a day, a label, two numbers and three categories."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from data_prep.clicks import ClickLog, Part
from data_prep.parse import INTEGER, LABEL, NUMBER, TEXT, Layout, Rows
from data_prep.source import RawFile
from lib.streams import stream

_COLUMNS = {"day": NUMBER, "clicked": LABEL, "age": NUMBER, "price": NUMBER}
_COLUMNS |= {"country": TEXT, "shop": INTEGER, "article": INTEGER}
LAYOUT = Layout(tuple(_COLUMNS), tuple(_COLUMNS.values()), ",", ",".join(_COLUMNS).encode())


class Mine(ClickLog):
    """Add it to `_KINDS` of `data_prep/datasets.py`."""

    name: ClassVar = "mine"
    title: ClassVar = "my clicks"
    where: ClassVar = "where to download it, and what to give: the folder with clicks.csv"
    licence: ClassVar = "what its owners allow"
    files: ClassVar = (RawFile("clicks.csv"),)
    days: ClassVar = 3

    @classmethod
    def layout(cls, path: Path) -> Layout:
        return LAYOUT

    @classmethod
    def dense(cls, layout: Layout) -> tuple[str, ...]:
        """The numbers that are inputs: the day is none."""
        return ("age", "price")

    @classmethod
    def day_of(cls, part: Part, at: np.ndarray, rows: Rows) -> np.ndarray:
        day = rows.numbers[:, 0]
        return np.where((day >= 0) & (day < cls.days), day, -1)  # -1: the row is set aside, and reported

    @classmethod
    def twin(cls, raw: Path, rows: int, seed: int) -> dict[str, Any]:
        """Raw files of the same form with a known truth, so that tests need no download."""
        generator = stream(seed, "mine")
        age, price = generator.integers(18, 80, rows), generator.integers(1, 500, rows)
        clicked = generator.random(rows) < np.where(age > 40, 0.6, 0.2)
        columns = np.arange(rows) * cls.days // rows, clicked.astype(int), age, price
        columns += (np.array(["de", "fr", "it"])[age % 3], generator.integers(0, 20, rows), price * 7)
        lines = (",".join(map(str, row)) for row in zip(*columns, strict=True))
        raw.mkdir(parents=True, exist_ok=True)
        (raw / "clicks.csv").write_text("\n".join([LAYOUT.header.decode(), *lines]) + "\n")
        return {"rows": rows, "clicks": int(clicked.sum())}
