"""Runs of several stages that are stopped: they go on in the stage that they had come to, and nothing of it shows."""

import os
from dataclasses import replace

import pytest

import lib
from lib import Automatic, Choice, Failure, LocalCluster, Phase, Schedule, VirtualCluster, paths
from lib.store import checkpoint
from lib.store.optim import SGD
from tests.toys import days_of_clicks, diagonal
from tests.training.stopping import Killed, assert_named_when_damaged, assert_same, killed

BATCH = 16
CLICKS = days_of_clicks(60, BATCH, evaluation_samples=100)
CLUSTER = VirtualCluster(workers=3, servers=2, slowdown=0.7)
FAMILIES = Schedule(
    phases=(
        Phase(protocol="sync", until_samples=BATCH * 15),
        Phase(protocol="all-reduce", workers=2, steps=6),
        Phase(protocol="s-easgd", until_samples=BATCH * 40, dense_optimizer=SGD(lr=0.01)),
        Phase(protocol="gba", batch_size=8),
    ),
    restart=0.25,
)
SECONDS = Schedule(phases=(Phase(protocol="async", seconds=5e-4), Phase(protocol="gba")))
PHASES = (Phase(protocol="all-reduce"), Phase(protocol="async"))
CHOICE = Choice(phases=PHASES, rule=Automatic(cost=5e-5, window=2), every=5e-5)


def train(protocol, cluster=CLUSTER, **options):
    return lib.train(CLICKS, protocol, cluster, **({"checkpoint_every": BATCH * 6, "save": False} | options))


@pytest.fixture(scope="module")
def families():
    """A run of FAMILIES that nothing stops."""
    return train(FAMILIES)


DAILY = {"evaluations": "daily"}
OTHERS = [(FAMILIES, {**DAILY, "keep": True}), ("gba", DAILY), (SECONDS, {}), (CHOICE, {})]
AFTER = (4, 20, 33, 55)


@pytest.mark.parametrize("case, after", [*(((FAMILIES, {}), after) for after in AFTER), *diagonal(OTHERS, AFTER)])
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(case, after, reports, monkeypatch):
    protocol, options = case
    whole = train(protocol, **options)
    with killed(monkeypatch, after):
        train(protocol, **options)
    with killed(monkeypatch, 3):  # and once more, soon after
        train(protocol, resume=True, **options)
    again = train(protocol, resume=True, **options)
    assert_same(again, whole)
    assert not list((reports / "checkpoints").iterdir())


def test_schedules_have_the_stages_that_they_are_to_have(reports):
    for protocol, expected in [
        (FAMILIES, [("sync", 15 * BATCH), ("all-reduce", 12 * BATCH), ("s-easgd", 13 * BATCH), ("gba", 20 * BATCH)]),
        (SECONDS, [("async", 9 * BATCH), ("gba", 51 * BATCH)]),
        (CHOICE, [("all-reduce", 6 * BATCH), ("async", 54 * BATCH)]),
    ]:
        assert [(stage["protocol"], stage["samples"]) for stage in train(protocol).summary["stages"]] == expected


def test_what_is_kept_of_a_stopped_run(reports, monkeypatch):
    with killed(monkeypatch, 33):
        train(FAMILIES)
    [folder] = (reports / "checkpoints").iterdir()
    left = ["finished", "run", "stage-0002", "stage-0002-00000006"]
    assert sorted(path.stem for path in folder.iterdir()) == left
    assert checkpoint.load(folder / "stage-0002.pt")["run"]["batch"] == 6


def test_stages_that_are_not_saved_are_trained_again(families, reports, monkeypatch):
    """As if a hand had deleted them; and a run that is not to go on takes nothing from one that was stopped."""
    with killed(monkeypatch, 33):
        train(FAMILIES)
    [finished] = (reports / "checkpoints").glob("*/finished.pt")
    finished.unlink()
    assert_same(train(FAMILIES, resume=True), families)
    with killed(monkeypatch, 33):
        train(FAMILIES)
    assert_same(train(FAMILIES), families)


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("file, time", [("finished", 1), ("finished", 2), ("finished", 3), ("stage-0002", 1)])
def test_stopped_while_it_saves_it_goes_on_as_if_it_had_not_been(file, time, where, families, reports, monkeypatch):
    saved, put = [], os.replace

    def replace(source, target):
        if target.stem == file:
            saved.append(target)
            if len(saved) == time:
                if where == "after":
                    put(source, target)
                raise Killed
        put(source, target)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(paths.os, "replace", replace)
        train(FAMILIES)
    [folder] = (reports / "checkpoints").iterdir()
    (folder / ".half-written").write_bytes(b"what a killed process leaves")
    with killed(monkeypatch, 1):
        train(FAMILIES, resume=True)
    assert not list(folder.glob(".*"))
    assert_same(train(FAMILIES, resume=True), families)


def test_a_damaged_leg_is_named(reports, monkeypatch):
    with killed(monkeypatch, 33):
        train(FAMILIES)
    [file] = (reports / "checkpoints").glob("*/finished.pt")
    assert_named_when_damaged(file, lambda: train(FAMILIES, resume=True))


def test_a_server_that_dies_takes_its_leg_back_and_not_those_before(families, reports, monkeypatch):
    """The failures' clock runs on where the stopped run was."""
    stages = families.summary["stages"]
    [third, fourth] = stages[2:]
    when = (third["start"] + fourth["start"] - FAMILIES.restart) / 2
    plan = (Failure(node="server0", kind="dies", at=when, lasts=0.01),)
    cluster = replace(CLUSTER, failures=plan, patience=0.001)
    whole = train(FAMILIES, cluster)
    assert [stage["returns_to_a_cut"] for stage in whole.summary["stages"]] == [0, 0, 1, 0]
    for after in (20, 29):
        with killed(monkeypatch, after):
            train(FAMILIES, cluster)
        again = train(FAMILIES, cluster, resume=True)
        assert [stage["returns_to_a_cut"] for stage in again.summary["stages"]] == [0, 0, 1, 0]
        assert_same(again, whole)


@pytest.mark.parametrize("protocol", [FAMILIES, CHOICE], ids=["families", "choice"])
def test_on_a_wall_clock_it_goes_on_too(protocol, reports, monkeypatch):
    cluster = LocalCluster(workers=3)
    with killed(monkeypatch, 33):
        train(protocol, cluster)
    run = train(protocol, cluster, resume=True)
    assert run.summary["samples"] == CLICKS.samples
    times = run.history["time"]
    assert times.is_monotonic_increasing and 0 < times.max() <= run.summary["wall_seconds"] < 60
    computed = run.trace[run.trace["kind"] == "compute"]
    assert len(computed) == run.summary["issued"] and computed["start"].min() >= 0
