"""The weather itself: what it draws, what it catches, how it tells; and some of it."""

import asyncio
import dataclasses
import signal
from functools import partial

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import lib
from lib.cluster.failures import MessageFailures
from lib.cluster.local import run_in_event_loop_thread
from lib.protocols import ALL
from tests.soak import KINDS, Found, checks, soak
from tests.soak.__main__ import main
from tests.soak.cases import WORKLOADS, cases, families, protocols_of
from tests.soak.checks import Refused, call, check

CLICKS = {"workload": "ctr-synthetic", "cluster": "virtual", "worker.flops": 1e6, **WORKLOADS["ctr-synthetic"]}
DIES = {"node": "worker1", "kind": "dies", "at": 0.01, "lasts": 0.02}
CUT = {"protocol": "gba", **CLICKS, "samples": 240, "workers": 4, "checkpoint_every": 40, "patience": 0.001, "seed": 5}


def test_some_of_it():
    counts = soak(seed=12, runs=24)
    assert sum(count for name, count in counts.items() if not name.startswith("refused")) >= 24


def test_a_hang_ends_where_ctrl_c_is_ignored(monkeypatch):
    """As it is for jobs in the background, which waited for ever."""
    monkeypatch.setitem(checks.HANG, "local", 0.5)
    monkeypatch.setattr(checks.Job, "run", lambda job, progress: run_in_event_loop_thread(asyncio.Event().wait))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        case = {
            "workload": "ctr-synthetic",
            **WORKLOADS["ctr-synthetic"],
            "cluster": "local",
            "protocol": "gba",
            "seed": 0,
        }
        assert check(case).kind == "hang"
    finally:
        signal.signal(signal.SIGINT, before)


def drawn(strategy, many=400):
    """Cases as a soak draws them."""
    found = []

    @seed(0)
    @settings(max_examples=many, database=None, phases=(Phase.generate,), suppress_health_check=[*HealthCheck])
    @given(strategy)
    def take(case):
        found.append(case)

    take()
    return found


def test_a_case_depends_on_its_seed_alone():
    assert drawn(cases(), 20) == drawn(cases(), 20)


def test_everything_is_drawn():
    found = drawn(cases(), 800)
    assert {name for case in found for name in protocols_of(case).replace(" > ", "+").split("+")} == set(ALL)
    assert {family for case in found for family in families(case)} == {"server", "replica", "pipeline"}
    assert {each["kind"] for case in found for each in case.get("failures", ())} == {"dies", "hangs", "slows"}
    options = {name for case in found for name in case}
    wanted = {"mishaps", "slowdown", "speeds", "checkpoint_every", "prefetch", "gradients", "reader_nodes"}
    assert wanted | {"embedding_workers"} <= options
    assert max(case.get("workers", 1) for case in found) == 20


def test_a_case_is_printed_as_a_call_that_makes_the_same_run(reports):
    case = CUT | {"failures": [DIES]}
    pasted = eval(call(case), {"lib": lib})
    assert pasted.digest == eval(call(case), {"lib": lib}).digest
    assert pasted.summary["lost"] <= 1 and pasted.provenance["cluster"]["workers"] == 4


def test_a_forgotten_state_is_found_and_made_small(reports, monkeypatch):
    """The planted fault: a checkpoint forgets which messages were late."""
    late = {"late": 0.5, "delay": 0.002, "lost": 0.0, "retry": 0.0}
    case = CUT | {"mishaps": late, "failures": [DIES], "slowdown": 0.3}
    assert check(case) is None
    monkeypatch.setattr(MessageFailures, "restore", lambda self, state: None)
    finding = check(case)
    assert finding.kind.startswith("resumed: another") and finding.stopped

    # Every part of the case is drawn as there or not; hypothesis leaves out what the fault does not need.
    parts = {"mishaps": late, "failures": [DIES], "slowdown": 0.3}
    subsets = st.sets(st.sampled_from(sorted(parts))).map(lambda kept: CUT | {name: parts[name] for name in kept})
    monkeypatch.setitem(KINDS, "runs", dataclasses.replace(KINDS["runs"], cases=lambda cluster: subsets))
    with pytest.raises(Found, match="resumed: another") as found:
        soak(seed=0, runs=30)
    smallest = str(found.value)
    assert "mishaps" in smallest and ("failures" in smallest) + ("slowdown" in smallest) < 2


@pytest.mark.parametrize(
    "options, why",
    [
        ({"iota": -1}, "iota must be 0 or more"),
        ({"failures": [{"node": "worker*", "kind": "dies", "at": 0.001}]}, "died, and nothing can take its place"),
        ({"dense_optimizer": {"name": "sgd", "lr": 1e30}}, "is not finite at batch"),
    ],
)
def test_what_the_case_itself_gets_wrong_is_no_finding(options, why, reports):
    with pytest.raises(Refused, match=why):
        check(CUT | options)


def test_the_command_tells_and_its_exit_code_says_whether_anything_was_found(capsys, monkeypatch):
    assert main(["--seed", "13", "--runs", "2"]) == 0
    assert "2 cases, no finding" in capsys.readouterr().out
    monkeypatch.setattr("tests.soak.checks._sound", lambda case, run: 1 / 0)
    monkeypatch.setattr("tests.soak.__main__.soak", partial(soak, shrink=False))
    assert main(["--seed", "13", "--runs", "1"]) == 1
    said = capsys.readouterr().out
    assert "ZeroDivisionError" in said and "lib.train(" in said
