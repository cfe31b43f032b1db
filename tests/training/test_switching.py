"""One run under several protocols: what goes over at a switch, when it happens, and what the run says of it."""

import numpy as np
import pytest

import lib
from lib import Phase, Schedule
from lib.drivers.model_state import _average_arrays, _average_rows, _with_fresh_timestamps
from lib.errors import BadOption
from lib.store.optim import SGD, Adagrad, Adam
from lib.store.rows import Rows
from lib.training.train import Job
from tests.toys import diagonal, weights

TINY = {"samples": 32 * 24, "batch_size": 32, "fields": 3, "vocabulary": 40, "dim": 4, "hidden": (8,), "days": 4}
CLICKS = lib.workloads.get("ctr-synthetic", evaluation_samples=200, **TINY)
EVEN = lib.VirtualCluster(workers=4)


def train(protocol, cluster=EVEN, workload=CLICKS, **options):
    return lib.train(workload, protocol, cluster, **({"save": False} | options))


def halves(first, second, **limit):
    return Schedule(phases=(Phase(protocol=first, **(limit or {"until_samples": 32 * 12})), Phase(protocol=second)))


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("pair", [("sync", "sync"), ("sync", "gba"), ("gba", "sync"), ("bsp", "hop-bw")])
def test_protocols_that_are_sync_among_equals_switch_without_a_trace(pair, servers):
    # Among equal workers each of them is Sync, so a run that switches between them is Sync all along, to the bit.
    cluster = lib.VirtualCluster(workers=4, servers=servers)
    rules = [lib.protocols.get("hop-bw", spare=0) if name == "hop-bw" else name for name in pair]
    assert same(train(halves(*rules), cluster, keep=True), train("sync", cluster, keep=True))


def test_adams_count_of_steps_goes_over():
    """A fresh Adam would take a first step of its whole learning rate again."""
    still = {"dense_optimizer": SGD(lr=1e-9), "row_optimizer": SGD(lr=1e-9)}
    first, *rest = halves("sync", "sync", until_samples=32 * 8).phases
    lost = Schedule(phases=(first, Phase(protocol="sync", until_samples=32 * 12, **still), *rest))
    carried, afresh = (train(each, keep=True).model.dense["step"] for each in (halves("sync", "sync"), lost))
    assert (carried, afresh) == (6, 3)


def test_the_state_starts_afresh_with_another_kind_of_optimiser():
    schedule = Schedule(
        phases=(
            Phase(protocol="sync", until_day=2, dense_optimizer=Adagrad(lr=0.1), row_optimizer=Adagrad(lr=0.1)),
            Phase(protocol="async", dense_optimizer=Adam(lr=0.01), row_optimizer=Adam(lr=0.01)),
        )
    )
    assert set(train(schedule, keep=True).model.dense) == {"values", "step", "exp_avg", "exp_avg_sq"}


NAMES = [name for name, kind in lib.protocols.ALL.items() if kind.family != "pipeline"]


@pytest.mark.parametrize("first, second", diagonal(NAMES, ["sync", "all-reduce", "gba", "ds-sync"]))
def test_every_protocol_hands_over_to_every_kind(first, second):
    run = train(halves(first, second), lib.VirtualCluster(workers=3, slowdown=0.5, servers=2))
    stages = run.summary["stages"]
    assert [stage["protocol"] for stage in stages] == [first, second]
    assert run.summary["samples"] == CLICKS.samples == sum(stage["samples"] for stage in stages)
    assert run.summary["issued"] == 24
    assert run.summary["auc"] == stages[-1]["auc"]


@pytest.mark.parametrize(
    "limits", [[{"until_day": 2}], [{"steps": 2}, {"until_samples": 600}], [{"until_samples": 96}, {}]]
)
def test_a_job_knows_how_many_samples_it_will_train_on(limits):
    """Else a progress line has a total that is never reached, and a wrong time left."""
    schedule = Schedule(phases=tuple(Phase(protocol="sync", **limit) for limit in limits))
    counted = []
    job = Job.of(CLICKS, schedule, EVEN, save=False)
    run = job.run(counted.append)
    assert job.samples == run.summary["samples"] == sum(counted)


