"""Avazu's Click-Through Rate Prediction (Kaggle, 2014): ten days of clicks on mobile advertisements."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from data_prep import click_twins
from data_prep.clicks import ClickLog, Part
from data_prep.parse import HEX, INTEGER, LABEL, NUMBER, SKIP, Layout, Rows
from data_prep.source import RawFile

FIRST = 141021
"""The first day, as the hour column has it: YYMMDD."""

_COLUMNS = {
    "id": SKIP,
    "click": LABEL,
    "hour": NUMBER,
    "C1": INTEGER,
    "banner_pos": INTEGER,
    **dict.fromkeys(("site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category"), HEX),
    **dict.fromkeys(("device_id", "device_ip", "device_model"), HEX),
    **dict.fromkeys(("device_type", "device_conn_type", *(f"C{place}" for place in range(14, 22))), INTEGER),
}
LAYOUT = Layout(tuple(_COLUMNS), tuple(_COLUMNS.values()), ",", ",".join(_COLUMNS).encode())


class Avazu(ClickLog):
    """The hour gives the day; the hour of the day itself is no field here, and there are no dense inputs."""

    name: ClassVar = "avazu"
    title: ClassVar = "Avazu CTR Prediction, 40,428,967 samples of 10 days, 17.0 % clicks"
    where: ClassVar = (
        "https://www.kaggle.com/c/avazu-ctr-prediction/data (train.gz, after accepting the rules); give the folder with "
        "train.csv, or with train.gz"
    )
    licence: ClassVar = "the competition's rules on kaggle.com: for research, no redistribution"
    files: ClassVar = (RawFile("train.csv"),)
    days: ClassVar = 10
    gzip: ClassVar = True
    roles: ClassVar = ("test",)

    @classmethod
    def sources(cls, raw: Path) -> list[tuple[Path, RawFile | None]]:
        compressed = raw / "train.gz"
        if compressed.is_file() and not (raw / "train.csv").exists():
            return [(compressed, None)]
        return super().sources(raw)

    @classmethod
    def layout(cls, path: Path) -> Layout:
        return LAYOUT

    @classmethod
    def dense(cls, layout: Layout) -> tuple[str, ...]:
        return ()

    @classmethod
    def day_of(cls, part: Part, at: np.ndarray, rows: Rows) -> np.ndarray:
        day = rows.numbers[:, 0] // 100 - FIRST
        return np.where((day >= 0) & (day < cls.days), day, -1)

    @classmethod
    def twin(cls, raw: Path, rows: int, seed: int) -> dict[str, Any]:
        return click_twins.write_avazu(raw, rows, seed)
