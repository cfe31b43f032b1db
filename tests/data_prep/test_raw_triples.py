"""Knowledge graphs: numbers for names, and numbers that must be in range."""

import gzip
import shutil
import tarfile

import numpy as np
import pytest
from pyarrow import parquet

from data_prep import manifest, reading
from data_prep.any_triples import Triples
from data_prep.cifar import Cifar10
from data_prep.fb15k237 import FB15k237
from data_prep.freebase86m import Freebase86m
from data_prep.job import Options
from data_prep.wn18rr import WN18RR
from lib.errors import BadOption, Damaged
from lib.tasks import prepared_datasets
from lib.tasks.graph import read_graph
from lib.tasks.prepared_datasets import Partitions
from tests.data_prep.prepared_folders import pack, rejected, whole


def rejected_lines(out):
    return [(row["line"], row["reason"]) for row in rejected(out)]


def test_names_are_numbered_as_they_appear(raw, tmp_path):
    raw("train.txt", "b\tlikes\ta\r\nz\tknows\tb\r\n")
    raw("valid.txt", b"b\tknows\tnew\nb\tknows\tz\nb\tknows\nb\tknows\t\nb\t\xff\tz\n")
    folder = raw("test.txt", "a\thates\tb")
    made = FB15k237.prepare(folder, tmp_path / "out", Options())
    graph = Partitions(tmp_path / "out", "triples")
    assert graph.take("train", "triples").tolist() == [[0, 0, 1], [2, 1, 0]]
    assert graph.take("valid", "triples").tolist() == [[0, 1, 3], [0, 1, 2]]
    assert graph.take("test", "triples").tolist() == [[1, 2, 0]]
    assert (graph.manifest["entities"], graph.manifest["relations"]) == (4, 3)
    assert made["unseen_in_training"] == {"valid": 1, "test": 1}
    assert parquet.read_table(tmp_path / "out" / "entities.parquet")["name"].to_pylist() == ["b", "a", "z", "new"]
    assert made["counts"] == {"read": 8, "written": 5, "rejected": 3}
    assert manifest.check(tmp_path / "out") == []
    (tmp_path / "out" / "relations.parquet").unlink()
    assert manifest.check(tmp_path / "out") == [f"{tmp_path / 'out' / 'relations.parquet'}: missing"]
    assert rejected_lines(tmp_path / "out") == [(3, "wrong column count"), (4, "an empty name"), (5, "not UTF-8")]


def test_numbers_stay_below_their_counts(raw, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "STRETCH", 9)
    raw("train.txt", "0\t1\t0\n2\t1\t1\n3\t0\t0\n0\t1\t2\n-1\t0\t0\n1\t\t0\n0\t2\t1\nx\t0\t0\n")
    raw("valid.txt", "1\t2\t0\n")
    raw("test.txt", "2\t0\t1\n")
    raw("entity2id.txt", "3\na\t0\n")
    folder = raw("relation2id.txt", "2\n")
    made = Freebase86m.prepare(folder, tmp_path / "out", Options())
    graph = Partitions(tmp_path / "out", "triples")
    # The files have the relation last.
    assert graph.take("train", "triples").tolist() == [[0, 0, 1], [2, 1, 1], [0, 1, 2]]
    assert graph.take("train", "triples", slice(1, 2)).tolist() == [[2, 1, 1]]
    assert graph.take("valid", "triples").tolist() == [[1, 0, 2]]
    assert [line for line, _ in rejected_lines(tmp_path / "out")] == [3, 4, 5, 6, 8]
    assert made["counts"] == {"read": 10, "written": 5, "rejected": 5}
    with pytest.raises(BadOption, match="expected how many there are"):
        Freebase86m.prepare(raw("entity2id.txt", "a\t0\n"), tmp_path / "other", Options())


@pytest.mark.parametrize("kind", [FB15k237, WN18RR, Freebase86m])
def test_one_file_is_no_set_of_three(kind, raw, tmp_path):
    path = raw("train.txt", "a\tr\tb\n") / "train.txt"
    with pytest.raises(BadOption, match=rf"{kind.name} has \d files, train.txt, .*; give their folder, not .*train"):
        kind.prepare(path, tmp_path / "out", Options())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("inside", ["", "FB15k-237/"])
