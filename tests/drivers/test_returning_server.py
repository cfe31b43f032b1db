"""Servers of rows in shared memory that come back inside a run: the others notice nothing, and the books balance."""

import os
import signal
from pathlib import Path

import pytest

import lib
from lib import protocols
from lib.drivers.parameter_server import RecoveryLog, ReturningServer

TASK = {"batch_size": 8, "vocabulary": 30, "fields": 2, "dim": 2, "hidden": (4,), "dense_features": 1, "save": False}
SIZES = {"workers": 4, "servers": 2, "samples": 8 * 200}
SHARED = lib.RowStore(shared_memory=True)
OUTCOMES = ("applied", "decayed", "dropped", "lost", "in_flight")


def dies(node="server*", **when):
    return lib.Failure(node=node, kind="dies", **when)


OFTEN = dies(every=0.002, lasts=0.0005)


def train(protocol, *failures, cluster="virtual", **options):
    options = {"store": SHARED, "failures": failures, **SIZES, **TASK, **options}
    run = lib.train("ctr-synthetic", protocol, cluster, **options)
    assert run.summary["issued"] == sum(run.summary[name] for name in OUTCOMES)
    return run


@pytest.mark.parametrize("kind", ["virtual", "local"])
@pytest.mark.parametrize("protocol", ["hybrid", "s-easgd", "gba+all-reduce", "async+ds-sync"])
def test_a_run_continues_and_its_books_balance(kind, protocol):
    """Of gradients only those are lost that a server had taken and not brought into its rows."""
    # On threads a call must have time to come through between two deaths, on a busy machine too.
    summary = train(protocol, OFTEN if kind == "virtual" else dies(every=0.4, lasts=0.02), cluster=kind).summary
    assert summary["samples"] == 1600 and summary["returns_to_a_cut"] == 0 and summary["issued"] == 200
    assert kind == "local" or summary["servers_attached_again"] > 0
    assert summary["lost"] <= summary.get("gradients_lost_at_servers", 0)


def test_a_gradient_on_its_way_into_the_rows_is_lost_and_counted():
    """An update takes a fifth of a millisecond."""
    plan, slow = dies(every=0.005, lasts=0.0005), {"server.launch": 2e-4}
    summary = train("gba+all-reduce", plan, samples=8 * 400, **slow).summary
    assert summary["gradients_lost_at_servers"] > 0 and summary["issued"] == 400


def test_in_virtual_time_a_run_with_deaths_is_the_same_every_time():
    one, other = (train("hybrid", OFTEN) for _ in range(2))
    assert one.digest == other.digest and one.summary["servers_attached_again"] > 3


@pytest.mark.parametrize(
    "protocol, store",
    [("hybrid", lib.RowStore()), ("hybrid", lib.RowStore(shared_memory=True, journal=False)), ("gba", SHARED)],
    ids=["rows in its process", "no journal", "dense parameters too"],
)
def test_a_server_that_cannot_come_back_takes_the_run_to_its_checkpoint(protocol, store):
    summary = train(protocol, dies("server0", at=0.004, lasts=0.001), store=store).summary
    assert summary["returns_to_a_cut"] == 1 and "servers_attached_again" not in summary


def test_a_run_that_returns_to_its_checkpoint_starts_from_that_and_not_from_old_rows():
    """A worker that takes all back dies between the deaths of the servers."""
    failures = dies(every=0.004, lasts=0.0005), dies("worker1", at=0.01, lasts=0.001)
    summary = train(protocols.get("hybrid", rolls_back=True), *failures, checkpoint_every=400).summary
    assert summary["returns_to_a_cut"] >= 1 and summary["servers_attached_again"] > 0


def test_notes_are_what_the_last_write_left(tmp_path):
    notes, spans = RecoveryLog(tmp_path), [1]
    assert notes.read() is None
    notes.write({"turn": 1}, {"spans": spans})
    spans.append(2)
    notes.write({"turn": 2}, {"spans": spans})
    notes._log.write(b"half a wri")  # of a turn that a death ended
    assert RecoveryLog(tmp_path).read() == ({"turn": 2}, {"spans": [1, 2]})
    later = RecoveryLog(tmp_path)
    _, found = later.read()
    later.write({"turn": 3}, {"spans": [*found["spans"], 3]})
    assert RecoveryLog(tmp_path).read() == ({"turn": 3}, {"spans": [1, 2, 3]})


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="whose process has which rows is read from /proc")
def test_processes_of_servers_that_are_killed_come_back(joined_ray):
    killed, trained = [], 0

    def progress(samples):
        nonlocal trained
        trained += samples
        if len(killed) < 2 and trained > 800 * (1 + len(killed)):
            killed.append(next(each for each in servers() if each not in killed))
            os.kill(killed[-1], signal.SIGKILL)

    sizes = {"workers": 2, "servers": 2, "samples": 8000}
    summary = lib.Job.of("ctr-synthetic", "hybrid", "ray", store=SHARED, **sizes, **TASK).run(progress).summary
    assert summary["samples"] == 8000 and summary["returns_to_a_cut"] == 0
    assert summary["issued"] == 1000 == sum(summary[name] for name in OUTCOMES)
    assert summary["servers_attached_again"] == len(killed) == 2
    assert summary["lost"] <= summary["gradients_lost_at_servers"]


def servers():
    """The processes that have rows in shared memory open."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            files = [os.readlink(each) for each in (place / "fd").iterdir()]
            if "ray::Host" in (place / "cmdline").read_text() and any("lockstep-" in each for each in files):
                yield int(place.name)
        except OSError:  # it has ended
            continue


def test_a_server_that_waits_to_come_back_when_the_run_returns_is_not_made_twice(monkeypatch):
    """A reader takes the run back while server0 is dead: the server of the attempt before would share the new one's rows."""
    made, plain = [], ReturningServer.__init__

    def make(server, site, plan, *args):
        made.append(plan.attempt.number)
        plain(server, site, plan, *args)

    monkeypatch.setattr(ReturningServer, "__init__", make)
    plan = dies("server0", at=0.0100, lasts=0.004), dies("reader0", at=0.0110, lasts=0.001)
    summary = train("hybrid", *plan, reader_nodes=1, servers=1).summary
    assert summary["returns_to_a_cut"] >= 1 and made.count(0) == 1 and made.count(summary["returns_to_a_cut"]) == 1
