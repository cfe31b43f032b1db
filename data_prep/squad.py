"""SQuAD v1.1 (Rajpurkar et al., 2016): questions on paragraphs, each with the span that answers it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from data_prep import partitions, truth
from data_prep.dataset import Dataset
from data_prep.job import Job
from data_prep.rejects import reject
from data_prep.source import RawFile
from lib.errors import Damaged
from lib.progress import Progress
from lib.streams import stream

SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "title": pa.string(),
        "context": pa.string(),
        "question": pa.string(),
        "answers": pa.list_(pa.string()),
        "starts": pa.list_(pa.int32()),
    }
)

_BETWEEN = re.compile(r"[\s,]*")
_READ = 1 << 20
_LARGEST = 64 << 20  # characters of an article: a thousand times what the largest has
_ROWS = 1000  # questions written at once


class Squad(Dataset):
    """The context stands next to each of its questions: parquet's dictionaries keep it once for a row group."""

    name: ClassVar = "squad"
    title: ClassVar = "SQuAD v1.1, 87,599 + 10,570 questions on Wikipedia paragraphs"
    where: ClassVar = "https://rajpurkar.github.io/SQuAD-explorer/dataset/ (train-v1.1.json, dev-v1.1.json)"
    licence: ClassVar = "CC BY-SA 4.0"
    some_suffice: ClassVar = True
    roles: ClassVar = ("test",)
    files: ClassVar = (
        RawFile("train-v1.1.json", 30_288_272, "3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955"),
        RawFile("dev-v1.1.json", 4_854_279, "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9"),
    )

    @classmethod
    def work(cls, job: Job) -> dict[str, Any]:
        files = {f"{place:05}": path for place, (path, _) in enumerate(job.files)}
        with Progress(None, cls.name, "questions") as progress:
            records = job.parts(files, lambda key: _prepare(job, key, files[key], progress), progress)
        schema = {field.name: str(field.type) for field in SCHEMA}
        return job.finish(records, kind="questions", schema=schema)

    @classmethod
    def twin(cls, raw: Path, rows: int, seed: int) -> dict[str, Any]:
        """Towns with facts: each question has one answer, which its paragraph states, so a perfect reader has them all."""
        raw.mkdir(parents=True, exist_ok=True)
        generator = stream(seed, "questions")
        for file, share in zip(cls.files, (rows - rows // 10, rows // 10), strict=True):
            articles: dict[int, list[dict]] = {}
            for at in range(0, share, 3):
                articles.setdefault(at // 30, []).append(_paragraph(generator, at, min(3, share - at)))
            data = [{"title": f"Region {number}", "paragraphs": each} for number, each in articles.items()]
            (raw / file.name).write_text(json.dumps({"data": data, "version": "1.1"}), encoding="utf-8")
        return truth.save(raw, {"seed": seed, "rows": rows, "exact_match_ceiling": 1.0})


def articles(path: Path) -> Iterator[dict[str, Any]]:
    """The elements of the file's `data`, one at a time."""
    decoder, text, at = json.JSONDecoder(), "", 0
    with path.open(encoding="utf-8") as file:

        def more() -> bool:
            nonlocal text, at
            piece = file.read(_READ)
            text, at = text[at:] + piece, 0
            if len(text) > _LARGEST:
                raise Damaged(
                    f"{path}: no article ends within {_LARGEST >> 20} million characters; is this SQuAD's JSON?"
                )
            return bool(piece)

        try:
            while not (begin := re.search(r'"data"\s*:\s*\[', text)):
                if not more():
                    raise Damaged(f'{path}: it has no list "data"; is this SQuAD\'s JSON?')
            at, number = begin.end(), 0
            while True:
                at = _BETWEEN.match(text, at).end()
                if at == len(text):
                    if not more():
                        raise Damaged(f"{path}: it ends after article {number}, within its list")
                    continue
                if text[at] == "]":
                    return
                try:
                    article, at = decoder.raw_decode(text, at)
                except json.JSONDecodeError as error:
                    if not more():
                        raise Damaged(
                            f"{path}: it ends within article {number}, or that is no JSON: {error}"
                        ) from error
                    continue
                yield article
                number += 1
        except UnicodeDecodeError as error:
            raise Damaged(f"{path}: not UTF-8: {error}") from error


def questions(articles: Iterator[dict[str, Any]]) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """Each question's path in the file, what is wrong with it (or None), and its row."""
    for a, article in enumerate(articles):
        for p, paragraph in enumerate(article["paragraphs"]):
            for q, question in enumerate(paragraph["qas"]):
                found = question.get("answers") or []
                row = {
                    "id": question.get("id"),
                    "title": article.get("title", ""),
                    "context": paragraph["context"],
                    "question": question.get("question"),
                    "answers": [answer.get("text") for answer in found],
                    "starts": [answer.get("answer_start") for answer in found],
                }
                yield f"data[{a}].paragraphs[{p}].qas[{q}]", _fault(row), row


def _fault(row: dict[str, Any]) -> str | None:
    for name in ("id", "context", "question"):
        if not isinstance(row[name], str) or not row[name].strip():
            return f"{name} is missing"
    if not row["answers"]:
        return "no answer"
    for text, start in zip(row["answers"], row["starts"], strict=True):
        if not isinstance(text, str) or not isinstance(start, int):
            return "an answer without text or start"
        if not text or start < 0 or row["context"][start : start + len(text)] != text:
            return "an answer does not stand where it is said to start"
    return None


def _prepare(job: Job, key: str, path: Path, progress: Progress) -> dict[str, Any]:
    split = "dev" if path in job.roles or path.name.startswith("dev") else "train"
    writer = partitions.TableWriter(job.out, key, SCHEMA, "split")
    bad, waiting, read = [], [], 0

    def flush() -> None:
        writer.append(split, {name: [row[name] for row in waiting] for name in SCHEMA.names})
        progress.advance(len(waiting))
        waiting.clear()

    try:
        for where, fault, row in questions(articles(path)):
            job.check()
            read += 1
            if fault:
                bad.append(reject(path.name, where, fault, json.dumps(row, ensure_ascii=False)))
                job.limit.check(bad[-1:])
            else:
                waiting.append(row)
            if len(waiting) == _ROWS:
                flush()
            if read == job.options.sample:
                break
        flush()
        return writer.commit(file=path.name, read=read, rejects=bad)
    except (AttributeError, KeyError, TypeError) as error:
        raise Damaged(f"{path}: after question {read}: not as SQuAD's JSON is: {error!r}") from error
    finally:
        writer.close()


def _paragraph(generator: Any, at: int, questions: int) -> dict[str, Any]:
    town = f"Town{at:05}"
    facts = {"river": f"Río{generator.integers(1000)}", "mayor": f"Name{generator.integers(1000)}"}
    facts["year"] = str(generator.integers(1000, 2000))
    forms = {
        "river": (f"{town} lies on the {facts['river']}.", f"On which river does {town} lie?"),
        "mayor": (f"Its mayor is {facts['mayor']}.", f"Who is the mayor of {town}?"),
        "year": (f"It was founded in {facts['year']}.", f"When was {town} founded?"),
    }
    context = " ".join(sentence for sentence, _ in forms.values())
    asked = [
        {
            "id": f"{at + place:08x}",
            "question": forms[name][1],
            "answers": [{"text": facts[name], "answer_start": context.index(facts[name])}],
        }
        for place, name in enumerate(list(forms)[:questions])
    ]
    return {"context": context, "qas": asked}
