"""Knowledge graphs: numbers for names, and numbers that must be in range."""

from __future__ import annotations

import json
import tarfile

import numpy as np
import pytest
from pyarrow import parquet

from data_prep import manifest, reading
from data_prep.fb15k237 import FB15k237
from data_prep.freebase86m import Freebase86m
from data_prep.job import Options
from data_prep.wn18rr import WN18RR
from lib.data.prepared import PreparedTriples
from lib.errors import BadOption


def rejected(out):
    return [(row["line"], row["reason"]) for row in map(json.loads, (out / "rejects.jsonl").read_text().splitlines())]


def test_names_are_numbered_as_they_appear(raw, tmp_path):
    raw("train.txt", "b\tlikes\ta\r\nz\tknows\tb\r\n")
    raw("valid.txt", b"b\tknows\tnew\nb\tknows\tz\nb\tknows\nb\tknows\t\nb\t\xff\tz\n")
    folder = raw("test.txt", "a\thates\tb")
    made = FB15k237.prepare(folder, tmp_path / "out", Options())
    graph = PreparedTriples(tmp_path / "out")
    assert graph.triples("train").tolist() == [[0, 0, 1], [2, 1, 0]]
    assert graph.triples("valid").tolist() == [[0, 1, 3], [0, 1, 2]]
    assert graph.triples("test").tolist() == [[1, 2, 0]]
    assert (graph.entities, graph.relations) == (4, 3)
    assert made["unseen_in_training"] == {"valid": 1, "test": 1}
    assert parquet.read_table(tmp_path / "out" / "entities.parquet")["name"].to_pylist() == ["b", "a", "z", "new"]
    assert made["counts"] == {"read": 8, "written": 5, "rejected": 3}
    assert manifest.check(tmp_path / "out") == []
    (tmp_path / "out" / "relations.parquet").unlink()
    assert manifest.check(tmp_path / "out") == [f"{tmp_path / 'out' / 'relations.parquet'}: missing"]
    assert rejected(tmp_path / "out") == [(3, "wrong column count"), (4, "an empty name"), (5, "not UTF-8")]


def test_numbers_stay_below_their_counts(raw, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "STRETCH", 9)
    raw("train.txt", "0\t1\t0\n2\t1\t1\n3\t0\t0\n0\t1\t2\n-1\t0\t0\n1\t\t0\n0\t2\t1\nx\t0\t0\n")
    raw("valid.txt", "1\t2\t0\n")
    raw("test.txt", "2\t0\t1\n")
    raw("entity2id.txt", "3\na\t0\n")
    folder = raw("relation2id.txt", "2\n")
    made = Freebase86m.prepare(folder, tmp_path / "out", Options())
    graph = PreparedTriples(tmp_path / "out")
    # The files have the relation last.
    assert graph.triples("train").tolist() == [[0, 0, 1], [2, 1, 1], [0, 1, 2]]
    assert graph.triples("train", slice(1, 2)).tolist() == [[2, 1, 1]]
    assert graph.triples("valid").tolist() == [[1, 0, 2]]
    assert [line for line, _ in rejected(tmp_path / "out")] == [3, 4, 5, 6, 8]
    assert made["counts"] == {"read": 10, "written": 5, "rejected": 5}
    with pytest.raises(BadOption, match="expected how many there are"):
        Freebase86m.prepare(raw("entity2id.txt", "a\t0\n"), tmp_path / "other", Options())


@pytest.mark.parametrize("kind", [FB15k237, WN18RR, Freebase86m])
def test_twins_come_back_whole(kind, tmp_path):
    facts = kind.twin(tmp_path / "raw", 900, 0)
    made = kind.prepare(tmp_path / "raw", tmp_path / "out", Options())
    assert made["counts"] == {"read": 900, "written": 900, "rejected": 0}
    graph = PreparedTriples(tmp_path / "out")
    triples = np.concatenate([graph.triples(split) for split in graph.names])
    assert len(np.unique(triples, axis=0)) == 900
    assert graph.entities <= facts["entities"] and facts["mrr_planted"] > 0.1


def test_the_real_graph(samples, tmp_path):
    with tarfile.open(samples / "kg" / "FB15k-237.conve.tar.gz") as archive:
        archive.extractall(tmp_path / "raw", filter="data")
    made = FB15k237.prepare(tmp_path / "raw", tmp_path / "out", Options())
    assert made["counts"] == {"read": 310_116, "written": 310_116, "rejected": 0}
    graph = PreparedTriples(tmp_path / "out")
    assert (graph.entities, graph.relations) == (14_541, 237)
    assert [graph.rows(split) for split in ("train", "valid", "test")] == [272_115, 17_535, 20_466]
    assert {source["published"] for source in made["sources"]} == {"equal"}
    assert manifest.check_raw(FB15k237, tmp_path / "raw") == []
    names = parquet.read_table(tmp_path / "out" / "entities.parquet")["name"].to_pylist()
    head, _, tail = graph.triples("train", slice(0, 1))[0]
    assert (names[head], names[tail]) == ("/m/027rn", "/m/06cx9")
    with (tmp_path / "raw" / "test.txt").open("ab") as file:
        file.write(b"x\ty\tz\r\n")
    assert len(manifest.check_raw(FB15k237, tmp_path / "raw")) == 2  # size and digest
