import pickle

import numpy as np
import pytest
import torch

from lib import train, workloads
from lib.cluster.spec import Work
from lib.errors import BadOption
from lib.tasks.flat_model import FlatModel
from lib.tasks.workload import evaluate
from tests.tasks.gradients import zero_rows

GRAPH = {"samples": 5_000, "entities": 200, "relations": 4, "triples": 3_000, "evaluation_triples": 100}
SMALL = {
    "quadratic": {"samples": 1000},
    "ctr-synthetic": {"samples": 10_000, "vocabulary": 100, "evaluation_samples": 2_000},
    "kg-synthetic": GRAPH,
    **{name: GRAPH for name in workloads.ALL if name.startswith(("freebase", "fb15k"))},
    "private-youtubednn": {"samples": 5_000, "batch_size": 128, "evaluation_samples": 300},
}
every = pytest.mark.parametrize("name", workloads.ALL)


def small(name, **options):
    return workloads.get(name, **SMALL.get(name, {"samples": 10_000}) | options)


def arrays(batch):
    parts = [batch.ids, batch.where, batch.features, {} if batch.labels is None else {"labels": batch.labels}]
    return [part[key] for part in parts for key in sorted(part)]


def alike(a, b):
    return all(x.shape == y.shape and (x == y).all() for x, y in zip(arrays(a), arrays(b), strict=True))


@every
def test_a_batch_is_a_pure_function_of_seed_and_index(name):
    workload, twin = small(name), pickle.loads(pickle.dumps(small(name)))
    batch = workload.batch(3, 5)
    twin.batch(4, 0)
    assert alike(batch, twin.batch(3, 5)) and (batch.index, batch.size) == (5, workload.batch_size)
    assert not alike(batch, workload.batch(3, 6)) and not alike(batch, workload.batch(4, 5))


@every
def test_the_last_batch_is_short_and_the_stream_goes_on(name):
    workload = small(name, samples=100, batch_size=32)
    assert workload.batches() == 4 and workload.batches(64) == 2
    assert [workload.batch(0, index).size for index in range(6)] == [32, 32, 32, 4, 32, 32]
    assert workload.batch(0, 1, size=7).size == 7


