"""Looking at a model does not train it: how often a run is evaluated, and on which day's samples, changes nothing of the run."""

from dataclasses import replace

import pytest

import lib
from lib import Phase, Schedule
from lib.drivers.record import EvalPoint, pop_reached
from lib.errors import BadOption
from lib.protocols import ALL
from tests.toys import days_of_clicks, one_of_each_composition
from tests.training.test_finished_stages import CHOICE

BATCH = 16
CLICKS = days_of_clicks(48, BATCH, drift=0.4)
UNEVEN = lib.VirtualCluster(workers=4, slowdown=0.6)
ITEMS = lib.workloads.get("private-youtubednn", samples=BATCH * 20, batch_size=BATCH, days=3, evaluation_samples=20)


def train(protocol, evaluations, workload=CLICKS, cluster=UNEVEN, **options):
    alone = isinstance(protocol, str) and protocol in ALL and ALL[protocol].family == "pipeline"
    cluster = replace(cluster, workers=None) if alone else cluster
    return lib.train(workload, protocol, cluster, evaluations=evaluations, save=False, **options)


def test_a_run_is_evaluated_at_the_shares_that_it_is_given():
    """Of 60 batches of 16: after 0.07, 0.5 and 0.82, each at the first step of all four workers that has come so far."""
    run = train("sync", (0.82, 0.07, 0.5, 0.5), samples=BATCH * 60)
    assert run.history.dropna(subset=["auc"])["samples"].tolist() == [BATCH * step for step in (8, 32, 52, 60)]
    parts, shares = (train("sync", each).history["samples"].tolist() for each in (4, (0.25, 0.5, 0.75, 1.0)))
    assert parts == shares
    with pytest.raises(BadOption, match="evaluations"):
        train("sync", (0.5, 1.5))


def learnt(run):
    """What a run says of its training, to the bit."""
    history = run.history[run.history["train_loss"].notna()].drop(columns=["auc", "day"], errors="ignore")
    history = history[[name for name in history if history[name].notna().any()]].reset_index(drop=True)
    return run.digest, history.to_json(), run.trace.to_json(), run.summary["bytes"], run.summary["virtual_seconds"]


def days(run):
    """Day -> the AUC on its samples."""
    found = run.history.dropna(subset=["auc"])
    return dict(zip(found["day"].astype(int), found["auc"], strict=True))


@pytest.mark.parametrize("name", one_of_each_composition(ALL))
def test_looking_at_a_model_does_not_train_it(name):
    once, often, daily = (train(name, evaluations) for evaluations in (1, 4, "daily"))
    assert learnt(once) == learnt(often) == learnt(daily)
    assert len(often.history["auc"].dropna()) == 4 and list(days(daily)) == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["frozen", "sync", "all-reduce", "local-sgd", "ds-sync", "sequential"])
def test_a_days_metric_is_that_of_a_run_that_stops_there(name):
    """Where all come to a day's end at once: three steps of the four workers are a day."""
    rule = lib.protocols.get(name, **({"every": 3} if name == "local-sgd" else {}))
    cluster = replace(UNEVEN, workers=None) if name == "sequential" else UNEVEN
    found = days(train(rule, "daily", cluster=cluster))
    assert len(found) == 4
    for day, auc in found.items():
        stopped = train(Schedule(phases=(Phase(protocol=rule, until_day=day),)), "daily", cluster=cluster)
        assert days(stopped)[day] == stopped.summary["auc"] == auc


GOES_ON = {"s-easgd", "streaming-diloco", "eager-diloco"}
"""Their last mix comes after the last step: of a shadow with a sync server, or of what still travels."""


SHARING = [each for each in ALL if ALL[each].family != "pipeline" and each not in GOES_ON]


@pytest.mark.parametrize("name", one_of_each_composition(SHARING))
def test_of_one_worker_too(name):
    cluster, pass_of = lib.VirtualCluster(workers=1), {"samples": BATCH * 24}
    found = days(train(name, "daily", cluster=cluster, **pass_of))
    stopped = train(Schedule(phases=(Phase(protocol=name, until_day=2),)), "daily", cluster=cluster, **pass_of)
    assert list(found) == [1, 2, 3, 4] and found[2] == stopped.summary["auc"]


def test_a_day_that_ends_within_a_step_is_judged_after_it():
    """Of 40 batches a day has ten, and a step four."""
    run = train("sync", "daily", samples=BATCH * 40)
    evaluated = run.history.dropna(subset=["auc"])
    assert evaluated["samples"].tolist() == [BATCH * steps for steps in (12, 20, 32, 40)]


def test_days_that_end_within_one_step_are_judged_each():
    """Four batches are the whole pass, and one step."""
    found = days(train("sync", "daily", samples=BATCH * 4))
    assert list(found) == [1, 2, 3, 4] and len(set(found.values())) > 1
    assert len(train("sync", 4, samples=BATCH * 4).history["auc"].dropna()) == 2  # the marks on the way are one place


def test_gradients_that_are_thrown_away_are_places_of_the_stream():
    """Of backup workers and of batches that are not finite: a day is over when it is decided what becomes of all of it."""
    wasteful = train(lib.protocols.get("hop-bw", spare=2), "daily")
    assert wasteful.summary["dropped"] > 12 and list(days(wasteful)) == [1, 2, 3, 4]
    frozen = days(train("frozen", "daily"))
    assert list(frozen) == [1, 2, 3, 4] and len(set(frozen.values())) > 1  # of other samples each


def test_items_have_days_too():
    once, daily = (train("local-sgd", evaluations, ITEMS) for evaluations in (1, "daily"))
    assert learnt(once) == learnt(daily) and list(days(daily)) == [1, 2, 3]


SECONDS = Schedule(phases=(Phase(protocol="async", seconds=4e-4), Phase(protocol="gba")))


@pytest.mark.parametrize("schedule", [SECONDS, CHOICE], ids=["seconds", "choice"])
def test_a_phase_that_ends_by_itself_is_judged_on_the_day_after_the_one_that_it_has_come_to(schedule):
    once, daily = (train(schedule, evaluations) for evaluations in (1, "daily"))
    assert learnt(once) == learnt(daily)
    stages = daily.summary["stages"]
    assert len(stages) == 2 and stages[1]["first"] % (BATCH * 12) > 0
    assert [stage["day"] for stage in stages] == [CLICKS.day(stages[1]["first"] - 1) + 1, 4]
    evaluated = daily.history.dropna(subset=["auc"])
    assert sorted({*evaluated["day"]}) == [1, 2, 3, 4] and evaluated["samples"].is_monotonic_increasing
    assert len(evaluated) == 5  # each day's, and the end of the first phase


def test_a_run_that_goes_on_from_another_has_the_days_that_are_left():
    base = train(Schedule(phases=(Phase(protocol="sync", until_day=2),)), 1, keep=True)
    assert list(days(train("gba", "daily", start=base))) == [3, 4]


def test_marks_are_told_once_in_their_order():
    marks = [EvalPoint(10, None), EvalPoint(20, None), EvalPoint(30, 1), EvalPoint(40, 2)]
    told = [pop_reached(marks, samples) for samples in (9, 25, 25, 99)]
    assert told == [[], [EvalPoint(20, None)], [], [EvalPoint(30, 1), EvalPoint(40, 2)]]


def test_a_days_samples_are_those_of_that_day():
    """The day after a pass of so many days is the same day of a longer one."""
    for day, auc in days(train("frozen", "daily")).items():
        shorter = replace(CLICKS, samples=BATCH * 12 * day, days=day)
        assert train("frozen", 1, shorter).summary["auc"] == auc
