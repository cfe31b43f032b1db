"""Anybody's knowledge graph: delimited files of head, relation and tail, by whatever name they go."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar

from data_prep import source
from data_prep.job import Job
from data_prep.lines import Span, blocks, first_line
from data_prep.source import RawFile
from data_prep.triples import SPLITS, Form, NamedTriples, fields
from lib.errors import BadOption

_WORDS = {
    "h": ("head", "h", "subject", "s", "source", "src", "from"),
    "r": ("relation", "r", "rel", "predicate", "p", "type", "label"),
    "t": ("tail", "t", "object", "o", "target", "dst", "to"),
}
_CALLED = {
    "train": ("train", "training", "train2id"),
    "valid": ("valid", "validation", "val", "dev", "valid2id"),
    "test": ("test", "testing", "test2id"),
}


class Triples(NamedTriples):
    """A training file, and a validation and a test file if there are any; each has its own delimiter and header."""

    name: ClassVar = "triples"
    title: ClassVar = "any knowledge graph, as delimited files of head, relation and tail"
    where: ClassVar = (
        "your own: give the folder (or the archive) with train, valid and test, as .txt, .tsv, .csv or any other; or the "
        "training file itself, with --valid FILE and --test FILE. Between tabs, commas, semicolons or spaces; a header that "
        "names head, relation and tail gives their order, else --order does. Without a file to test by, a tenth of the "
        "triples is held out when a workload reads them"
    )
    licence: ClassVar = "yours"
    files: ClassVar = tuple(RawFile(split) for split in SPLITS)
    gzip: ClassVar = True
    roles: ClassVar = ("valid", "test")
    takes: ClassVar = NamedTriples.takes | {"order"}
    real_size: ClassVar = (2_000, 12, 40_000, 2_000)

    @classmethod
    def opened(cls, raw: Path) -> AbstractContextManager[Path]:
        return source.unpacked(raw, [f"{name}*" for name in _CALLED["train"]])

    @classmethod
    def sources(cls, raw: Path) -> list[tuple[Path, RawFile | None]]:
        if raw.is_file():
            return [(raw, None)]
        found = []
        for split in SPLITS:
            called = [path for path in sorted(raw.glob("*")) if path.name.split(".")[0].lower() in _CALLED[split]]
            if len(called) > 1:
                raise BadOption(
                    f"which is the {split} file, {' or '.join(path.name for path in called)}? Give the training file itself, "
                    "with --valid FILE and --test FILE"
                )
            if not called and split == "train":
                raise source.missing(raw, ["train.txt", "train.tsv", "train.csv"])
            found += [(path, None) for path in called]
        return found

    @classmethod
    def splits(cls, job: Job) -> list[tuple[str, Path, Form]]:
        found = {}
        for place, (path, _) in enumerate(job.files):
            called = (split for split, names in _CALLED.items() if path.name.split(".")[0].lower() in names)
            split = job.roles.get(path) or ("train" if not place else next(called))
            if split in found:
                raise BadOption(f"two {split} files: {found[split]} and {path}")
            found[split] = path
        return [(split, found[split], form(found[split], job.options.order)) for split in SPLITS if split in found]


def form(path: Path, order: str = "") -> Form:
    """How a file is laid out, as its first line tells."""
    try:
        line = first_line(path).decode("utf-8-sig").strip()
        if counted := line.isdecimal():  # OpenKE's: how many follow, as head, tail, relation
            line = _second_line(path).decode()
    except UnicodeDecodeError as error:
        raise BadOption(f"{path}, line 1: not UTF-8; is this a text file?") from error
    delimiter = next((each for each in ("\t", ",", ";") if len(fields(line, each)) >= 3), None)
    names = [name.strip().lower() for name in fields(line, delimiter)]
    named = {kind: [place for place, name in enumerate(names) if name in words] for kind, words in _WORDS.items()}
    if all(len(places) == 1 for places in named.values()):
        places = tuple(named[kind][0] for kind in "hrt")
        if order and places != tuple(order.index(kind) for kind in "hrt"):
            raise BadOption(f"{path}, line 1: the header {line!r} gives another order than --order {order}")
        return Form(delimiter, places, len(names), header=True)
    if len(names) != 3:
        raise BadOption(
            f"{path}, line 1: {line[:80]!r} has {len(names)} fields; expected head, relation and tail between tabs, commas, "
            "semicolons or spaces, or a header that names them"
        )
    order = order or ("htr" if counted else "hrt")
    return Form(delimiter, tuple(order.index(kind) for kind in "hrt"), header=counted)


def _second_line(path: Path) -> bytes:
    return next(blocks(Span(path), 1 << 12)).tobytes().split(b"\n")[1].strip()
