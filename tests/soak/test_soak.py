"""The weather itself: what it draws, what it catches, how it tells; and some of it."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import signal

import pytest

import lib
from lib.cluster.faults.failures import Connection
from lib.cluster.local import in_loop
from lib.protocols import ALL
from tests.soak import KINDS, checks, soak
from tests.soak.__main__ import main
from tests.soak.cases import WORKLOADS, draw, families, protocols_of
from tests.soak.checks import Refused, call, check
from tests.soak.shrink import shrink

CLICKS = {"workload": "ctr-synthetic", "cluster": "virtual", "worker.flops": 1e6, **WORKLOADS["ctr-synthetic"]}
DIES = {"node": "worker1", "kind": "dies", "at": 0.01, "lasts": 0.02}
CUT = {"protocol": "gba", **CLICKS, "samples": 240, "workers": 4, "checkpoint_every": 40, "patience": 0.001, "seed": 5}


def or_none(case):
    try:
        return check(case)
    except Refused:
        return None


def test_a_quarter_of_a_minute_of_it():
    soaked = soak(seed=12, runs=40)
    assert not soaked.findings, "\n".join(soaked.told())
    assert soaked.runs.total() >= 10


def test_what_was_found_before_ctrl_c_is_told(monkeypatch):
    taken = []

    def checked(case):
        if len(taken) == 3:
            raise KeyboardInterrupt
        taken.append(case)

    monkeypatch.setitem(KINDS, "runs", dataclasses.replace(KINDS["runs"], check=checked))
    soaked = soak(seed=1, runs=9)
    assert soaked.runs.total() == 3 and list(soaked.told())[-1] == "3 cases, 0 findings"


def test_a_hang_ends_where_ctrl_c_is_ignored(monkeypatch):
    """As it is for jobs in the background, which waited for ever."""
    monkeypatch.setitem(checks.HANG, "local", 0.5)
    monkeypatch.setattr(checks.Job, "run", lambda job, progress: in_loop(asyncio.Event().wait))
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


def test_a_case_depends_on_its_seed_and_number_alone():
    assert draw(3, 7) == draw(3, 7) != draw(3, 8) != draw(4, 8)


def test_everything_is_drawn():
    cases = [draw(0, number) for number in range(400)]
    assert {name for case in cases for name in protocols_of(case).replace(" > ", "+").split("+")} == set(ALL)
    assert {family for case in cases for family in families(case)} == {"server", "replica", "pipeline"}
    assert {each["kind"] for case in cases for each in case.get("failures", ())} == {"dies", "hangs", "slows"}
    options = {name for case in cases for name in case}
    assert {
        "mishaps",
        "slowdown",
        "speeds",
        "checkpoint_every",
        "prefetch",
        "partitions",
        "gradients",
        "reader_nodes",
        "embedding_workers",
        "other",
    } <= options
    assert max(case.get("workers", 1) for case in cases) == 20


def test_a_case_is_printed_as_a_call_that_makes_the_same_run(reports):
    case = CUT | {"failures": [DIES]}
    pasted = eval(call(case), {"lib": lib})
    assert pasted.digest == eval(call(case), {"lib": lib}).digest
    assert pasted.summary["lost"] <= 1 and pasted.provenance["cluster"]["workers"] == 4


def test_a_forgotten_state_is_found_and_made_small(reports, monkeypatch):
    """The planted fault: a cut forgets which messages were late."""
    late = {"late": 0.5, "delay": 0.002, "lost": 0.0, "retry": 0.0}
    case = CUT | {"mishaps": late, "failures": [DIES], "slowdown": 0.3}
    assert check(case) is None
    monkeypatch.setattr(Connection, "load", lambda self, state: None)
    finding = check(case)
    assert finding.kind.startswith("resumed: another") and finding.stopped
    few = iter(range(20))  # not seconds, of which a busy machine has too few
    small, again = shrink(case, finding, lambda less: or_none(less) if next(few, None) is not None else None, math.inf)
    assert again.kind == finding.kind and "failures" not in small and "mishaps" in small


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
    assert "0 findings" in capsys.readouterr().out
    monkeypatch.setattr("tests.soak.checks._sound", lambda case, run: 1 / 0)
    monkeypatch.setattr("tests.soak.SHRINKING", 0.0)
    assert main(["--seed", "13", "--runs", "1"]) == 1
    told = capsys.readouterr().out
    assert "1 x ZeroDivisionError" in told and "lib.train(" in told
