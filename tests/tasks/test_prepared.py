"""Prepared files feed the models that there are."""

import numpy as np
import pytest
import torch

from data_prep.criteo_kaggle import CriteoKaggle
from data_prep.fb15k237 import FB15k237
from data_prep.job import Options
from lib.errors import BadOption, Damaged
from lib.store import sealed
from lib.tasks.batch import Batch
from lib.tasks.click_models import DLRM, TABLE, DeepFM
from lib.tasks.clicks_stream import FIELD_SHIFT
from lib.tasks.flat_model import FlatModel
from lib.tasks.graph import TABLE as ENTITY
from lib.tasks.graph import DistMult
from lib.tasks.prepared_datasets import Partitions, PreparedClicks


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


def batch_of(read):
    size = len(read.labels)
    return Batch.of(index=0, size=size, raw={TABLE: read.ids}, features={"dense": read.dense}, labels=read.labels)


@pytest.mark.parametrize("kind", [DeepFM, DLRM])
def test_click_models_learn_from_a_prepared_day(clicks, kind):
    batch = batch_of(clicks.read(2, slice(0, 100)))
    assert batch.size == 100
    shape = {"fields": len(clicks.fields), "dim": 4, "dense_features": clicks.dense_features, "hidden": (8,)}
    model = FlatModel(kind(**shape, seed=0))
    rows = {TABLE: np.full((len(batch.ids[TABLE]), kind.width(4)), 0.01, np.float32)}
    losses = []
    for _ in range(100):
        result = model.step(batch, rows)
        model.load(model.vector - 0.05 * result.dense)
        rows[TABLE] -= 0.5 * result.rows[TABLE]
        losses.append(result.loss)
    assert np.isfinite(losses).all() and losses[-1] < 0.8 * losses[0]


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
    batch = batch_of(clicks.read(3, chosen))
    np.testing.assert_array_equal(batch.ids[TABLE][batch.where[TABLE]], read.ids[chosen])


def test_triples_feed_distmult(triples):
    head, relation, tail = triples.take("train", "triples", np.arange(50)).T
    negatives = np.arange(10)
    batch = Batch.of(
        index=0,
        size=50,
        raw={ENTITY: np.concatenate((head, tail, negatives))},
        features={"relation": np.ascontiguousarray(relation)},
    )
    model = DistMult(relations=triples.manifest["relations"], dim=4, seed=0)
    rows = {ENTITY: torch.randn(len(batch.ids[ENTITY]), 4)}
    batch = batch.to(torch.device("cpu"))
    assert torch.isfinite(model.loss(batch, model(batch, rows)))
    assert max(head.max(), tail.max()) < triples.manifest["entities"]


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
    with pytest.raises(
        BadOption, match=r"raw.csv is a file; expected a folder .*data_prep clicks .*raw.csv FOLDER --label"
    ):
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
