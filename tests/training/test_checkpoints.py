"""Cuts of a running training: what was stopped and goes on equals what paused and was never stopped, to the bit."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import lib
from lib import Node, VirtualCluster, paths, workloads
from lib.errors import BadOption
from lib.protocols import ALL, Pair, get
from lib.protocols.delay import DCASGD
from lib.protocols.easgd import Downpour
from lib.protocols.hop import SSP
from lib.protocols.local_sgd import SlowMo
from lib.store import checkpoint
from lib.store.optim import Adam
from lib.training.train import Job
from tests.drivers.composing import SHADOWS
from tests.training.stopping import assert_named_when_damaged, assert_same, killed

PASS = {"samples": 16 * 41 - 5, "batch_size": 16, "lr_milestones": (0.3, 0.7)}
CLICKS = workloads.get("ctr-synthetic", vocabulary=40, fields=3, hidden=(8,), evaluation_samples=100, **PASS)
GRAPH = workloads.get("kg-synthetic", entities=60, triples=400, relations=3, **PASS)
READ = VirtualCluster(workers=3, servers=2, slowdown=0.7, server=Node(reading=1e-5))
FOUR = VirtualCluster(workers=4, servers=2, slowdown=0.7)
PROTOCOLS = {
    **{name: get(name) for name in ALL},
    "gba + sync": Pair(sparse=get("gba"), dense=get("sync")),
    "async + all-reduce": Pair(sparse=get("async"), dense=get("all-reduce")),
    "gba + s-easgd": Pair(sparse=get("gba", size=2), dense=get("s-easgd")),
    "slow momentum": SlowMo(every=2),  # which remembers an outer copy
    "a correction with a memory": DCASGD(decay=0.9),
    "a centre with an optimiser": Downpour(every=2, optimizer=Adam(lr=0.05)),
    "a cache that a pause ends": SSP(bound=3),
    "threads and two centres": replace(get("s-easgd"), worker_threads=2, sync_servers=2),
    **{f"shadows of groups, {shadow.when.until}": shadow for shadow in SHADOWS},
}


def train(protocol, *, dies_after=None, cluster=None, monkeypatch=None, **options):
    rule = PROTOCOLS.get(protocol, protocol)
    pipeline = rule.dense.family == "pipeline"
    cluster = cluster or VirtualCluster(workers=None if pipeline else 3, servers=1 if pipeline else 2, slowdown=0.7)
    workload = GRAPH if pipeline else CLICKS
    options = {"evaluations": 3, "checkpoint_every": 16 * 10, "save": False} | options
    if dies_after is None:
        return lib.train(workload, rule, cluster, **options)
    with killed(monkeypatch, dies_after):
        lib.train(workload, rule, cluster, **options)
    return None


@pytest.mark.parametrize(
    "name, options",
    [
        ("gba", {"feed": "stream", "partitions": (1, 2, 3)}),
        ("ds-sync", {"feed": "stream"}),
        ("ds-sync", {"checkpoint_every": 16 * 9}),  # every third round is a checkpoint, and groups alternate
        # The fifth step is a checkpoint, and partners alternate.
        ("ad-psgd", {"checkpoint_every": 16 * 20, "cluster": FOUR}),
        ("sync", {"feed": "queue"}),
        ("async", {"feed": "split", "prefetch": 2}),
        ("s-easgd", {"prefetch": 1}),
        ("async", {"reader_nodes": 2}),
        ("s-easgd", {"reader_nodes": 1, "cluster": READ}),
        ("gba", {"store": lib.RowStore(gradients="scaled-fp16")}),  # two gradients are held when it is saved
    ],
)
def test_it_is_so_however_batches_are_shared_read_ahead_and_sent(name, options, reports, monkeypatch):
    whole = train(name, **options)
    train(name, dies_after=27, monkeypatch=monkeypatch, **options)
    [_] = (reports / "checkpoints").glob("*/stage-0000.pt")
    assert_same(train(name, resume=True, **options), whole)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(name, reports, monkeypatch):
    whole = train(name)
    assert not list((reports / "checkpoints").iterdir()), "a complete run leaves no checkpoint"
    train(name, dies_after=27, monkeypatch=monkeypatch)
    [file] = (reports / "checkpoints").glob("*/stage-0000.pt")
    states = (*PROTOCOLS[name].sparse.states, *PROTOCOLS[name].dense.states)
    assert checkpoint.load(file, states)["run"]["batch"] in (20, 24)
    train(name, dies_after=5, monkeypatch=monkeypatch, resume=True)  # and again, before the next checkpoint
    assert_same(train(name, resume=True), whole)
    assert not list((reports / "checkpoints").iterdir())


@pytest.mark.parametrize("name", ["gba", "sync", "s-easgd", "oac"])
def test_a_cut_costs_only_the_wait_for_the_slowest(name, reports):
    """With one checkpoint, the pause is the only difference to a run without."""
    never, once = train(name, checkpoint_every=None), train(name, checkpoint_every=16 * 21)
    assert once.summary["samples"] == never.summary["samples"]
    longest = (once.trace["end"] - once.trace["start"]).max()
    assert once.summary["virtual_seconds"] <= never.summary["virtual_seconds"] + 4 * longest


def test_a_damaged_cut_is_named_and_not_trained_on(reports, monkeypatch):
    train("gba", dies_after=27, monkeypatch=monkeypatch)
    [file] = (reports / "checkpoints").glob("*/stage-0000.pt")
    assert_named_when_damaged(file, lambda: train("gba", resume=True))


def test_options_are_checked(reports):
    with pytest.raises(BadOption, match="checkpoint_every must be at least 1"):
        train("gba", checkpoint_every=0)
    with pytest.raises(BadOption, match="resume needs the checkpoint_every"):
        train("gba", checkpoint_every=None, resume=True)
    with pytest.warns(UserWarning, match="finds no checkpoint of this run in .*, and the run begins at its start"):
        train("gba", resume=True)
    assert paths.reports() == reports


@pytest.mark.parametrize(
    "options, words",
    [
        ({"cluster": VirtualCluster(workers=3, servers=3, slowdown=0.7)}, "servers: 2 there, 3 here"),
        ({"reader_nodes": 1}, "reader_nodes: 0 there, 1 here"),
        ({"embedding_workers": 2}, "embedding_workers: 0 there, 2 here"),
    ],
)
def test_another_number_of_nodes_is_refused_and_not_trained_from_the_start(options, words, reports, monkeypatch):
    train("gba", dies_after=27, monkeypatch=monkeypatch)
    with pytest.raises(BadOption, match=f"{words}. Resume with its numbers, or leave resume out to train from the"):
        train("gba", resume=True, **options)
    with pytest.warns(UserWarning, match="finds no checkpoint of this run"):
        train("gba", resume=True, seed=3)


def test_on_a_wall_clock_a_run_pauses_and_goes_on_too(reports, monkeypatch):
    cluster = lib.LocalCluster(workers=2)
    train("gba", cluster=cluster, dies_after=27, monkeypatch=monkeypatch)
    run = train("gba", cluster=cluster, resume=True)
    assert run.summary["issued"] == CLICKS.batches()
    assert run.summary["samples"] == CLICKS.samples
    assert run.history["time"].min() > 0 and run.history["time"].max() <= run.summary["wall_seconds"] < 60
    computed = run.trace[run.trace["kind"] == "compute"]
    assert sorted(computed["batch"]) == list(range(CLICKS.batches())) and computed["start"].min() >= 0


@pytest.mark.parametrize("save", [True, False])
def test_two_that_would_write_the_same_checkpoints_write_them_one_after_the_other(save, reports, monkeypatch):
    """The second wiped the first one's."""
    under_way, most, trained = 0, 0, Job._train

    def train(job, progress):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        run = trained(job, progress)
        under_way -= 1
        return run

    monkeypatch.setattr(Job, "_train", train)
    job = Job.of(CLICKS, "gba", FOUR, checkpoint_every=160, save=save)
    with ThreadPoolExecutor(2) as pool:
        runs = [each.result() for each in [pool.submit(job.run, lambda samples: None) for _ in range(2)]]
    assert most == 1 and runs[0].digest == runs[1].digest
