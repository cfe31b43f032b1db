"""Criteo's Display Advertising Challenge (Kaggle, 2014): seven days of clicks, of which the last is for testing."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from data_prep import click_twins, criteo
from data_prep.clicks import ClickLog, Part
from data_prep.parse import Layout, Rows
from data_prep.source import RawFile


class CriteoKaggle(ClickLog):
    """The file has no dates but is in order of time: it is cut into seven days of equally many rows."""

    name: ClassVar = "criteo-kaggle"
    title: ClassVar = "Criteo Display Advertising Challenge, 45,840,617 samples of 7 days, 25.6 % clicks"
    where: ClassVar = (
        "https://go.criteo.net/criteo-research-kaggle-display-advertising-challenge-dataset.tar.gz (also figshare "
        "5732310); unpack it, and give the folder with train.txt"
    )
    licence: ClassVar = "Criteo's terms of use, for research (shown before the download)"
    archives: ClassVar = (RawFile("dac.tar.gz", 4_576_820_670, md5="df9b1b3766d9ff91d5ca3eb3d23bed27"),)
    files: ClassVar = (RawFile("train.txt", md5="4dcfe6c4b7783585d4ae3c714994f26a"),)
    days: ClassVar = 7
    roles: ClassVar = ("test",)

    @classmethod
    def layout(cls, path: Path) -> Layout:
        return criteo.layout(path)

    @classmethod
    def day_of(cls, part: Part, at: np.ndarray, rows: Rows) -> np.ndarray:
        return at * cls.days // part.total

    @classmethod
    def twin(cls, raw: Path, rows: int, seed: int) -> dict[str, Any]:
        return click_twins.write_criteo(raw, ["train.txt"], click_twins.criteo_kaggle(rows), rows, seed)