@pytest.mark.parametrize("order", [("oac", "sync"), ("sync", "oac"), ("sequential", "all-reduce")])
def test_a_pipeline_hands_over_too(order):
    run = train(halves(*order), lib.VirtualCluster(workers=1))
    assert [stage["samples"] for stage in run.summary["stages"]] == [384, 384]


def test_a_pipeline_goes_on_where_another_one_stopped():
    alone = lib.VirtualCluster(workers=1)
    assert same(train(halves("sequential", "sequential"), alone, keep=True), train("sequential", alone, keep=True))


@pytest.mark.parametrize("cluster", [lib.LocalCluster, pytest.param(lib.RayCluster, marks=pytest.mark.nightly)])
def test_real_clusters_switch_as_the_virtual_one_does(cluster, request):
    if cluster is lib.RayCluster:
        request.getfixturevalue("joined_ray")
    phases = [
        Phase(protocol=each, until_day=day) for each, day in (("all-reduce", 2), ("sync", 3), ("all-reduce", None))
    ]
    schedule = Schedule(phases=phases)
    real, virtual = (train(schedule, each(workers=2), keep=True) for each in (cluster, lib.VirtualCluster))
    for ours, theirs in zip(weights(real), weights(virtual), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


# When


def first_leg(**limit):
    return train(halves("sync", "gba", **limit)).summary["stages"][0]


def test_a_phase_ends_with_its_limit():
    assert first_leg(until_day=3)["samples"] == 576
    assert first_leg(until_samples=100)["samples"] == 100  # its last batch has 4 samples
    assert first_leg(steps=2)["samples"] == 2 * 4 * 32


def test_steps_are_global_batches():
    gba, bsp = lib.protocols.get("gba", size=3), lib.protocols.get("bsp", size=5)
    schedule = Schedule(
        phases=[Phase(protocol=each, steps=steps) for each, steps in ((gba, 2), (bsp, 1), ("async", 3))]
    )
    stages = train(schedule).summary["stages"]
    assert [stage["samples"] // 32 for stage in stages] == [6, 5, 3]


@pytest.mark.parametrize("protocol", ["sync", "async", "gba", "all-reduce"])
def test_a_phase_of_seconds_leaves_no_batch_out(protocol):
    cluster = lib.VirtualCluster(workers=4, slowdown=0.5)
    whole = train(protocol, cluster).summary["virtual_seconds"]
    run = train(halves(protocol, "gba", seconds=whole / 2), cluster)
    first, second = run.summary["stages"]
    assert 0.3 * CLICKS.samples < first["samples"] < 0.8 * CLICKS.samples
    assert whole / 2 <= first["virtual_seconds"] < whole
    assert second["first"] == first["samples"] and run.summary["samples"] == CLICKS.samples


def test_workers_and_batches_may_change():
    two = Phase(protocol="sync", workers=2, batch_size=64, until_day=2)
    schedule = Schedule(phases=(two, Phase(protocol="gba", workers=8, batch_size=16)))
    run = train(schedule, lib.VirtualCluster(workers=8))
    assert [(stage["workers"], stage["applied"]) for stage in run.summary["stages"]] == [(2, 6), (8, 24)]


def test_the_clock_goes_on_and_a_restart_costs_its_seconds():
    quick, slow = (train(Schedule(phases=halves("sync", "gba").phases, restart=restart)) for restart in (0, 5))
    assert slow.summary["virtual_seconds"] == pytest.approx(quick.summary["virtual_seconds"] + 5)
    start = slow.summary["stages"][1]["start"]
    assert start >= 5 + slow.summary["stages"][0]["virtual_seconds"]
    assert slow.history["time"].is_monotonic_increasing
    assert slow.trace["start"].max() > start and slow.trace["batch"].max() >= 23


@pytest.mark.parametrize("when", [0.25, 0.75])
@pytest.mark.parametrize("comes_back", [True, False])
def test_workers_may_die_in_any_leg(when, comes_back):
    uneven, schedule = {"workers": 4, "slowdown": 0.5}, halves("gba", "async")
    spent = train(schedule, lib.VirtualCluster(**uneven)).summary["virtual_seconds"]
    failure = lib.Failure(node="worker1", kind="dies", at=when * spent, lasts=0.1 * spent if comes_back else None)
    run = train(schedule, lib.VirtualCluster(**uneven, failures=(failure,), patience=0.01 * spent))
    assert [stage["protocol"] for stage in run.summary["stages"]] == ["gba", "async"]
    # At most the batch that it computed and the one that it had asked for are gone with it.
    assert run.summary["lost"] <= 2 and 22 <= run.summary["issued"] <= 24
    assert run.summary["virtual_seconds"] < 2 * spent


# From day to day


def test_a_run_starts_from_anothers_model(reports):
    base = train(Schedule(phases=(Phase(protocol="sync", until_day=2),)), keep=True, save=True)
    again = train(Schedule(phases=(Phase(protocol="sync", until_day=2),)), keep=True, save=True)
    assert base.model.next_sample == again.model.next_sample == 384  # the second was read from its folder
    assert same(train("sync", start=again, keep=True), train("sync", keep=True))
    assert train("gba", start=base).summary["samples"] == 384


def test_what_cannot_be_is_an_error():
    two_days = Schedule(phases=(Phase(protocol="sync", until_day=2),))
    for make, message in [
        (lambda: Phase(protocol="sink"), "sync"),
        (lambda: Phase(protocol="sync", steps=3, seconds=4), "not at steps and seconds"),
        (lambda: Phase(protocol="sync", steps=0), "phase: steps must be at least 1, not 0"),
        (lambda: Schedule(phases=(Phase(protocol="sync"), Phase(protocol="gba"))), "'sync' never ends"),
        (lambda: Schedule(phases=()), "one Phase"),
        (lambda: Schedule(phases=(Phase(protocol="sync"),), restart=-1), "restart"),
        (lambda: train(Schedule(phases=(Phase(protocol="sync", workers=5),))), "5 workers, of 4"),
        (lambda: train("sync", start=train("sync")), "keep=True"),
        (lambda: train("sync", start=train("sync", keep=True)), "has come to sample 768"),
        (lambda: train("sync", evaluations="weekly"), "'daily'"),
        (lambda: train(two_days, start=train(two_days, keep=True)), "every phase ends before sample 384"),
        (lambda: train("sync", workload=lib.workloads.get("quadratic"), evaluations="daily"), "no days"),
        (lambda: train(halves("sync", "gba", seconds=1), feed="split"), "feed='queue'"),
        (lambda: train(halves("oac", "gba", seconds=1), cluster=lib.VirtualCluster()), "give it steps, until_samples"),
    ]:
        with pytest.raises((BadOption, lib.errors.UnknownName), match=message):
            make()


def test_replicas_are_averaged_and_a_row_over_those_that_have_met_it():
    def rows(ids, values, stamps):
        values = np.array(values, np.float32)[:, None]
        return Rows(np.array(ids), values, 10 * values, np.array(stamps))

    joined = _average_rows([rows([1, 2], [1, 2], [5, -1]), rows([2, 7], [4, 8], [3, 2])])
    assert joined.ids.tolist() == [1, 2, 7] and joined.stamps.tolist() == [5, 3, 2]
    assert joined.values[:, 0].tolist() == [1, 3, 8] and joined.state[:, 0].tolist() == [10, 30, 80]


def test_timestamps_begin_anew():
    """A row that was updated is as old as the next protocol's beginning, and one that never was stays so."""
    ones = np.ones((3, 1), np.float32)
    assert _with_fresh_timestamps(Rows(np.arange(3), ones, ones, np.array([-1, 0, 7]))).stamps.tolist() == [-1, 0, 0]


def test_what_only_some_replicas_have_is_their_mean():
    exports = [{"values": np.float32([1, 2]), "step": np.float32([4])}, {"values": np.float32([3, 6])}]
    joined = _average_arrays(exports)
    assert joined["values"].tolist() == [2, 4] and joined["step"].tolist() == [4]


def test_of_replicas_that_mix_gradients_the_most_advanced_goes_over():
    # Six batches among four workers: two of them take a step more than the others, whose copies lag behind.
    six = lib.workloads.get("ctr-synthetic", evaluation_samples=200, **TINY | {"samples": 32 * 6, "days": 1})
    reduced = train("all-reduce", workload=six, keep=True)
    served = train("sync", workload=six, keep=True)
    for ours, theirs in zip(weights(reduced), weights(served), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
