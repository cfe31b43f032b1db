"""Real data for workloads: a folder in, a data set out.

This is the one door between files and workloads. Each function takes the folder that the user gave as `data`, and returns what
the workload of that kind trains on; a folder that holds something else is an error that says what was looked for.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib.data.images import RealImages
from lib.data.questions import Question
from lib.data.triples import Graph
from lib.errors import BadOption

PARTS = ("train", "valid", "test")


def folder(path: str, kind: str, *expected: str) -> Path:
    """The folder, if it holds all the expected files."""
    place = Path(path).expanduser()
    missing = [name for name in expected if not (place / name).is_file()]
    if missing:
        what = f"{place} holds no {missing[0]}" if place.is_dir() else f"{place} is no folder"
        raise BadOption(f"data={path!r}: {what}; expected {kind}: a folder with {', '.join(expected)}")
    return place


@functools.lru_cache(maxsize=4)
def graph(path: str, held_out: str) -> Graph:
    """A knowledge graph from train.txt, valid.txt and test.txt: lines of head, relation and tail, parted by tabs.

    Entities and relations are numbered in the order of their first appearance, all heads before all tails.
    """
    place = folder(path, "a knowledge graph", *(f"{part}.txt" for part in PARTS))
    parts = {part: _triples(place / f"{part}.txt") for part in PARTS}
    everything = pd.concat(parts.values(), ignore_index=True)
    ends, entities = pd.factorize(np.concatenate((everything["head"], everything["tail"])))
    kinds, relations = pd.factorize(everything["relation"])
    triples = np.stack((ends[: len(everything)], kinds, ends[len(everything) :]), 1)
    pieces = np.split(triples, np.cumsum([len(parts[part]) for part in PARTS])[:-1])
    found = dict(zip(PARTS, pieces, strict=True))
    apart = "valid" if held_out == "test" else "test"
    return Graph(
        train=found["train"],
        held_out=found[held_out],
        apart=found[apart],
        nodes=len(entities),
        kinds=len(relations),
    )


def clicks(path: str, *, behaviours: bool):
    """Prepared clicks, with past behaviours where the workload wants them."""
    folder(path, "prepared clicks", "manifest.json")


def images(path: str) -> RealImages:
    """Images in memory."""
    folder(path, "prepared images", "manifest.json")


class RealQuestions(NamedTuple):
    train: list[Question]
    test: list[Question]


def questions(path: str) -> RealQuestions:
    """Questions in memory."""
    folder(path, "prepared questions", "manifest.json")


def _triples(path: Path) -> pd.DataFrame:
    columns = ["head", "relation", "tail", "more"]
    table = pd.read_csv(
        path,
        sep="\t",
        header=None,
        names=columns,
        index_col=False,
        dtype=str,
        quoting=csv.QUOTE_NONE,
        keep_default_na=False,
        na_values=[""],
        skip_blank_lines=False,
    )
    blank = table.isna().all(axis=1)
    bad = np.flatnonzero((table[columns[:3]].isna().any(axis=1) | table["more"].notna()) & ~blank)
    if len(bad):
        raise BadOption(f"{path}, line {bad[0] + 1}: expected head, relation and tail, parted by tabs")
    return table[~blank]
