"""Anybody's clicks: files with named columns, of which one says whether there was a click.

What no option names is found: text and whole numbers are ids, numbers with decimals are inputs, and the user gets a report.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from data_prep.any_log import AnyLog
from data_prep.dataset import Dataset
from data_prep.job import Job, Options
from data_prep.source import RawFile
from lib.errors import BadOption, nearest
from lib.streams import stream


@dataclass(frozen=True, kw_only=True)
class ClickOptions(Options):
    """What only a user's own files need."""

    label: str = ""
    """The column that says whether there was a click."""
    positive: float | None = None
    """The label from which on it is a click; None: labels are 0 and 1."""
    numbers: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    bags: list[str] = field(default_factory=list)
    """COLUMN:SEPARATOR, of columns with several ids; the lists of parquet are found."""
    skip: list[str] = field(default_factory=list)
    time: str = ""
    """The column by which rows are cut into days; without one, at random."""
    columns: list[str] = field(default_factory=list)
    """The names of the columns where the file has no header."""
    delimiter: str = ""
    days: int = 10
    """Of as many rows each; the last is judged by."""
    longest: int = 20
    """Ids of a bag that are kept, the first."""

    def __post_init__(self):
        super().__post_init__()
        for name, (least, most) in {"days": (2, 366), "longest": (1, 1000)}.items():
            if not least <= getattr(self, name) <= most:
                raise BadOption(f"--{name} is {getattr(self, name)}; expected {least} to {most}")


_CALLED = {".csv", ".tsv", ".txt", ".parquet"}


class AnyClicks(Dataset):
    """One file or several of one's own, with a header."""

    name: ClassVar = "clicks"
    title: ClassVar = "any click log: CSV, TSV or parquet with a header, also compressed by gzip"
    where: ClassVar = "your own; data_prep/README.md is the guide"
    licence: ClassVar = "yours"
    files: ClassVar = (RawFile("clicks.csv"),)
    gzip: ClassVar = True
    roles: ClassVar = ("test",)
    options: ClassVar = ClickOptions
    several: ClassVar = True
    takes: ClassVar = Dataset.takes | {
        *("buckets", "min_count", "count_bits", "train_days", "label", "positive", "numbers", "ids", "bags", "skip"),
        *("time", "columns", "delimiter", "days", "longest"),
    }

    @classmethod
    def sources(cls, raw: Path) -> list[tuple[Path, RawFile | None]]:
        """A file, or all of a folder that are called as such files are."""
        if raw.is_dir():
            found = [path for path in sorted(raw.iterdir()) if _CALLED & set(path.suffixes)]
            if not found:
                raise BadOption(f"there is no {', '.join(sorted(_CALLED))} file in {raw}")
            return [(path, None) for path in found]
        if not raw.exists():
            beside = [path.name for path in raw.parent.glob("*") if path.is_file()]
            raise BadOption(f"there is no {raw}; {nearest(raw.name, beside)}")
        return [(raw, None)]

    @classmethod
    def settled(cls, options: ClickOptions, path: Path) -> ClickOptions:
        """The user's options, and what goes without saying of this kind of file."""
        return options

    @classmethod
    def work(cls, job: Job) -> dict[str, Any]:
        paths = [path for path, _ in job.files]
        if twice := {path for path in paths if sum(path.samefile(other) for other in paths) > 1}:
            raise BadOption(f"{min(twice)} is given twice")
        return AnyLog(job, cls.settled(job.options, paths[0]), paths).work()

    @classmethod
    def twin(cls, raw: Path, rows: int, seed: int) -> dict[str, Any]:
        """clicks.csv of a shop, whose truth is in what its columns say."""
        generator = stream(seed, "own clicks")
        user, item = (np.minimum(generator.zipf(1.3, rows), 500) for _ in range(2))
        price, tags = np.round(generator.lognormal(2, 1, rows), 2), generator.integers(0, 12, (rows, 3))
        logit = -1.5 + np.sin(user) + np.sin(3 * item) + 0.4 * (np.log(price) - 2) + np.cos(tags).sum(1) / 2
        click = generator.random(rows) < 1 / (1 + np.exp(-logit))
        raw.mkdir(parents=True, exist_ok=True)
        with (raw / "clicks.csv").open("w") as file:
            file.write("time,user,item,price,tags,click\n")
            for at, row in enumerate(zip(user, item, price, tags.tolist(), click.astype(int), strict=True)):
                u, i, p, bag, c = row
                file.write(f"{1_700_000_000 + at * 60},u{u},{i},{p},{'|'.join(f't{tag}' for tag in bag)},{c}\n")
        return {"rows": rows, "clicks": int(click.sum())}
