"""Steps that are captured and replayed: on the CPU a replay is a call, over the same padded rows as on a CUDA device."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lib import LocalCluster, VirtualCluster, protocols, train, workloads
from lib.errors import BadOption
from lib.tasks import flat_model
from lib.tasks.flat_model import CapturedModel, FlatModel, padded_size
from tests import one_batch
from tests.toys import clicks, diagonal


def test_a_bucket_is_larger_than_what_it_is_for_by_at_most_an_eighth():
    rows = np.arange(5000)
    rooms = np.array([padded_size(int(each)) for each in rows])
    assert (rooms > rows).all() and (rooms[8:] <= 9 / 8 * rows[8:]).all() and len({*rooms}) < 90


def batches(task, count):
    """Batches of a workload, and random rows of theirs."""
    rng = np.random.default_rng(0)
    for index in range(count):
        batch = task.batch(0, index).to("cpu")
        shapes = {name: (len(batch.ids[name]), spec.dim) for name, spec in task.tables().items()}
        yield (
            batch,
            {name: torch.from_numpy(0.1 * rng.standard_normal(shape, np.float32)) for name, shape in shapes.items()},
        )


@pytest.mark.parametrize("name", [*workloads.ALL, "running statistics"])
def test_a_replayed_step_has_the_bits_of_the_eager_one(name):
    """Of every model, running statistics and buckets of the gradient included."""
    normed = {"norm": "running", "batch_size": 8, "side": 8, "evaluation_samples": 40, "classes": 3}
    task = one_batch.of(name) if name in workloads.ALL else workloads.get("cifar10-wrn", samples=96, **normed)
    models = [kind(task.model(0), pooling=task.bags()) for kind in (FlatModel, CapturedModel)]
    cuts, start, replays = models[0].buckets(3), models[0].vector.clone(), 0
    for batch, rows in batches(task, 12):
        found = []
        for model in models:
            parts = {}
            model.load(start)
            result = model.launch(batch, rows, cuts, parts.__setitem__)
            found.append((result, [parts[number] for number in range(len(cuts))]))
        (eager, expected), (result, parts) = found
        assert torch.equal(models[0].vector, models[1].vector)
        assert all(np.array_equal(*pair) for pair in zip(parts, expected, strict=True))
        for what in ("loss", "dense", "scores", "statistics"):
            here, there = getattr(result, what), getattr(eager, what)
            assert here is there is None or torch.equal(here, there), what
        assert result.rows.keys() == eager.rows.keys()
        assert all(torch.equal(result.rows[table], eager.rows[table]) for table in rows)
        replays += result.captured
    assert replays


def in_place(run):
    """A graph as a CUDA device has it, whose results lie where they always lie."""
    out = run()

    def replay():
        new = run()
        for name, each in new.rows.items():
            out.rows[name].copy_(each)
        for name in ("loss", "dense", "scores"):
            getattr(out, name).copy_(getattr(new, name))
        return out

    return replay


def test_a_replays_result_stays_when_the_next_one_comes(monkeypatch):
    task = one_batch.of("criteo-dlrm")
    model, (batch, rows) = CapturedModel(task.model(0)), next(batches(task, 1))
    monkeypatch.setattr(flat_model, "replay_of", in_place)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    model.device = SimpleNamespace(type="cuda")
    eager, _, result = (model.launch(batch, rows) for _ in range(3))
    again = model.launch(batch, {"feature": 2 * rows["feature"]})
    assert again.captured and not torch.equal(again.dense, eager.dense)
    assert all(torch.equal(getattr(result, name), getattr(eager, name)) for name in ("loss", "dense", "scores"))
    assert torch.equal(result.rows["feature"], eager.rows["feature"])


TRICKS = {
    "rows at no place": lambda score, batch, rows: score + sum(block.mean() for block in rows.values()),
    "rows of batches before": lambda score, batch, rows: score + sum(block.sum() for block in rows.values()),
    "how many rows there are": lambda score, batch, rows: score * len(rows["feature"]),
    "ids": lambda score, batch, rows: score + float(batch.ids["feature"][0]),
    "the batch's number": lambda score, batch, rows: score * (1 + batch.index),
    "the batch's day": lambda score, batch, rows: score * (1 + batch.day),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_a_model_that_reads_what_no_replay_has_cannot_be_captured(trick):
    """It trains otherwise, and the error says what to do."""
    task = one_batch.of("criteo-dlrm")
    module, (batch, rows) = task.model(0), next(batches(task, 1))
    score = module.forward
    module.forward = lambda batch, rows: TRICKS[trick](score(batch, rows), batch, rows)
    model, batch = CapturedModel(module), replace(batch, index=3, day=2)
    assert not model.launch(batch, rows).captured
    with pytest.raises(BadOption, match=r"cannot be captured .* places, features and labels .*; leave captured out"):
        model.launch(batch, rows)


def test_no_more_forms_are_captured_once_many_were_met():
    task = one_batch.of("criteo-dlrm")
    model, (batch, rows) = CapturedModel(task.model(0)), next(batches(task, 1))
    dim = rows["feature"].shape[1]
    for more in (0, *(int(1.4**power) for power in range(14, 31))):
        model.launch(batch, {"feature": torch.cat([rows["feature"], torch.zeros(more, dim)])})
    assert not any(model.launch(batch, rows).captured for _ in range(3))


MODELS = {name: {"model": name} for name in ("deepfm", "ffnn", "dlrm")} | {"bags": {"pooling": (1, 2, 3)}}


def both(workload, protocol, cluster, **options):
    """A run as it is, and captured."""
    options = {"seed": 2, "save": False, **options}
    runs = [train(workload, protocol, replace(cluster, captured=captured), **options) for captured in (False, True)]
    assert "steps_captured" not in runs[0].summary
    assert runs[1].summary["issued"] > runs[1].summary["steps_captured"] > runs[1].summary["issued"] / 2
    return runs


@pytest.mark.parametrize(
    "model, protocol", diagonal([*MODELS], ["sync", "gba", "s-easgd", "all-reduce", "hybrid", "ds-sync"])
)
def test_a_captured_run_has_the_bits_of_the_run(model, protocol):
    whole, captured = both(clicks(1600, 16, **MODELS[model]), protocol, VirtualCluster(workers=4, slowdown=0.6))
    assert captured.digest == whole.digest
    captured.summary.pop("steps_captured")
    assert str(captured.summary) == str(whole.summary)


@pytest.mark.parametrize("protocol", ["sequential", "oac"])
def test_a_captured_pipeline_has_the_bits_of_the_pipeline(protocol):
    task = workloads.get("kg-synthetic", entities=60, triples=600, dim=4, batch_size=16, negatives=4, samples=1600)
    whole, captured = both(task, protocol, VirtualCluster())
    assert captured.digest == whole.digest


def test_threads_capture_each_for_themselves():
    rule = protocols.get("gba")
    whole, captured = both(clicks(1600, 16), rule, LocalCluster(workers=1, threads=1))
    assert captured.digest == whole.digest
    four = train(clicks(1600, 16), rule, LocalCluster(workers=4, captured=True), save=False).summary
    assert four["steps_captured"] > 0


def test_all_steps_of_one_form_are_captured_but_the_first_two():
    task = workloads.get("quadratic", samples=100, batch_size=1)
    protocol = "sequential" if task.tables() else "all-reduce"
    run = train(task, protocol, VirtualCluster(workers=1, captured=True), save=False)
    assert (run.summary["steps_captured"], run.summary["issued"]) == (98, 100)