@pytest.mark.parametrize("packing", ["tar.gz", "zip"])
def test_an_archive_is_read_as_its_folder_would_be(packing, inside, raw, tmp_path):
    folder = raw("train.txt", "a\tr\tb\n")
    raw("valid.txt", "b\tr\ta\n")
    raw("test.txt", "a\ts\ta\n")
    path = tmp_path / f"it.{packing}"
    pack(path, packing, {inside + file.name: file for file in folder.iterdir()})
    made = FB15k237.prepare(path, tmp_path / "out", Options())
    assert made["counts"]["written"] == 3
    assert FB15k237.prepare(path, tmp_path / "out", Options()) == made  # and it is the same the next time
    assert Partitions(tmp_path / "out", "triples").take("test", "triples").tolist() == [[0, 1, 0]]
    assert [fault for fault in manifest.check_raw(FB15k237, path) if "train.txt" in fault]
    with pytest.raises(BadOption, match=r"it\.\S+ holds .*train.txt.*; expected one folder with data_batch_1.bin"):
        Cifar10.prepare(path, tmp_path / "other", Options())


def test_what_would_be_unpacked_elsewhere_is_refused(tmp_path):
    (tmp_path / "train.txt").write_text("a\tr\tb\n")
    path = tmp_path / "it.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(tmp_path / "train.txt", "../../train.txt")
    with pytest.raises(Damaged, match=r"it.tar cannot be unpacked: \.\./\.\./train.txt would lie outside of its"):
        FB15k237.prepare(path, tmp_path / "out", Options())


TRIPLES = [["ann", "likes", "bob"], ["bob", "likes", "cy"], ["cy", "knows", "ann"]]


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("\n".join("\t".join(each) for each in TRIPLES), ""),
        ("\r\n".join(" ".join(each) for each in TRIPLES), ""),
        ("\n".join(";".join(each) for each in TRIPLES), "hrt"),
        ("\n".join(",".join((h, t, r)) for h, r, t in TRIPLES), "htr"),
        ("weight,Tail,Head,relation\n" + "".join(f"0.5,{t},{h},{r}\n" for h, r, t in TRIPLES), ""),
        ("subject\tobject\tpredicate\n" + "".join(f"{h}\t{t}\t{r}\n" for h, r, t in TRIPLES), "htr"),
        ("head,relation,tail\n" + "".join(f'"{h}",{r},"{t}"\n' for h, r, t in TRIPLES), ""),
    ],
)
def test_any_triples_are_read(text, order, raw, tmp_path):
    made = Triples.prepare(raw("mine.csv", text) / "mine.csv", tmp_path / "out", Options(order=order))
    assert made["counts"] == {"read": 3, "written": 3, "rejected": 0}
    assert whole(Partitions(tmp_path / "out", "triples"), "triples").tolist() == [[0, 0, 1], [1, 0, 2], [2, 1, 0]]
    assert parquet.read_table(tmp_path / "out" / "entities.parquet")["name"].to_pylist() == ["ann", "bob", "cy"]


def test_the_files_of_a_graph_are_told_by_their_names_or_given(raw, tmp_path):
    raw("train.tsv", "a\tr\tb\n")
    raw("held.tsv.gz", gzip.compress(b"b\tr\ta\n"))
    folder = raw("dev.csv", "head,relation,tail\na,r,a\nb,,b\n")
    made = Triples.prepare(folder, tmp_path / "one", Options())
    assert [part["split"] for part in made["partitions"]] == ["train", "valid"]
    assert rejected_lines(tmp_path / "one") == [(3, "an empty name")]
    held_out = {"test": folder / "held.tsv.gz", "valid": folder / "dev.csv"}
    made = Triples.prepare(folder / "train.tsv", tmp_path / "two", Options(), held_out)
    assert {part["split"]: part["rows"] for part in made["partitions"]} == {"train": 1, "valid": 1, "test": 1}
    with pytest.raises(BadOption, match=r"train.tsv is given twice, for training and as the test file"):
        Triples.prepare(folder, tmp_path / "three", Options(), {"test": folder / "train.tsv"})
    with pytest.raises(BadOption, match="two valid files: "):
        Triples.prepare(folder, tmp_path / "three", Options(), {"valid": folder / "held.tsv.gz"})
    raw("train.txt", "a\tr\tb\n")
    with pytest.raises(BadOption, match=r"which is the train file, train.tsv or train.txt\?"):
        Triples.prepare(folder, tmp_path / "three", Options())


