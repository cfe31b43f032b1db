"""Criteo's 1 TB click logs: twenty-four days, a compressed file each."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from data_prep import click_twins, criteo
from data_prep.clicks import ClickLog, Part
from data_prep.parse import Layout, Rows
from data_prep.source import RawFile, missing
from lib.errors import BadOption


class Criteo1TB(ClickLog):
    """The day is in the file's name. Any of the days will do: what is not there is not prepared."""

    name: ClassVar = "criteo-1tb"
    title: ClassVar = "Criteo 1TB Click Logs, 4,373,472,329 samples of 24 days"
    where: ClassVar = (
        "https://huggingface.co/datasets/criteo/CriteoClickLogs (or https://ailab.criteo.com); give the folder with "
        "day_0.gz to day_23.gz, compressed or not"
    )
    licence: ClassVar = "CC BY-NC-SA 4.0"
    files: ClassVar = tuple(RawFile(f"day_{day}.gz") for day in range(24))
    days: ClassVar = 24
    some_suffice: ClassVar = True
    gzip: ClassVar = True

    @classmethod
    def sources(cls, raw: Path) -> list[tuple[Path, RawFile | None]]:
        if raw.is_file():
            return super().sources(raw)
        found: list[tuple[Path, RawFile | None]] = []
        for file in cls.files:
            paths = [path for path in (raw / file.name, raw / file.name.removesuffix(".gz")) if path.is_file()]
            found += [(path, file) for path in paths[:1]]
        if not found:
            raise missing(raw, ["day_0.gz ... day_23.gz"])
        return found

    @classmethod
    def layout(cls, path: Path) -> Layout:
        return criteo.layout(path)

    @classmethod
    def day_of(cls, part: Part, at: np.ndarray, rows: Rows) -> np.ndarray:
        number = part.span.path.name.removesuffix(".gz").removeprefix("day_")
        if not number.isdigit() or int(number) >= cls.days:
            raise BadOption(f"{part.span.path}: the name says no day; expected day_0.gz to day_{cls.days - 1}.gz")
        return np.full(len(at), int(number))

    @classmethod
    def twin(cls, raw: Path, rows: int, seed: int) -> dict[str, Any]:
        return click_twins.write_criteo(
            raw, [file.name for file in cls.files], click_twins.criteo_1tb(rows), rows, seed
        )
