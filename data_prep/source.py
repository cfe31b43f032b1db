"""Official raw files: where they come from, under which terms, how large they are, and what their bytes must be."""

import hashlib
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from lib.errors import BadOption, Damaged


@dataclass(frozen=True, slots=True)
class RawFile:
    """A file that the user downloads. What was not published stays None, and is reported as such."""

    name: str
    """Its path under the raw folder."""
    bytes: int | None = None
    sha256: str | None = None
    md5: str | None = None
    """Where the publisher gives only that."""

    def describe(self) -> str:
        size = f"{self.bytes:,} bytes" if self.bytes else "size not published"
        digest = f"sha256 {self.sha256}" if self.sha256 else f"md5 {self.md5}" if self.md5 else "checksum not published"
        return f"{self.name}  ({size}; {digest})"


GZIP = "a gzip file"
_PACKED = {
    b"PK\x03\x04": "a zip archive",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ\x00": "an xz file",
    b"7z\xbc\xaf": "a 7z archive",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"Rar!": "a rar archive",
}


def packed(path: Path) -> str | None:
    """What kind of archive or compressed file this is by its bytes, whatever it is called; None for any other file."""
    with path.open("rb") as file:
        begin = file.read(1 << 12)
    kind = "a tar archive"
    if begin[:2] == b"\x1f\x8b":
        begin, kind = _inflated(begin), "a tar.gz archive"
        if begin[257:262] != b"ustar":
            return GZIP
    if begin[257:262] == b"ustar":
        return kind
    return next((kind for start, kind in _PACKED.items() if begin.startswith(start)), None)


def _inflated(begin: bytes) -> bytes:
    try:
        return zlib.decompressobj(31).decompress(begin)
    except zlib.error:
        return b""


def missing(raw: Path, names: Sequence[str], itself: bool = True) -> BadOption:
    """The error that says which of the files there should be, and what there is instead; `itself`: whether a file under another
    name, or an archive, may be given in place of the folder."""
    if not raw.exists():
        return BadOption(f"there is no {raw}; `python -m data_prep --list` says where to get what belongs there")
    there = sorted(path.name for path in raw.iterdir() if path.is_file())
    instead = f"; there is {', '.join(there[:5])}{' ...' if there[5:] else ''}" if there else ""
    instead += ". If that is it under another name, give the file itself" if there and itself else ""
    wanted = " or ".join(names if len(names) < 4 else (names[0], "..."))
    return BadOption(
        f"there is no {wanted} in {raw}{instead}; `python -m data_prep --list` says which files are needed"
    )


def refuse_packed(path: Path, gzip: bool, then: str) -> None:
    """An archive is no data; a gzip file is where they are read as they are. `then` says what to give once it is unpacked."""
    kind = packed(path)
    if kind == GZIP and gzip:
        if path.suffix == ".gz":
            return
        raise BadOption(f"{path} is a gzip file under another name; call it {path.name}.gz, or unpack it")
    if kind:
        raise BadOption(f"{path} is {kind}; unpack it, and give {then}")


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Files and folders alone, and none outside; Python has a filter for that from 3.11.4 on."""
    archive.extraction_filter = getattr(tarfile, "data_filter", None)
    kept = [member for member in archive.getmembers() if member.isfile() or member.isdir()]
    for member in kept:
        if not (folder / member.name).resolve().is_relative_to(folder.resolve()):
            raise tarfile.TarError(f"{member.name} would lie outside of its folder")
    archive.extractall(folder, kept)


@contextmanager
def unpacked(raw: Path, names: Sequence[str]) -> Iterator[Path]:
    """The folder with the named files: the raw path itself or, while it is needed, what is in it where it is an archive."""
    if not raw.is_file() or not (tarfile.is_tarfile(raw) or zipfile.is_zipfile(raw)):
        yield raw
        return
    with TemporaryDirectory(prefix="data_prep-") as folder:
        try:
            if zipfile.is_zipfile(raw):
                with zipfile.ZipFile(raw) as archive:
                    archive.extractall(folder)
            else:
                with tarfile.open(raw) as archive:
                    _extract(archive, Path(folder))
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise Damaged(f"{raw} cannot be unpacked: {error}") from error
        time = raw.stat().st_mtime_ns
        for path in Path(folder).rglob("*"):
            os.utime(path, ns=(time, time))  # what was unpacked again is the same
        found = sorted({path.parent for name in names for path in Path(folder).rglob(name)})
        if len(found) != 1:
            held = sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())
            raise BadOption(
                f"{raw} holds {', '.join(held[:8])}{' ...' if held[8:] else ''}; expected one folder with {', '.join(names)}"
            )
        yield found[0]


def standing(raw: RawFile | None, sha256: str) -> str:
    """How a file's digest stands to the published one."""
    if raw is None or raw.sha256 is None:
        return "not published" if raw is None or raw.md5 is None else "only md5 is published: see --check"
    return "equal" if raw.sha256 == sha256 else f"differs from {raw.sha256}"


def verify(path: Path, raw: RawFile) -> list[str]:
    """What is wrong with a file by its published size and digest; empty if nothing is."""
    faults = []
    size = path.stat().st_size
    if raw.bytes is not None and size != raw.bytes:
        faults.append(f"{path}: {size:,} bytes, published {raw.bytes:,}")
    for kind in ("sha256", "md5"):
        published = getattr(raw, kind)
        if published is not None:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, kind).hexdigest()
            if found != published:
                faults.append(f"{path}: {kind} {found}, published {published}")
    return faults
