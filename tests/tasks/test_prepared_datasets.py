"""Workloads on prepared folders: what is read, in which order, and what is held out."""

import json
import pickle

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import lib
from data_prep.criteo_kaggle import CriteoKaggle
from data_prep.fb15k237 import FB15k237
from data_prep.job import Options
from lib import VirtualCluster, workloads
from lib.errors import BadOption, Damaged
from lib.store import sealed
from lib.tasks import prepared_datasets
from lib.tasks.clicks_stream import FIELD_SHIFT
from lib.tasks.graph import read_graph
from lib.tasks.prepared_datasets import Partitions, PreparedClicks
from lib.tasks.text import read_questions
from lib.tasks.vision import read_images


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clicks")
    CriteoKaggle.twin(folder / "raw", 700, 0)
    CriteoKaggle.prepare(folder / "raw", folder / "out", Options(buckets=100))
    return PreparedClicks(folder / "out")


@pytest.fixture(scope="module")
def triples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("triples")
    FB15k237.twin(folder / "raw", 500, 0)
    FB15k237.prepare(folder / "raw", folder / "out", Options())
    return Partitions(folder / "out", "triples")


def test_a_batch_holds_the_rows_that_were_asked_for(clicks):
    read = clicks.read(3, slice(None))
    assert read.ids.dtype == np.int64 and read.dense.dtype == read.labels.dtype == np.float32
    assert (read.ids >> FIELD_SHIFT == np.arange(26)).all()
    assert (read.ids & (2**FIELD_SHIFT - 1)).max() <= 101
    raw = clicks.take(3, "dense", slice(None))
    np.testing.assert_allclose(read.dense, np.where(raw > 0, np.log1p(np.maximum(raw, 0)), 0), rtol=1e-6)
    chosen = np.array([7, 0, 7, 99])
    for one, other in zip(clicks.read(3, chosen)[:3], read[:3], strict=True):
        np.testing.assert_array_equal(one, other[chosen])


def test_rows_beyond_the_end_and_other_folders_are_errors(clicks, triples, tmp_path):
    with pytest.raises(BadOption, match="rows 0 to 100 of 3, which has 100"):
        clicks.read(3, np.arange(101))
    with pytest.raises(BadOption, match="rows -1 to 0 of 'train'"):
        triples.take("train", "triples", [-1, 0])
    with pytest.raises(BadOption, match="holds triples in format 2; expected clicks in format 2"):
        PreparedClicks(triples.folder)
    with pytest.raises(BadOption, match=r"there is no .*manifest.json"):
        Partitions(tmp_path)
    (tmp_path / "raw.csv").write_text("click,a\n1,2\n")
    with pytest.raises(BadOption, match=r"raw.csv is a file; expected a folder .*data_prep clicks .*FOLDER --label"):
        Partitions(tmp_path / "raw.csv")


def test_files_that_are_not_the_manifests_are_damaged(triples, tmp_path):
    manifest = sealed.load(triples.folder / "manifest.json")
    part = next(each for each in manifest["partitions"] if each["split"] == "train")
    (tmp_path / "manifest.json").write_text(sealed.text(manifest))
    target = tmp_path / part["folder"] / "triples.npy"
    target.parent.mkdir(parents=True)
    np.save(target, np.zeros((3, 3), np.int32))
    with pytest.raises(Damaged, match=r"triples.npy: it holds int32 \(3, 3\); its manifest says"):
        Partitions(tmp_path, "triples").take("train", "triples")
    target.unlink()
    with pytest.raises(Damaged, match=r"triples.npy"):
        Partitions(tmp_path, "triples").take("train", "triples")


def prepared(folder, kind, parts, schema, **facts):
    """A folder as data_prep leaves it: one part for each day or split, of arrays or, for questions, of rows."""
    listed = []
    for (axis, name), arrays in parts.items():
        place = folder / f"{axis}={name}" / "part-00000"
        place.mkdir(parents=True)
        if kind == "questions":
            parquet.write_table(pa.table(arrays), place / "rows.parquet")
        for array in schema:
            np.save(place / f"{array}.npy", arrays[array].astype(schema[array][0]))
        rows = len(next(iter(arrays.values())))
        listed.append({axis: name, "folder": f"{axis}={name}/part-00000", "rows": rows, "files": {}})
    manifest = {"plan": {"format": 2}, "kind": kind, "schema": schema, "partitions": listed, **facts}
    (folder / "manifest.json").write_text(sealed.text(manifest))
    return str(folder)