@pytest.mark.parametrize(
    ("text", "order", "sentence"),
    [
        ("a\tb\n", "", r"line 1: 'a\\tb' has 2 fields; expected head, relation and tail"),
        ("head,relation,tail\na,b,c\n", "htr", "gives another order than --order htr"),
        (b"\x00\xff\xfe", "", "line 1: not UTF-8; is this a text file?"),
    ],
)
def test_what_is_no_graph_is_told_where(text, order, sentence, raw, tmp_path):
    with pytest.raises(BadOption, match=sentence):
        Triples.prepare(raw("mine.txt", text) / "mine.txt", tmp_path / "out", Options(order=order))
    with pytest.raises(BadOption, match="--order is 'hr'; expected the letters h, r and t"):
        Options(order="hr")


def test_of_a_graph_that_is_one_file_a_tenth_is_held_out(raw, tmp_path):
    text = "".join(f"{n} {n % 3} {n + 1}\n" for n in range(50))
    Triples.prepare(raw("mine.txt", text) / "mine.txt", tmp_path / "out", Options())
    graph = read_graph(str(tmp_path / "out"), "test")
    assert (len(graph.train), len(graph.held_out)) == (45, 5)
    assert prepared_datasets.training_samples(str(tmp_path / "out")) == 45
    assert len(np.unique(np.concatenate([graph.train, graph.held_out]), axis=0)) == 50
    assert read_graph(str(tmp_path / "out"), "valid").held_out.tolist() == graph.held_out.tolist()


@pytest.mark.parametrize("kind", [FB15k237, WN18RR, Freebase86m, Triples])
def test_twins_come_back_whole(kind, tmp_path):
    facts = kind.twin(tmp_path / "raw", 900, 0)
    made = kind.prepare(tmp_path / "raw", tmp_path / "out", Options())
    assert made["counts"] == {"read": 900, "written": 900, "rejected": 0}
    graph = Partitions(tmp_path / "out", "triples")
    assert len(np.unique(whole(graph, "triples"), axis=0)) == 900
    assert graph.manifest["entities"] <= facts["entities"] and facts["mrr_truth"] > 0.1


def test_the_real_graph(samples, tmp_path):
    packed = samples / "kg" / "FB15k-237.conve.tar.gz"
    made = FB15k237.prepare(packed, tmp_path / "out", Options())
    assert made["counts"] == {"read": 310_116, "written": 310_116, "rejected": 0}
    graph = Partitions(tmp_path / "out", "triples")
    assert (graph.manifest["entities"], graph.manifest["relations"]) == (14_541, 237)
    assert [graph.rows(split) for split in ("train", "valid", "test")] == [272_115, 17_535, 20_466]
    assert {source["published"] for source in made["sources"]} == {"equal"}
    assert manifest.check_raw(FB15k237, packed) == []
    names = parquet.read_table(tmp_path / "out" / "entities.parquet")["name"].to_pylist()
    head, _, tail = graph.take("train", "triples", slice(0, 1))[0]
    assert (names[head], names[tail]) == ("/m/027rn", "/m/06cx9")
    shutil.unpack_archive(packed, tmp_path / "raw")
    with (tmp_path / "raw" / "test.txt").open("ab") as file:
        file.write(b"x\ty\tz\r\n")
    assert len(manifest.check_raw(FB15k237, tmp_path / "raw")) == 2  # size and digest


def test_openkes_count_line_gives_the_order_and_many_relations_are_told(tmp_path, capsys):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "train2id.txt").write_text("4\n0 1 0\n1 2 0\n2 3 0\n3 4 0\n")
    from data_prep.__main__ import main

    assert main(["triples", str(tmp_path / "raw"), str(tmp_path / "out")]) == 0
    assert "entities: 5\nrelations: 1" in (told := capsys.readouterr().out) and "warning" not in told
    assert main(["triples", str(tmp_path / "raw"), str(tmp_path / "other"), "--order", "hrt"]) == 0
    assert "warning: nearly as many relations as triples" in capsys.readouterr().out
