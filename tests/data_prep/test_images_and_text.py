"""CIFAR, ImageNet and SQuAD."""

import io
import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from pyarrow import parquet

import lib
from data_prep import manifest, squad
from data_prep.cifar import PIXELS, Cifar10, Cifar100
from data_prep.imagenet import ImageNet
from data_prep.job import Options
from data_prep.squad import Squad
from lib import VirtualCluster, workloads
from lib.errors import Damaged
from lib.tasks.prepared_datasets import Partitions
from lib.tasks.vision import EncodedImages, decode
from notebooks import study
from notebooks.dssync import quality
from tests.data_prep.prepared_folders import rejected


def table(out, split):
    parts = sorted((out / f"split={split}").glob("part-*/rows.parquet"))
    return [row for part in parts for row in parquet.ParquetFile(part).read().to_pylist()]


def test_records_by_hand(raw, tmp_path):
    pixels = bytes(range(256)) * 12
    raw("data_batch_2.bin", b"\x03" + pixels + b"\x0a" + pixels + b"\x09" + pixels + b"\x01\x02")
    folder = raw("test_batch.bin", b"\x00" + pixels)
    made = Cifar10.prepare(folder, tmp_path / "out", Options())
    assert made["counts"] == {"read": 5, "written": 3, "rejected": 2}
    found = [(row["line"], row["reason"]) for row in rejected(tmp_path / "out")]
    assert found == [(2, "a label beyond [10]"), (4, "truncated record")]
    images = Partitions(tmp_path / "out")
    assert images.take("train", "labels").tolist() == [3, 9]
    np.testing.assert_array_equal(images.take("test", "images").ravel(), np.arange(PIXELS) % 256)