def clicks_folder(folder, sizes=(50, 30, 20), train_days=2, behaviours=False):
    """Sample n of all has the codes n and n + 1, the number n - 1, and is a click where n is even."""
    parts, first = {}, 0
    for day, size in enumerate(sizes):
        n = np.arange(first, first + size)
        arrays = {"ids": np.stack((n, n + 1), 1), "dense": (n - 1)[:, None], "labels": n % 2 == 0}
        if behaviours:
            arrays |= {"history": np.tile(n[:, None, None], (1, 3, 2)), "history_length": n % 4}
        parts["day", day] = arrays
        first += size
    schema = {"ids": ["<u4", [2]], "dense": ["<i4", [1]], "labels": ["|u1", []]}
    facts = {"fields": ["a", "b"], "dense": ["x"], "days": len(sizes), "train_days": train_days}
    if behaviours:
        schema |= {"history": ["<u4", [3, 2]], "history_length": ["<u2", []]}
        facts["history"] = {"length": 3, "fields": ["a", "b"]}
    return prepared(folder, "clicks", parts, schema, **facts)


def codes(ids):
    return ids & ((1 << FIELD_SHIFT) - 1)


def test_a_pass_over_clicks_holds_every_training_sample_once_day_after_day(tmp_path):
    log = prepared_datasets.read_clicks(clicks_folder(tmp_path), behaviours=False)
    assert (log.samples, len(log.fields), log.dense_features) == (80, 2, 1)
    epoch = np.concatenate([codes(log.train(place, 16, seed=1).ids)[:, 0] for place in range(0, 80, 16)])
    assert sorted(epoch[:50].tolist()) == list(range(50)) and sorted(epoch[50:].tolist()) == list(range(50, 80))
    assert epoch.tolist() != sorted(epoch.tolist())
    again, other, later = (codes(log.train(place, 80, seed=s).ids)[:, 0] for place, s in ((0, 1), (0, 2), (80, 1)))
    assert (again == epoch).all() and not (other == epoch).all() and not (later == epoch).all()
    assert [log.day(place) for place in (0, 49, 50, 79, 80, 130)] == [0, 0, 1, 1, 2, 3]


def test_a_sample_is_what_the_file_holds(tmp_path):
    drawn = prepared_datasets.read_clicks(clicks_folder(tmp_path), behaviours=False).train(0, 80, seed=0)
    n = codes(drawn.ids)[:, 0]
    assert (drawn.ids[:, 1] == (n + 1) | 1 << FIELD_SHIFT).all() and (drawn.labels == (n % 2 == 0)).all()
    np.testing.assert_allclose(drawn.dense[:, 0], np.log1p(np.maximum(n - 1, 0)), rtol=1e-6)


def test_blocks_are_shuffled_and_nothing_is_lost_between_them(tmp_path, monkeypatch):
    monkeypatch.setattr(prepared_datasets, "_BLOCK", 7)
    log = prepared_datasets.PreparedClickStream(clicks_folder(tmp_path), False)
    epoch = np.concatenate([codes(log.train(place, 1, seed=5).ids)[:, 0] for place in range(80)])
    assert sorted(epoch.tolist()) == list(range(80)) and len(set(epoch[:7].tolist()) - set(range(7))) > 0
    prepared_datasets._block_order_and_bounds.cache_clear()
    prepared_datasets._within_block.cache_clear()


@pytest.mark.parametrize(
    "sizes, train_days, most, trained, expected",
    [
        ((50, 30, 20), 2, 100, 80, [*range(80, 100)]),
        ((50, 30, 20), 2, 3, 80, [80, 89, 99]),
        ((50, 30), 2, 100, 77, [77, 78, 79]),
        ((0, 0, 40), 0, 100, 36, [36, 37, 38, 39]),
        ((0, 0, 40), 3, 100, 36, [36, 37, 38, 39]),
    ],
)
def test_the_days_after_training_are_held_out_or_the_last_tenth(sizes, train_days, most, trained, expected, tmp_path):
    """Days that lie all on one side of training's end, as those of one file of a set of days do, are trained on."""
    log = prepared_datasets.read_clicks(clicks_folder(tmp_path, sizes, train_days), behaviours=False)
    assert log.samples == trained and codes(log.held_out(most).ids)[:, 0].tolist() == expected


