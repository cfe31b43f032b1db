"""Knowledge graphs: triples of head, relation and tail, in three files.

Prepared, a split's triples are int32 (triples, 3), head, relation, tail, and entities and relations are numbered from 0.
"""

import csv
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from data_prep import lines, partitions, truth
from data_prep.dataset import Dataset
from data_prep.job import Job
from data_prep.lines import Span
from data_prep.rejects import reject
from lib.paths import write_atomic
from lib.progress import Progress
from lib.tasks import metrics
from lib.tasks.graph import Graph, GraphDistribution, draw_graph

SPLITS = ("train", "valid", "test")
SCHEMA = {"triples": ("<i4", (3,))}

_CHUNK = 1 << 16  # triples written at once


class Form(NamedTuple):
    """How a file is laid out."""

    delimiter: str | None = "\t"
    """What stands between two names; None: any white space."""
    places: tuple[int, int, int] = (0, 1, 2)
    """The fields of head, relation and tail."""
    fields: int = 3
    header: bool = False
    """Whether the first line names the fields."""


class NamedTriples(Dataset):
    """Triples of names, between tabs. Numbers are given in the order of first appearance in train, valid, test."""

    unpacks: ClassVar = True
    real_size: ClassVar[tuple[int, int, int, int]]
    """The real one's entities, relations, training triples and held-out triples."""

    @classmethod
    def splits(cls, job: Job) -> list[tuple[str, Path, Form]]:
        """The files, training first."""
        return [(split, path, Form()) for split, (path, _) in zip(SPLITS, job.files, strict=True)]

    @classmethod
    def work(cls, job: Job) -> dict[str, Any]:
        entities: dict[str, int] = {}
        relations: dict[str, int] = {}
        records, unseen, known = [], {}, (0, 0)
        with Progress(None, cls.name, "triples") as progress:
            for split, path, form in cls.splits(job):
                record, new = _number(job, split, path, form, entities, relations, known, progress)
                known = known if split != "train" else (len(entities), len(relations))
                if split != "train":
                    unseen[split] = new
                records.append(record)
        for name, ids in (("entities", entities), ("relations", relations)):
            table = pa.table({"name": pa.array(ids, pa.string())})
            write_atomic(job.out / f"{name}.parquet", lambda path, table=table: parquet.write_table(table, path))
        return job.finish(
            records,
            [job.out / "entities.parquet", job.out / "relations.parquet"],
            kind="triples",
            schema={name: [dtype, list(shape)] for name, (dtype, shape) in SCHEMA.items()},
            entities=len(entities),
            relations=len(relations),
            unseen_in_training=unseen,
        )

    @classmethod
    def twin(cls, raw: Path, rows: int, seed: int) -> dict[str, Any]:
        """A synthetic graph of about as many triples an entity; CRLF, as the real files have them."""
        drawn, facts = synthetic_graph(cls.real_size, rows, seed)
        for split, triples in splits(drawn, cls.real_size[3]).items():
            text = "".join(f"/m/{h:05x}\t/relation/{r}\t/m/{t:05x}\r\n" for h, r, t in triples.tolist())
            raw.mkdir(parents=True, exist_ok=True)
            (raw / f"{split}.txt").write_bytes(text.encode())
        return truth.save(raw, facts)


def _number(
    job: Job,
    split: str,
    path: Path,
    form: Form,
    entities: dict[str, int],
    relations: dict[str, int],
    known: tuple[int, int],
    progress: Progress,
) -> tuple[dict[str, Any], int]:
    """One file as numbers; how many of its triples hold an entity or relation beyond the `known`."""
    writer = partitions.Writer(job.out, f"{SPLITS.index(split):05}", SCHEMA, split="split")
    bad, read, unseen, first = [], 0, 0, 1 + form.header
    buffer: list[tuple[int, int, int]] = []

    def flush() -> int:
        triples = np.array(buffer, np.int32).reshape(-1, 3)
        writer.append(split, {"triples": triples})
        buffer.clear()
        new = (triples[:, 0] >= known[0]) | (triples[:, 1] >= known[1]) | (triples[:, 2] >= known[0])
        return int(new.sum())

    try:
        for place, block in enumerate(lines.blocks(Span(path))):
            job.check()
            texts = block.tobytes().split(b"\n")[form.header and not place : -1]
            if job.options.sample is not None:
                texts = texts[: job.options.sample - read]
            for text in texts:
                read += 1
                fault, names = _names(text, form)
                if fault:
                    bad.append(reject(path.name, read + first - 1, fault, text))
                    job.limit.check(bad[-1:])
                    continue
                head, relation, tail = names
                buffer.append(
                    (
                        entities.setdefault(head, len(entities)),
                        relations.setdefault(relation, len(relations)),
                        entities.setdefault(tail, len(entities)),
                    )
                )
                if len(buffer) == _CHUNK:
                    unseen += flush()
            progress.advance(len(texts))
            if read == job.options.sample:
                break
        unseen += flush()
        return writer.commit(file=path.name, read=read, rejects=bad), unseen
    finally:
        writer.close()


def _names(text: bytes, form: Form) -> tuple[str | None, list[str]]:
    """Head, relation and tail of a line, or what is wrong with it."""
    try:
        names = fields(text.removesuffix(b"\r").decode(), form.delimiter)
    except UnicodeDecodeError:
        return "not UTF-8", []
    if len(names) != form.fields:
        return "wrong column count", []
    names = [names[place] for place in form.places]
    return (None if all(names) else "an empty name"), names


def fields(line: str, delimiter: str | None) -> list[str]:
    """A line's fields; between commas and semicolons, they may be quoted."""
    return next(csv.reader([line], delimiter=delimiter), []) if delimiter in (",", ";") else line.split(delimiter)


def synthetic_graph(full: tuple[int, int, int, int], rows: int, seed: int) -> tuple[Graph, dict[str, Any]]:
    """Draw a graph with `rows` triples in all, of the shape of the real one, and compute the MRR of its latent scores."""
    share = rows / (full[2] + full[3])
    held_out = max(2, round(rows * full[3] / (full[2] + full[3])))
    plan = GraphDistribution(
        entities=max(40, round(full[0] * share)),
        relations=max(3, min(full[1], round(full[1] * share**0.5))),
        triples=max(1, rows - held_out),
        evaluation_triples=held_out,
        exponent=0.8,
        rank=8,
        sharpness=4.0,
        world=seed,
    )
    drawn = draw_graph(plan)
    places = []
    for side in (0, 2):
        query, relation, target = drawn.held_out[:, 2 - side], drawn.held_out[:, 1], drawn.held_out[:, side]
        scores = (drawn.entities[query] * drawn.relations[relation]) @ drawn.entities.T
        places.append(metrics.ranks(scores, target, drawn.true_answers(query, relation, side=side)))
    facts = {"seed": seed, "entities": plan.entities, "relations": plan.relations}
    return drawn, facts | {"mrr_truth": metrics.ranking_metrics(np.concatenate(places))["mrr"]}


def splits(drawn: Graph, held_out: int) -> dict[str, np.ndarray]:
    """Training, validation and test triples; the held-out ones are divided in two."""
    half = len(drawn.held_out) // 2
    return {"train": drawn.train, "valid": drawn.held_out[:half], "test": drawn.held_out[half:]}
