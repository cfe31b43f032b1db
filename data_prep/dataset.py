"""What a data set is to this package: its raw files, how they are prepared, and its synthetic twin."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
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
    """The files that are read; `describe` shows the archives next to them."""
    archives: ClassVar[tuple[RawFile, ...]] = ()
    """What is downloaded, where that is not the files themselves."""
    some_suffice: ClassVar[bool] = False
    """Whether any of the files can be prepared without the others."""
    unpacks: ClassVar[bool] = False
    """Whether the archive may be given as it is: its official form, and small."""
    gzip: ClassVar[bool] = False
    """Whether the files are read compressed by gzip, too."""
    roles: ClassVar[tuple[str, ...]] = ()
    """Held-out splits for which a file of its own can be given."""
    options: ClassVar[type[Options]] = Options
    takes: ClassVar[frozenset[str]] = frozenset({"sample", "max_rejects", "workers"})
    """The options that mean something here."""
    several: ClassVar[bool] = False
    """Whether several files may be given, one after another."""

    @classmethod
    def sources(cls, raw: Path) -> list[tuple[Path, RawFile | None]]:
        """The raw files, in their order; with `some_suffice` those that are there. The path may be that of a file itself."""
        names = [file.name for file in cls.files]
        if raw.is_file():
            if len(names) > 1 and not cls.some_suffice:
                raise BadOption(f"{cls.name} has {len(names)} files, {', '.join(names)}; give their folder, not {raw}")
            return [(raw, next((file for file in cls.files if file.name == raw.name), None))]
        found = [(raw / file.name, file) for file in cls.files if (raw / file.name).is_file()]
        lacking = [name for name in names if not (raw / name).is_file()]
        if lacking and not (cls.some_suffice and found):
            raise source.missing(raw, lacking, cls.some_suffice or cls.unpacks or len(names) == 1)
        return found

    @classmethod
    def folders(cls, raw: Path) -> list[Path]:
        """The folders whose files are the data, where they are too many to be named."""
        return []

    @classmethod
    def prepare(
        cls,
        raw: Path,
        out: Path,
        options: Options,
        held_out: Mapping[str, Path] | None = None,
        more: Sequence[Path] = (),
    ) -> dict[str, Any]:
        """Writes the prepared files and returns the manifest; `held_out` has the files of single splits, and `more` the files
        after the first where there are several."""
        with cls.opened(Path(raw)) as raw:
            files = [file for path in (raw, *more) for file in cls.sources(path)]
            given = {role: Path(path) for role, path in (held_out or {}).items()}
            for role, path in given.items():
                if not path.is_file():
                    raise BadOption(f"there is no {role} file {path}")
                if any(path.samefile(other) for other, _ in files):
                    raise BadOption(f"{path} is given twice, for training and as the {role} file")
            files += [(path, None) for path in given.values()]
            for path, _ in files:
                source.refuse_packed(path, cls.gzip, f"the folder with {', '.join(f.name for f in cls.files[:3])}")
            roles = {path: role for role, path in given.items()}
            with Job(cls.name, files, Path(out), options, cls.folders(raw), roles) as job:
                return job.manifest or cls.work(job)

    @classmethod
    def opened(cls, raw: Path) -> AbstractContextManager[Path]:
        """The raw path, or the folder with what is in its archive."""
        return source.unpacked(raw, [file.name for file in cls.files]) if cls.unpacks else nullcontext(raw)

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