@every
def test_a_model_comes_from_its_seed_and_takes_a_step(name):
    workload = small(name)
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    flat, again, other = (FlatModel(workload.model(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(flat.vector, again.vector) and not torch.equal(flat.vector, other.vector)
    batch = workload.batch(0, 0)
    rows = {table: np.ones((len(ids), workload.tables()[table].dim), np.float32) for table, ids in batch.ids.items()}
    result = flat.step(batch, rows)
    assert np.isfinite(result.loss) and len(result.dense) == flat.size and len(result.scores)
    assert {table: rows[table].shape for table in rows} == {table: g.shape for table, g in result.rows.items()}
    assert batch.ids.keys() == workload.tables().keys() == workload.evaluation_ids(0).keys()


@every
def test_work_grows_with_the_batch(name):
    one, two = small(name, batch_size=64).work(), small(name, batch_size=640).work()
    assert isinstance(one, Work) and 0 < one.flops < two.flops and 0 < one.bytes < two.bytes


def bad(name, **options):
    with pytest.raises(BadOption) as error:
        workloads.get(name, **options)
    return str(error.value)


@every
def test_bad_options_name_the_workload_and_the_field(name):
    assert bad(name, batch_size=0) == f"workload {name!r}: batch_size must be at least 1, not 0"
    assert "samples must be at least 1, not -5" in bad(name, samples=-5)
    assert "batch_size must be a whole number, not '32'" in bad(name, batch_size="32")
    assert "row_optimizer.lr: missing; Adam needs it" in bad(name, row_optimizer="adam")


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("quadratic", "condition", 0.5),
        ("quadratic", "noise", float("nan")),
        ("ctr-synthetic", "vocabulary", 0),
        ("ctr-synthetic", "days", 0),
        ("ctr-synthetic", "base_rate", 1.0),
        ("ctr-synthetic", "hidden", (0,)),
        ("ctr-synthetic", "hidden", 64),
        ("ctr-synthetic", "exponent", -1.0),
        ("kg-synthetic", "negatives", 0),
        ("kg-synthetic", "triples", 10**9),
        ("kg-synthetic", "by_degree", 1.5),
        ("kg-synthetic", "held_out", "train"),
        ("ctr-synthetic", "copies", 2**40),
        ("private-youtubednn", "novelty", 0.0),
        ("cifar10-wrn", "depth", 10),
        ("cifar10-wrn", "noise", 0.0),
        ("squad-bert", "heads", 3),
        ("squad-bert", "distractors", 7),
        ("squad-bert", "weights", "bert"),
    ],
)
def test_bad_values(name, option, value):
    message = bad(name, **{option: value})
    assert message.startswith(f"workload {name!r}: {option}") and " must be " in message
    assert message.endswith(f", not {value!r}") or option == "hidden"


def test_an_unknown_network_is_told_with_those_that_there_are():
    assert "model must be 'deepfm', 'dlrm', 'ffnn' or 'dien', not 'deepfn'" in bad("ctr-synthetic", model="deepfn")


def test_quadratic_knows_its_optimum():
    workload = workloads.get("quadratic", dim=5, condition=100.0, noise=0.5)
    model = workload.model(0)
    eigenvalues = torch.linalg.eigvalsh(model.matrix.double())
    assert (eigenvalues[-1] / eigenvalues[0]).item() == pytest.approx(100, rel=1e-3)
    assert workload.batch(0, 0, size=20_000).features["noise"].std() == pytest.approx(0.5, rel=0.02)
    model.weights.data = model.optimum + torch.tensor([3.0, 0, 0, 0, 4.0])
    assert evaluate(workload, model, {}, 0)["distance"] == pytest.approx(5, rel=1e-5)
    model.weights.data = model.optimum.clone()
    assert evaluate(workload, model, {}, 0)["loss"] == pytest.approx(0, abs=1e-10)
    assert workload.log_loss_and_label_sums(None, np.zeros(3)) is None


@pytest.mark.parametrize("days", [1, 3, 50])
def test_days_pass_in_order_and_a_batch_has_one(days):
    workload = small("ctr-synthetic", samples=1000, batch_size=100, days=days)
    passed = [workload.batch(0, index).day for index in range(10)]
    assert passed == sorted(passed) == [index * days // 10 for index in range(10)]
    assert workload.day(1000) == days


def test_clicks_have_the_shape_of_their_options():
    workload = small("ctr-synthetic", fields=26, dim=16, model="dlrm", hidden=[512, 256], dense_features=13)
    batch = workload.batch(0, 0)
    assert batch.where["feature"].shape == (128, 26) and batch.features["dense"].shape == (128, 13)
    assert workload.tables()["feature"].dim == 16 and small("ctr-synthetic").tables()["feature"].dim == 9
    assert workload.hidden == (512, 256) and hash(workload)


def test_clicks_observe_sums_the_log_loss():
    found = small("ctr-synthetic").log_loss_and_label_sums(*np.array([[1, 0], [0, 2]], np.float32))
    assert found == (pytest.approx(np.log(2) + np.log1p(np.exp(2))), 1)


def test_the_evaluation_is_of_the_next_day_and_its_ceiling_is_the_truth():
    workload = small("ctr-synthetic", evaluation_samples=20_000, drift=0.3)
    seeds = [evaluate(workload, workload.model(0), zero_rows(workload, seed), seed)["auc_ceiling"] for seed in (0, 1)]
    assert seeds[0] != seeds[1] and seeds == pytest.approx([seeds[0]] * 2, abs=0.02)
    assert seeds[0] > 0.75


@pytest.mark.parametrize(
    "name, metric", [("ctr-synthetic", "auc"), ("private-youtubednn", "auc"), ("cifar10-wrn", "accuracy")]
)
def test_metrics_by_labels_agree_with_those_under_the_truth(name, metric):
    """Over evaluations of twelve seeds by one untrained model, within four standard errors."""
    workload = small(name, evaluation_samples=400)
    model, found, random = workload.model(0).eval(), [], np.random.default_rng(0)
    for seed in range(12):
        ids = {table: each.size for table, each in workload.evaluation_ids(seed).items()}
        rows = {
            table: random.normal(size=(ids[table], spec.dim)).astype("f4") for table, spec in workload.tables().items()
        }
        metrics = evaluate(workload, model, rows, seed)
        assert metrics[f"expected_{metric}"] <= metrics[f"{metric}_ceiling"]
        found.append(metrics[metric] - metrics[f"expected_{metric}"])
    assert 0 < abs(np.mean(found)) < 4 * np.std(found, ddof=1) / np.sqrt(12)


def test_the_evaluation_is_of_the_days_clicks():
    workload = small("ctr-synthetic", evaluation_samples=20_000, drift=0.3)
    sample = workload.clicks.draw(20_000, seed=0, day=workload.days, part=f"evaluation {workload.days}")
    assert set(workload.evaluation_ids(0)["feature"]) == set(sample.ids.ravel())


def test_an_epoch_holds_every_triple_once():
    workload = small("kg-synthetic", triples=1000, batch_size=300)
    seen = []
    for index in range(20):
        batch = workload.batch(0, index, size=300)
        entities = batch.ids["entity"][batch.where["entity"]]
        assert len(entities) == 2 * 300 + workload.negatives
        seen.append(np.stack((entities[:300], batch.features["relation"], entities[300:600]), 1))
    seen = np.concatenate(seen)
    for epoch in range(6):
        part = seen[epoch * 1000 : (epoch + 1) * 1000]
        assert set(map(tuple, part.tolist())) == set(map(tuple, workload.graph.train.tolist()))


@pytest.mark.parametrize("name", ["ctr-synthetic", "criteo-syn", "alimama-dien", "private-youtubednn"])
def test_a_stream_of_days_holds_the_same_samples_however_it_is_cut(name):
    # Day 3 begins with sample 134.
    workload = workloads.get(name, samples=400, days=9, drift=1.5, evaluation_samples=50)
    whole = samples_of(workload.draw(1, 96, 60, 0))
    for width in (1, 7, 20):
        parts = [samples_of(workload.draw(1, first, min(width, 156 - first), 0)) for first in range(96, 156, width)]
        for kind, array in whole.items():
            np.testing.assert_array_equal(np.concatenate([part[kind] for part in parts]), array)


def samples_of(batch):
    """What belongs to each sample alone, raw."""
    places = {table: batch.ids[table][where] for table, where in batch.where.items() if where.ndim == 2}
    kinds = {"labels": batch.labels} if batch.labels is not None else {}
    return places | kinds | {"behaviours": batch.features.get("behaviours", np.zeros(batch.size))}


def test_each_day_has_an_evaluation_of_its_own():
    workload = small("ctr-synthetic", samples=1000, days=4, drift=0.5)
    assert [workload.day_begins(day) for day in range(5)] == [0, 250, 500, 750, 1000]
    ids = [workload.evaluation_ids(0, day)["feature"] for day in (1, 2)]
    assert not np.array_equal(*ids)
    np.testing.assert_array_equal(workload.evaluation_ids(0)["feature"], workload.evaluation_ids(0, 4)["feature"])
    with pytest.raises(BadOption, match="no days"):
        small("quadratic").day_begins(1)


def test_each_label_of_several_has_an_output_that_learns_it():
    size = {"samples": 60_000, "vocabulary": 100, "fields": 5, "evaluation_samples": 4_000, "hidden": (32,)}
    kwai = workloads.get("kwai-ffnn", **size)
    found = train(kwai, "sync", "virtual", workers=2, save=False).summary
    assert found["auc_ceiling"] - 0.05 < found["expected_auc"] < found["auc_ceiling"]
    assert found["auc_2"] > 0.65 and found["auc_3"] > 0.65
    alone = train(workloads.get("kwai-ffnn", **size, tasks=1), "sync", "virtual", workers=2, save=False).summary
    assert "auc_2" not in alone and alone["auc"] == pytest.approx(found["auc"], abs=0.02)
    batch = kwai.batch(0, 0)
    assert batch.labels.shape == (kwai.batch_size, 3)
    sums = kwai.log_loss_and_label_sums(batch.labels, np.zeros((kwai.batch_size, 3)))
    assert sums == pytest.approx((kwai.batch_size * np.log(2), batch.labels[:, 0].sum()))


def test_several_labels_are_ffnns():
    with pytest.raises(BadOption, match="tasks must be 1 but for ffnn"):
        workloads.get("kwai-ffnn", network="deepfm")
