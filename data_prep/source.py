"""Official raw files: where they come from, under which terms, how large they are, and what their bytes must be."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

from lib.errors import BadOption


@dataclass(frozen=True, slots=True)
class RawFile:
    """A file that the user downloads. What nobody has published stays None, and is said to be so."""

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


GZIP = "a gzip file"


def find(raw: Path, name: str) -> Path:
    """The file of that name under the raw folder; the raw path may also be the file itself."""
    raw = Path(raw)
    path = raw / name if raw.is_dir() else raw
    if not path.is_file():
        raise BadOption(f"there is no file {path}; `python -m data_prep --list` says where to get it")
    return path


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
