"""What a data set is to this package: its raw files, how they are prepared, and its synthetic twin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from data_prep import source
from data_prep.job import Job, Options
from data_prep.source import RawFile
from lib.errors import BadOption


class Dataset(ABC):
    """One data set. A class with no state: everything that a run needs is in its options."""

    name: ClassVar[str]
    title: ClassVar[str]
    where: ClassVar[str]
    """Where to download it, and what to do then."""
    licence: ClassVar[str]
    files: ClassVar[tuple[RawFile, ...]]
    """The files that are read; `describe` shows the archives beside them."""
    archives: ClassVar[tuple[RawFile, ...]] = ()
    """What is downloaded, where that is not the files themselves."""
    some_suffice: ClassVar[bool] = False
    """Whether any of the files can be prepared without the others."""
    takes: ClassVar[frozenset[str]] = frozenset({"sample", "max_rejects", "workers"})
    """The options that mean something here."""

    @classmethod
    def sources(cls, raw: Path) -> list[tuple[Path, RawFile | None]]:
        """The raw files, in their order; with `some_suffice` those that are there."""
        if not cls.some_suffice:
            return [(source.find(raw, file.name), file) for file in cls.files]
        if not raw.is_dir():
            return [(source.find(raw, raw.name), None)]
        found = [(raw / file.name, file) for file in cls.files if (raw / file.name).is_file()]
        if not found:
            raise BadOption(f"there is none of {', '.join(file.name for file in cls.files)} in {raw}")
        return found

    @classmethod
    def folders(cls, raw: Path) -> list[Path]:
        """The folders whose files are the data, where they are too many to be named."""
        return []

    @classmethod
    def prepare(cls, raw: Path, out: Path, options: Options) -> dict[str, Any]:
        """Writes the prepared files and returns the manifest."""
        raw = Path(raw)
        with Job(cls.name, cls.sources(raw), Path(out), options, cls.folders(raw)) as job:
            return job.manifest or cls.work(job)

    @classmethod
    @abstractmethod
    def work(cls, job: Job) -> dict[str, Any]:
        """The preparation itself; ends with `job.finish`."""

    @classmethod
    @abstractmethod
    def twin(cls, raw: Path, rows: int, seed: int) -> dict[str, Any]:
        """Writes synthetic raw files in the same format and returns what is known of their truth."""

    @classmethod
    def describe(cls) -> str:
        lines = [f"{cls.name}: {cls.title}", f"  get it: {cls.where}", f"  licence: {cls.licence}"]
        if cls.archives:
            lines += ["  archives:", *(f"    {file.describe()}" for file in cls.archives)]
        return "\n".join([*lines, "  files:", *(f"    {file.describe()}" for file in cls.files)])
