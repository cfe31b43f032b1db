"""Freebase86m: the whole of Freebase as numbered triples, in the form that DGL-KE gives and Marius reads."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from data_prep import partitions, triples, truth
from data_prep.dataset import Dataset
from data_prep.job import Job
from data_prep.lines import first_line
from data_prep.parse import NUMBER, Layout
from data_prep.reading import Part, Reading, cut
from data_prep.source import RawFile
from lib.errors import BadOption
from lib.progress import Progress

LAYOUT = Layout(("head", "tail", "relation"), (NUMBER,) * 3, "\t")
"""The relation stands last, whatever the archive's own description says: so both systems read it."""


class Freebase86m(Dataset):
    """338,586,276 triples. Numbers are the files' own; entity2id.txt and relation2id.txt give how many there are."""

    name: ClassVar = "freebase86m"
    title: ClassVar = "Freebase86m, 338,586,276 triples of 86,054,151 entities and 14,824 relations"
    where: ClassVar = "https://data.dgl.ai/dataset/Freebase.zip; unpack it, and give the folder with train.txt"
    licence: ClassVar = "CC BY 2.5 (Freebase data dump)"
    archives: ClassVar = (RawFile("Freebase.zip"),)
    files: ClassVar = tuple(RawFile(f"{name}.txt") for name in ("train", "valid", "test", "entity2id", "relation2id"))

    @classmethod
    def work(cls, job: Job) -> dict[str, Any]:
        entities, relations = (_size(path) for path, _ in job.files[3:])
        parts = {part.key: part for part in cut(job, lambda path: LAYOUT, [f"{split}.txt" for split in triples.SPLITS])}
        with Progress(sum(part.rows for part in parts.values()), cls.name, "triples") as progress:
            records = job.parts(parts, lambda key: _prepare(job, parts[key], entities, relations, progress), progress)
        return job.finish(
            records,
            kind="triples",
            schema={name: [dtype, list(shape)] for name, (dtype, shape) in triples.SCHEMA.items()},
            entities=entities,
            relations=relations,
        )

    @classmethod
    def twin(cls, raw: Path, rows: int, seed: int) -> dict[str, Any]:
        """A synthetic graph, numbered; the held-out share is larger than the real one's tenth of a thousandth."""
        drawn, facts = triples.synthetic_graph(
            (86_054_151 // 100, 14_824 // 10, 300_000_000 // 100, 600_000), rows, seed
        )
        raw.mkdir(parents=True, exist_ok=True)
        for split, each in triples.splits(drawn, 0).items():
            text = "".join(f"{h}\t{t}\t{r}\n" for h, r, t in each.tolist())
            (raw / f"{split}.txt").write_text(text)
        for name, size in (("entity2id", facts["entities"]), ("relation2id", facts["relations"])):
            (raw / f"{name}.txt").write_text(f"{size}\n" + "".join(f"/{name[0]}/{at}\t{at}\n" for at in range(size)))
        return truth.save(raw, facts)


def _size(path: Path) -> int:
    first = first_line(path)
    if not first.isdigit() or not 0 < int(first) < 2**31:
        raise BadOption(f"{path}, line 1: {first[:40]!r}; expected how many there are")
    return int(first)


def _prepare(job: Job, part: Part, entities: int, relations: int, progress: Progress) -> dict[str, Any]:
    split = part.span.path.stem
    writer = partitions.Writer(job.out, part.key, triples.SCHEMA, split="split")
    limits = np.array([entities, entities, relations])
    reading = Reading(job, part, job.limit)
    try:
        for rows, at, block in reading:
            beyond = ((rows.numbers < 0) | (rows.numbers >= limits)).any(1)
            if beyond.any():
                reading.refuse(block, rows.lines[beyond], f"no entity below {entities} or relation below {relations}")
            writer.append(split, {"triples": rows.numbers[~beyond][:, [0, 2, 1]]})
            progress.advance(len(at))
        return writer.commit(file=part.span.path.name, read=reading.read, rejects=reading.rejects)
    finally:
        writer.close()