def test_too_few_rows_are_told(tmp_path):
    with pytest.raises(BadOption, match="has 1 rows; expected at least one to train on and one to evaluate"):
        prepared_datasets.read_clicks(clicks_folder(tmp_path, (1,), 1), behaviours=False)


@pytest.mark.parametrize("options, epochs", [({}, 1.0), ({"samples": 240}, 3.0)])
def test_a_click_log_is_passed_once_unless_more_is_asked_for_and_the_run_says_so(options, epochs, tmp_path):
    data = clicks_folder(tmp_path)
    assert workloads.get("criteo-deepfm", data=data, profile="full").samples == 80
    run = lib.train("criteo-deepfm", "sync", VirtualCluster(workers=2), data=data, batch_size=16, save=False, **options)
    assert run.summary["epochs"] == epochs and run.summary["samples"] == 80 * epochs


def test_the_papers_epochs_stand_at_full_and_smoke_stays_small(tmp_path, monkeypatch):
    monkeypatch.setattr(prepared_datasets, "training_samples", lambda path: 10_000_000_000 if path == "large" else 20)
    assert workloads.get("cifar10-wrn", data="small", profile="full").samples == 200 * 20
    assert workloads.get("freebase86m-graphsage", data="large", profile="full").samples == 10 * 10_000_000_000
    assert workloads.get("criteo-deepfm", data="large", profile="full").samples == 10_000_000_000
    assert workloads.get("cifar10-wrn", data="small").samples == 20
    assert workloads.get("criteo-deepfm", data="large").samples == workloads.get("criteo-deepfm").samples


def test_behaviours_come_with_the_target_and_with_what_others_were_shown(tmp_path):
    log = prepared_datasets.read_clicks(clicks_folder(tmp_path, behaviours=True), behaviours=True)
    drawn = log.train(0, 40, seed=0)
    n, columns = codes(drawn.ids)[:, 0], codes(drawn.ids)
    assert columns.shape == (40, 2 + 2 + 6 + 6) and (drawn.behaviours == n % 4).all()
    assert (columns[:, 2:4] == columns[:, :2]).all() and (columns[:, 4:10] == n[:, None]).all()
    assert (drawn.ids[:, 4:10] >> FIELD_SHIFT == np.array([0, 1] * 3)).all()
    passed = drawn.ids[:, 10:].reshape(40, 3, 2)
    assert set(map(tuple, passed.reshape(-1, 2).tolist())) <= set(map(tuple, drawn.ids[:, :2].tolist()))


def test_behaviours_that_are_not_there_are_an_error(tmp_path):
    with pytest.raises(BadOption, match="holds no past behaviours"):
        prepared_datasets.read_clicks(clicks_folder(tmp_path), behaviours=True)


@pytest.mark.parametrize("name", ["criteo-deepfm", "taobao-ffnn", "kwai-ffnn", "alimama-dien"])
def test_a_workload_trains_on_prepared_clicks(name, tmp_path):
    data = clicks_folder(tmp_path, behaviours=name == "alimama-dien")
    run = lib.train(name, "gba", VirtualCluster(workers=3), data=data, samples=170, batch_size=16, save=False)
    assert run.summary["samples"] == 170 and run.summary["auc"] >= 0 and "auc_ceiling" not in run.summary
    workload = workloads.get(name, data=data, batch_size=16, samples=170)
    assert [workload.batch(0, index).day for index in (0, 4, 5, 9)] == [0, 1, 2, 3]


def test_a_graph_is_read_with_what_must_be_filtered(tmp_path):
    rng = np.random.default_rng(0)
    parts = {("split", name): {"triples": rng.integers(9, size=(size, 3)) % (9, 2, 9)}
             for name, size in (("train", 40), ("valid", 5), ("test", 6))}  # fmt: skip
    data = prepared(tmp_path, "triples", parts, {"triples": ["<i4", [3]]}, entities=9, relations=2)
    graph = read_graph(data, "test")
    assert (len(graph.train), len(graph.held_out), len(graph.other_known), graph.nodes, graph.kinds) == (40, 6, 5, 9, 2)
    assert len(read_graph(data, "valid").held_out) == 5
    run = lib.train("fb15k-237-distmult", "sync", VirtualCluster(workers=2), data=data, samples=80, batch_size=8,
                    negatives=4, save=False)  # fmt: skip
    assert 0 < run.summary["mrr_raw"] <= run.summary["mrr"] <= 1 and "mrr_truth" not in run.summary


