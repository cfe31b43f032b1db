"""Workloads on the real samples beside the checkout, prepared as a user prepares them; skipped where either is missing."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import lib
from lib import workloads
from lib.store.optim import Adagrad, Adam, Momentum
from lib.streams import uniform
from lib.tasks import prepared_datasets
from lib.tasks.graph import read_graph
from lib.tasks.text import read_questions
from tests.data_prep import plain_torch

DATA = Path(__file__).parent.parent.parent / "shared" / "data"
SEEDS = {"movielens": 5, "avazu": 8}
command = pytest.importorskip("data_prep.__main__", reason="preparation is not installed")

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="needs the real samples in ../shared/data")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The prepared folder of a data set, from the sample's files under their official names."""

    def prepare(name, **files):
        raw, out = tmp_path_factory.mktemp("raw"), tmp_path_factory.mktemp("prepared") / "out"
        for target, origin in files.items():
            shutil.copy(DATA / origin, raw / target)
        if name == "fb15k-237":
            shutil.unpack_archive(DATA / "kg" / "FB15k-237.conve.tar.gz", raw)
        assert command.main([name, str(raw), str(out)]) in (0, None)
        return str(out)

    return prepare


def test_distmult_on_fb15k_237_gains_in_a_tenth_of_its_run(prepared):
    data = prepared("fb15k-237")
    graph = read_graph(data, "test")
    assert (graph.nodes, graph.kinds) == (14_541, 237)
    assert (len(graph.train), len(graph.held_out), len(graph.other_known)) == (272_115, 20_466, 17_535)
    options = {"data": data, "samples": 272_115, "dim": 64, "evaluation_triples": 1_000}
    run = lib.train("fb15k-237-distmult", "sync", "local", workers=1, profile="full", save=False, **options)
    assert run.summary["mrr"] > 0.2 and run.summary["mrr_raw"] < run.summary["mrr"]


def test_deepfm_on_criteo(prepared):
    data = prepared("criteo-kaggle", **{"train.txt": "criteo_kaggle/head10k.train.txt"})
    log = prepared_datasets.read_clicks(data, behaviours=False)
    workload = workloads.get("criteo-deepfm", data=data, samples=log.samples, batch_size=64)
    batches = [workload.batch(0, index) for index in range(workload.batches())]
    held_out = log.held_out(10_000)
    # One pass and what is held out are the whole sample: 10,000 rows, 21.82 % of them clicks.
    assert sum(batch.size for batch in batches) + len(held_out.labels) == 10_000
    assert sum(float(batch.labels.sum()) for batch in batches) + float(held_out.labels.sum()) == 2_182
    run = lib.train(workload, "sync", "local", workers=1, save=False)
    assert run.summary["auc"] > 0.7


def test_a_wide_residual_network_learns_cifar(prepared):
    data = prepared("cifar-10", **{"data_batch_1.bin": "cifar10/data_batch_1.from_jpeg.bin"})
    options = {"data": data, "samples": 6_000, "batch_size": 32, "dense_optimizer": Momentum(lr=0.05)}
    run = lib.train("cifar10-wrn", "sync", "local", workers=1, save=False, **options)
    assert run.summary["accuracy"] > 0.25  # chance is 0.1


def test_bert_learns_questions_of_squad(prepared):
    files = {
        "train-v1.1.json": "squad/train-v1.1.subset44articles.json",
        "dev-v1.1.json": "squad/dev-v1.1.part1of2.json",
    }
    data = prepared("squad", **files)
    train, test = read_questions(data)
    assert (len(train), len(test)) == (11_877, 4_961)
    options = {"data": data, "samples": 2_400, "length": 96, "evaluation_samples": 200}
    run = lib.train("squad-bert", "sync", "local", workers=1, save=False, **options)
    first, last = run.history["train_loss"].dropna().iloc[[0, -1]]
    assert last < first - 0.2


@pytest.mark.parametrize("name, rows", [("movielens", "adagrad"), ("movielens", "adam"), ("avazu", "adagrad")])
def test_a_public_log_prepared_by_one_command_is_learnt_as_plain_torch_learns_it(name, rows, tmp_path):
    """The mean AUC of a few seeds, of one pass; plain torch reads the raw file itself, and has the split alone in common."""
    out = str(tmp_path / "out")
    if name == "movielens":
        assert command.main(["ratings", str(DATA / "movielens" / "u.data"), out]) == 0
        raw = pd.read_csv(DATA / "movielens" / "u.data", sep="\t", names=["user", "item", "rating", "time"])
        ids, labels = raw[["user", "item"]].to_numpy(), (raw.rating >= 4).to_numpy()
    else:
        path = DATA / "avazu" / "train_head8999.csv"
        assert command.main(["clicks", str(path), out, "--label", "click"]) == 0
        raw = pd.read_csv(path, dtype=str)
        ids, labels = raw.drop(columns=["id", "click"]).to_numpy(), (raw.click == "1").to_numpy()
    learnt = uniform(0, "day", 0, first=0, shape=(len(raw), 1))[:, 0] * 10 < 9
    ours, plain, own = [], [], {"adagrad": Adagrad(lr=0.05), "adam": Adam(lr=0.01)}[rows]
    for seed in range(SEEDS[name]):
        run = lib.train(
            "ctr-synthetic", "sync", "virtual", workers=1, data=out, seed=seed, row_optimizer=own, save=False
        )
        ours.append(run.summary["auc"])
        plain.append(plain_torch.auc(ids, labels, learnt, seed, rows))
    print(name, rows, ours, plain)
    assert abs(np.mean(ours) - np.mean(plain)) < 0.003
