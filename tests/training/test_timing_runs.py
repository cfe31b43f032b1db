"""Runs without gradients: the same messages at the same times as with them, and nothing computed."""

import tracemalloc

import numpy as np
import pytest

import lib
from lib.errors import BadOption
from lib.protocols import ALL, get
from lib.protocols.dssync import DSSync
from lib.store.optim import SGD, Adagrad

SMALL = {"samples": 2000, "batch_size": 32, "evaluation_samples": 200, "vocabulary": 500}
CLUSTER = {"workers": 5, "servers": 3, "slowdown": 0.7}


def both(protocol, **options):
    """A run with gradients and its timing run."""
    options = {"workload": "ctr-synthetic", "cluster": "virtual", "save": False, **SMALL, **options}
    return [lib.train(protocol=protocol, gradients=gradients, **options) for gradients in (True, False)]


def timed(summary):
    """What a summary says of time and messages."""
    numbers = ("auc", "ne", "logloss", "calibration", "expected_", "train_", "rows_", "row_", "largest")
    kept = {name: value for name, value in summary.items() if not name.startswith(numbers) and value == value}
    return {name: [timed(stage) for stage in value] if name == "stages" else value for name, value in kept.items()}


def assert_as_long(real, timing):
    """Equal to the last digit: seconds, bytes, staleness, ledger, who waited for what, and how busy every node was."""
    assert timed(timing.summary) == timed(real.summary)
    assert real.provenance["events"] == timing.provenance["events"]
    shown = ["node", "kind", "start", "end", "batch"]
    assert real.trace[shown].equals(timing.trace[shown])
    assert real.usage.equals(timing.usage)


@pytest.mark.parametrize("name", ALL)
def test_every_protocol_takes_as_long_as_with_gradients(name):
    cluster = {"slowdown": 0.7} if ALL[name].family == "pipeline" else CLUSTER
    assert_as_long(*both(name, **cluster))


@pytest.mark.parametrize("dense", ["all-reduce", "s-easgd"])
def test_a_pair_takes_as_long(dense):
    assert_as_long(*both(f"gba+{dense}", **CLUSTER))


def test_buckets_beside_backward_take_as_long():
    assert_as_long(*both(get("all-reduce", buckets=3), **CLUSTER))


@pytest.mark.parametrize("optimizer", [Adagrad(lr=0.1), SGD(lr=0.1)])
def test_the_optimisers_state_counts(optimizer):
    assert_as_long(*both("gba", dense_optimizer=optimizer, row_optimizer=optimizer, **CLUSTER))


def test_a_schedule_moves_a_model_of_the_same_size():
    phases = (lib.Phase(protocol="sync", until_samples=1500), lib.Phase(protocol="ds-sync", workers=4, steps=60))
    phases = (*phases, lib.Phase(protocol="gba", batch_size=16))
    assert_as_long(*both(lib.Schedule(phases=phases), samples=4000, **CLUSTER))


def test_workers_that_die_do_so_at_the_same_time():
    failure = lib.Failure(node="worker*", kind="dies", every=0.4, lasts=0.1)
    real, timing = both("gba", failures=[failure], patience=0.05, samples=4000, **CLUSTER)
    assert real.summary["lost"] > 0
    assert_as_long(real, timing)


def test_nothing_is_computed_and_nothing_evaluated(monkeypatch):
    monkeypatch.setattr("lib.tasks.flat_model.FlatModel.step", lambda *_: pytest.fail("a gradient was computed"))
    monkeypatch.setattr("lib.store.table.Table.pull", lambda *_: pytest.fail("a row was moved"))
    monkeypatch.setattr("lib.tasks.clicks.ClickThrough.evaluate", lambda *_: pytest.fail("a model was evaluated"))
    run = lib.train("ctr-synthetic", "gba", "virtual", gradients=False, save=False, **SMALL, **CLUSTER)
    assert "auc" not in run.summary and np.isnan(run.summary["train_loss"])


@pytest.mark.parametrize("protocol", ["async", "gba", get("all-reduce", buckets=3), "hybrid", "ds-sync", "s-easgd"])
def test_neither_vectors_nor_rows_take_memory(protocol):
    """However many servers hold them: a vector has 16 MB here, and a batch's rows as much."""
    wide = {"workload": "ctr-synthetic", "dim": 400, "hidden": (1000,), "batch_size": 800, "vocabulary": 5000}
    options = {"cluster": "virtual", "gradients": False, "save": False, "trace": False, **CLUSTER}
    lib.train(protocol=protocol, samples=8000, seed=1, **wide, **options)  # imports and compiles, which is not meant
    tracemalloc.start()
    lib.train(protocol=protocol, samples=8000, **wide, **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6


def test_ids_are_drawn_once_for_all_modes(monkeypatch):
    from lib.tasks.clicks import ClickThrough

    drawn, draw = [], ClickThrough.draw
    monkeypatch.setattr(ClickThrough, "draw", lambda *given: drawn.append(given[1:]) or draw(*given))
    options = {"gradients": False, "save": False, **SMALL, "samples": 3200, "world": 77, **CLUSTER}
    for mode in ("gba", "async", "hop-bw"):
        lib.train("ctr-synthetic", mode, "virtual", **options)
    assert len(drawn) == 100


def test_a_timing_run_is_another_run_and_is_saved_as_one(reports):
    """Of another seed it is another, and of the same one the same."""
    digests, again = ([run.digest for run in both("gba", save=True, **CLUSTER)] for _ in range(2))
    assert digests == again == [run.digest for run in both("gba", **CLUSTER)]
    assert len({*digests, both("gba", seed=2, **CLUSTER)[1].digest}) == 3


OF_A_MODEL = [("evaluations", 4), ("evaluations", "daily"), ("keep", True)]


@pytest.mark.parametrize(
    ("options", "named"),
    [({"cluster": "local"}, "virtual time"), *(({name: value}, name) for name, value in OF_A_MODEL)],
)
def test_what_needs_a_model_is_refused(options, named):
    with pytest.raises(BadOption, match=named):
        lib.train(**{"workload": "ctr-synthetic", "protocol": "gba", "cluster": "virtual"} | options, gradients=False)


class Doubles(DSSync):
    """Sends numbers of another kind."""

    name = "doubles"

    def send(self, memory, mine, round):
        return mine.astype(np.float64)

    def merge(self, memory, mine, mix):
        return None, mix.theirs.astype(np.float32)


def test_a_message_of_any_kind_of_numbers_takes_as_long():
    assert_as_long(*both(Doubles()))
