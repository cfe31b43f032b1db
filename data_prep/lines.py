"""Raw files as blocks of whole lines, in memory that does not depend on the file's size or on the disk's."""

import hashlib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lib.errors import Damaged

BLOCK = 2 << 20
"""Bytes of a block, about: what a kernel works on stays in the cache."""
LONGEST = 1 << 20
"""A line that is longer than this is a sign that the file is something else."""

_COMPRESSED = 1 << 18


class CutOff(Exception):
    """A compressed file ends before its stream does, or is damaged; `tail` is what there is of the row in which it does."""

    def __init__(self, tail: bytes, why: str):
        super().__init__(why)
        self.tail, self.why = tail, why


class Span(NamedTuple):
    """A stretch of a file: the lines that begin in it."""

    path: Path
    start: int = 0
    stop: int | None = None
    """None is the end of the file."""


def spans(path: Path, size: int) -> list[Span]:
    """The file in stretches of `size` bytes; a compressed one cannot be entered in its middle."""
    total = path.stat().st_size
    if compressed(path):
        return [Span(path)]
    return [Span(path, start, min(start + size, total)) for start in range(0, total, size)]


def compressed(path: Path) -> bool:
    return path.suffix == ".gz"


def blocks(span: Span, size: int = BLOCK) -> Iterator[np.ndarray]:
    """The lines of a stretch as uint8 arrays, each ending with a newline, whether or not the file does.

    Raises CutOff after the last whole line of a compressed file that is truncated.
    """
    if compressed(span.path):
        yield from _joined(span.path, inflate(span.path), size)
        return
    with span.path.open("rb", buffering=1 << 16) as file:
        if span.start:
            file.seek(span.start - 1)
            _line(file, span.path)
        at = file.tell()
        while span.stop is None or at < span.stop:
            data = file.read(size if span.stop is None else min(size, span.stop - at))
            if not data:
                break
            if data[-1] != 10:
                data += _line(file, span.path)
            at += len(data)
            yield np.frombuffer(data if data[-1] == 10 else data + b"\n", np.uint8)


def count(block: np.ndarray) -> int:
    """Lines of a block."""
    return int(np.count_nonzero(block == 10))


def head(block: np.ndarray, lines: int) -> np.ndarray:
    """The first lines of a block that has at least as many."""
    return block[: np.flatnonzero(block == 10)[lines - 1] + 1] if lines else block[:0]


def first_line(path: Path) -> bytes:
    """The first line without its end; empty for an empty file."""
    try:
        block = next(blocks(Span(path), 1 << 12), None)
    except CutOff as cut:
        if not cut.tail:
            raise Damaged(f"{path}: {cut.why}") from cut
        return cut.tail
    return b"" if block is None else block.tobytes().partition(b"\n")[0].rstrip(b"\r")


def sha256(path: Path, advance: Callable[[int], object] = lambda size: None) -> str:
    """The digest of a file; `advance` hears of every stretch that was read."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while data := file.read(1 << 20):
            digest.update(data)
            advance(len(data))
    return digest.hexdigest()


def inflate(path: Path) -> Iterator[bytes]:
    """The contents of a gzip file of one or more members, in pieces of at most a megabyte; raises CutOff at its fault."""
    with path.open("rb", buffering=0) as file:
        stream, data, begun = zlib.decompressobj(31), b"", False
        while True:
            ended = not data and not (data := file.read(_COMPRESSED))
            if not begun:
                if ended:
                    return
                data = data.lstrip(b"\0")  # members may be padded
                if not data:
                    continue
            begun = True
            try:
                piece = stream.decompress(data, 1 << 20)
            except zlib.error as error:
                raise CutOff(b"", f"damaged gzip ({error})") from error
            if ended and not piece and not stream.eof:
                raise CutOff(b"", "truncated gzip")
            data = stream.unconsumed_tail
            if stream.eof:
                data, stream, begun = stream.unused_data, zlib.decompressobj(31), False
            if piece:
                yield piece


def _joined(path: Path, pieces: Iterator[bytes], size: int) -> Iterator[np.ndarray]:
    """Pieces cut anywhere as blocks that end with a newline."""
    waiting: list[bytes] = []
    held = 0
    try:
        for piece in pieces:
            waiting.append(piece)
            held += len(piece)
            if held < size:
                continue
            data = b"".join(waiting)
            cut = data.rfind(b"\n") + 1
            if len(data) - cut > LONGEST:
                raise _endless(path)
            if cut:
                yield np.frombuffer(data, np.uint8, cut)
            waiting, held = [data[cut:]], len(data) - cut
    except CutOff as cut_off:
        whole, newline, tail = b"".join(waiting).rpartition(b"\n")
        if newline:
            yield np.frombuffer(whole + newline, np.uint8)
        raise CutOff(tail, cut_off.why) from None
    if held:
        data = b"".join(waiting)
        yield np.frombuffer(data if data[-1] == 10 else data + b"\n", np.uint8)


def _line(file, path: Path) -> bytes:
    line = file.readline(LONGEST)
    if len(line) == LONGEST and line[-1] != 10:
        raise _endless(path)
    return line


def _endless(path: Path) -> Damaged:
    return Damaged(f"{path}: no line ends within {LONGEST >> 20} MiB; is this the raw text file?")