@pytest.mark.parametrize("kind", [Cifar10, Cifar100])
def test_twins_of_images_can_be_told_apart(kind, tmp_path):
    facts = kind.twin(tmp_path / "raw", 1200, 0)
    made = kind.prepare(tmp_path / "raw", tmp_path / "out", Options())
    assert made["counts"] == {"read": 1200, "written": 1200, "rejected": 0}
    assert 0.85 < facts["accuracy_ceiling"] < 0.97
    images = Partitions(tmp_path / "out")
    labels = images.take("train", "labels")
    if kind is Cifar100:
        np.testing.assert_array_equal(images.take("train", "coarse"), labels // 5)
        return
    mean = np.stack([images.take("train", "images")[labels == each].mean(0) for each in range(10)])
    held, truth = images.take("test", "images").astype(float), images.take("test", "labels")
    distance = ((held[:, None] - mean) ** 2).sum((2, 3, 4))
    assert (distance.argmin(1) == truth).mean() > 0.8


def test_a_hundred_classes_are_the_paper_s_task_of_the_folder(tmp_path, monkeypatch):
    """CIFAR-100's fine classes are trained; DS-Sync's page takes the paper's batch and network of them, not CIFAR-10's."""
    Cifar100.twin(tmp_path / "raw", 1200, 0)
    Cifar100.prepare(tmp_path / "raw", tmp_path / "out", Options())
    monkeypatch.setattr(study, "PAGE", {**study.PAGE, "profile": "full", "data": str(tmp_path / "out")})
    made = quality.job("images", "DS-Sync", 0, steps=0, evaluations=1)["workload"]
    assert (made.name, made.batch_size, made.depth, made.width) == ("cifar100-wrn", 128, 26, 10)
    monkeypatch.setitem(study.PAGE, "profile", "smoke")
    case = {"task": "images", "mode": "BSP", "seed": 0}
    job = quality.job(**case, steps=4, evaluations=1)
    assert job["workload"].model(0).last.weight.shape[0] == 100
    run = lib.train(**job, save=False)
    ends = quality.ends(run, **case)
    data = pd.DataFrame([case | {"mode": mode} | ends for mode in ("BSP", "ASP", "DS-Sync")])
    rows = quality.folder_rows(data, "table 2, folders")["here"]
    assert 0 < run.summary["top5"] < 1
    assert rows["CIFAR-100, accuracy", "BSP"] == f"{100 * run.summary['accuracy']:.2f}"
    assert rows["ImageNet, top-5", "BSP"] == "needs data=FOLDER of imagenet"


def test_encoded_images_keep_their_bytes(tmp_path):
    ImageNet.twin(tmp_path / "raw", 60, 0)
    folder = tmp_path / "raw" / "train" / "n00000003"
    (folder / "broken.JPEG").write_bytes(b"GIF89a")
    (folder / "empty.JPEG").touch()
    made = ImageNet.prepare(tmp_path / "raw", tmp_path / "out", Options())
    assert made["counts"] == {"read": 62, "written": 60, "rejected": 2}
    assert {(row["file"], row["reason"]) for row in rejected(tmp_path / "out")} == {
        ("train/n00000003/broken.JPEG", "neither JPEG nor PNG"),
        ("train/n00000003/empty.JPEG", "an empty file"),
    }
    rows = table(tmp_path / "out", "train")
    assert len(rows) == 48 and {row["label"] for row in rows} == set(range(10))
    for row in rows[:5]:
        assert row["image"] == (tmp_path / "raw" / "train" / row["name"].split("_")[0] / row["name"]).read_bytes()
    assert manifest.check(tmp_path / "out") == []


def test_encoded_images_are_decoded_when_they_are_asked_for(tmp_path):
    ImageNet.twin(tmp_path / "raw", 400, 0)
    ImageNet.prepare(tmp_path / "raw", tmp_path / "out", Options())
    images = EncodedImages(Partitions(tmp_path / "out", "encoded images").files("train", "rows.parquet"), 16)
    assert images.shape == (320, 3, 16, 16) and np.bincount(images.labels).tolist() == [32] * 10
    chosen = np.array([319, 0, 160, 0])
    taken = images[chosen]
    assert taken.dtype == np.uint8 and np.array_equal(taken[1], taken[3]) and np.array_equal(taken[0], images[-1:][0])
    first = table(tmp_path / "out", "train")[0]
    assert np.array_equal(decode(first["image"], 16), images[:1][0])
    small = {"side": 16, "samples": 1_200, "batch_size": 40, "depth": 8, "width": 1}
    workload = workloads.get("imagenet-wrn50-2", data=str(tmp_path / "out"), **small)
    run = lib.train(workload, "all-reduce", VirtualCluster(workers=2), save=False)
    assert run.summary["accuracy"] > 0.3  # ten classes of one colour each


def test_the_middle_of_a_picture():
    """Seven eighths of the shorter side: a black frame of a sixteenth is cut away."""
    pixels = np.zeros((160, 320, 3), np.uint8)
    pixels[10:150, 90:230] = 200
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    middle = decode(file.getvalue(), 32)
    assert (middle[:, 1:-1, 1:-1] == 200).all() and middle.min() > 100  # the filter reaches over the edge


def question(**changes):
    return {"id": "q", "question": "What?", "answers": [{"text": "über", "answer_start": 2}]} | changes


def test_questions_by_hand(raw, tmp_path, monkeypatch):
    monkeypatch.setattr(squad, "_READ", 7)  # an article never fits
    wrong = [question(answers=[{"text": "über", "answer_start": start}]) for start in (1, -4)]
    asked = [question(), question(answers=[]), *wrong, question(question=None)]
    paragraphs = [{"context": "A über b", "qas": asked[:2]}, {"context": "A über b", "qas": asked[2:]}]
    data = {"version": "1.1", "data": [{"title": "t", "paragraphs": []}, {"title": "u", "paragraphs": paragraphs}]}
    folder = raw("dev-v1.1.json", json.dumps(data, ensure_ascii=False, indent=1))
    made = Squad.prepare(folder, tmp_path / "out", Options())
    assert made["counts"] == {"read": 5, "written": 1, "rejected": 4}
    assert table(tmp_path / "out", "dev") == [
        {"id": "q", "title": "u", "context": "A über b", "question": "What?", "answers": ["über"], "starts": [2]}
    ]
    assert [(row["line"], row["reason"]) for row in rejected(tmp_path / "out")] == [
        ("data[1].paragraphs[0].qas[1]", "no answer"),
        ("data[1].paragraphs[1].qas[0]", "an answer does not stand where it is said to start"),
        ("data[1].paragraphs[1].qas[1]", "an answer does not stand where it is said to start"),
        ("data[1].paragraphs[1].qas[2]", "question is missing"),
    ]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ('{"version": "1.1"}', 'no list "data"'),
        ('{"data": [{"title": "t", "paragraphs": []}, {"title"', "ends within article 1"),
        ('{"data": [{"title": "t", "paragraphs": []}', "ends after article 1"),
        (b'{"data": [{"title": "\xff"}]}', "not UTF-8"),
        ('{"data": [{"title": "t"}]}', "not as SQuAD's JSON is: KeyError('paragraphs')"),
    ],
)
def test_what_is_no_squad_is_told_where(raw, tmp_path, data, sentence):
    with pytest.raises(Damaged) as error:
        Squad.prepare(raw("dev-v1.1.json", data), tmp_path / "out", Options())
    assert sentence in str(error.value) and "dev-v1.1.json" in str(error.value)


def test_a_twin_of_questions(tmp_path):
    Squad.twin(tmp_path / "raw", 100, 0)
    made = Squad.prepare(tmp_path / "raw", tmp_path / "out", Options())
    assert made["counts"] == {"read": 100, "written": 100, "rejected": 0}
    assert (len(table(tmp_path / "out", "train")), len(table(tmp_path / "out", "dev"))) == (90, 10)


def test_the_real_images(samples, tmp_path):
    made = Cifar10.prepare(samples / "cifar10" / "data_batch_1.from_jpeg.bin", tmp_path / "out", Options())
    assert made["counts"] == {"read": 10_000, "written": 10_000, "rejected": 0}
    labels = Partitions(tmp_path / "out").take("train", "labels")
    assert np.bincount(labels).tolist() == [1000] * 10


@pytest.mark.parametrize(
    ("name", "questions"), [("train-v1.1.subset44articles.json", 11_877), ("dev-v1.1.part1of2.json", 4_961)]
)
def test_the_real_questions(samples, tmp_path, name, questions):
    made = Squad.prepare(samples / "squad" / name, tmp_path / "out", Options())
    assert made["counts"] == {"read": questions, "written": questions, "rejected": 0}