def test_images_come_in_epochs_and_their_colours_are_scaled(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"images": rng.integers(256, size=(40, 3, 8, 8)), "fine": np.arange(40) % 4}
    schema = {"images": ["|u1", [3, 8, 8]], "fine": ["|u1", []]}
    data = prepared(tmp_path, "images", {("split", "train"): arrays}, schema, classes={"coarse": 2, "fine": 4})
    real = read_images(data, 32)
    assert (len(real.train), len(real.test), real.classes) == (36, 4, 4)
    workload = workloads.get("cifar10-wrn", data=data, samples=72, batch_size=12)
    labels = np.concatenate([workload.batch(0, index).labels for index in range(6)])
    assert np.bincount(labels[:36]).tolist() == np.bincount(labels[36:]).tolist() == [9] * 4
    run = lib.train(workload, "ds-sync", VirtualCluster(workers=2), save=False)
    assert 0 <= run.summary["accuracy"] <= 1 and "accuracy_ceiling" not in run.summary


def test_questions_are_read_from_parquet(tmp_path):
    text = {
        "question": "Who barked?",
        "context": "Rex barked at the cat .",
        "answers": ["Rex", "rex"],
        "starts": [0, 0],
    }
    counts = {"train": 12, "dev": 3}
    parts = {("split", split): {name: [each] * count for name, each in text.items()} for split, count in counts.items()}
    data = prepared(tmp_path, "questions", parts, {})
    train, test = read_questions(data)
    assert (len(train), len(test)) == (12, 3) and train[0].answers == ("Rex", "rex")
    options = {"samples": 96, "batch_size": 4, "length": 16}
    run = lib.train("squad-bert", "sync", VirtualCluster(workers=1), data=data, save=False, **options)
    assert run.summary["em"] == run.summary["f1"] == 1.0  # one question is soon learnt


@pytest.mark.parametrize("name", ["criteo-deepfm", "fb15k-237-distmult", "cifar10-wrn", "squad-bert"])
def test_a_folder_without_a_manifest_says_what_would_be_right(name, tmp_path):
    with pytest.raises(BadOption, match=r"manifest\.json; expected a folder that `python -m data_prep` wrote"):
        workloads.get(name, data=str(tmp_path)).batch(0, 0)


def test_a_folder_that_is_prepared_anew_is_another_run(tmp_path, reports):
    data = clicks_folder(tmp_path / "data")
    options = {"data": data, "samples": 64, "batch_size": 16}
    first = lib.train("criteo-deepfm", "sync", VirtualCluster(workers=1), **options)
    assert len(list((reports / "runs").iterdir())) == 1
    assert [len(each) for each in first.provenance["files"].values()] == [64]
    manifest = tmp_path / "data" / "manifest.json"
    facts = sealed.load(manifest)
    manifest.write_text(sealed.text(json.loads(json.dumps(facts).replace('"x"', '"y"'))))
    prepared_datasets.read_clicks.cache_clear()
    lib.train("criteo-deepfm", "sync", VirtualCluster(workers=1), **options)
    assert len(list((reports / "runs").iterdir())) == 2


def test_a_workload_travels_light_whatever_it_has_read(tmp_path):
    workload = workloads.get("taobao-ffnn", data=clicks_folder(tmp_path, (5_000, 10)), samples=64, batch_size=16)
    workload.batch(0, 0)
    workload.evaluation_ids(0)
    assert len(pickle.dumps(workload)) < 2_000


@pytest.mark.parametrize(
    "workload, option",
    [
        ("criteo-deepfm", {"vocabulary": 50}),
        ("ctr-synthetic", {"days": 3}),
        ("alimama-dien", {"novelty": 1.0}),
        ("fb15k-237-distmult", {"world": 3}),
        ("cifar10-wrn", {"noise": 2.0}),
        ("squad-bert", {"kinds": 4}),
    ],
)
def test_an_option_of_the_synthetic_data_is_refused_beside_a_folder(workload, option, tmp_path):
    [name] = option
    with pytest.raises(BadOption, match=f"workload '{workload}': {name} would change nothing: it is of the synthetic"):
        lib.train(workload, "sync", "virtual", data=str(tmp_path), **option)
