"""Cases in which something was broken once, as small as they were found: they stay whole."""

import gc
from pathlib import Path

import pytest
import yaml

import lib
from lib.cluster.virtual import VirtualLoop
from lib.drivers.record import PartLog, gradient_ledger
from lib.errors import LockstepError
from tests.soak.cases import WORKLOADS
from tests.soak.checks import check

SMALL = {"cluster": "virtual", "worker.flops": 1e6}


FOUND = yaml.safe_load(Path(__file__).with_name("found.yaml").read_text())


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_stays_whole(name, reports):
    workload = FOUND[name].get("workload", "ctr-synthetic")
    finding = check({"workload": workload, **SMALL, **WORKLOADS[workload], "seed": 0, **FOUND[name]})
    assert finding is None, f"{finding.kind}: {finding.detail}"


def test_nobody_is_left_with_an_answer_that_nobody_hears(monkeypatch):
    """A step asks for its group when it begins; its worker and the rendezvous may both be gone before it listens. An error that
    nobody has heard ends the run as soon as Python collects it, which is now or later."""
    unheard = []
    monkeypatch.setattr(VirtualLoop, "call_exception_handler", lambda loop, context: unheard.append(context["message"]))
    hangs = {"node": "worker3", "kind": "hangs", "at_batch": 7, "lasts": 0.0029}
    plan = [hangs, {"node": "server0", "kind": "dies", "every": 0.06, "lasts": 0.01}]
    options = {**SMALL, **WORKLOADS["ctr-synthetic"], "workers": 6, "samples": 369, "slowdown": 2.0, "failures": plan}
    cluster = options.pop("cluster")
    for protocol in ("all-reduce", "s-easgd"):
        run = lib.train("ctr-synthetic", protocol, cluster, save=False, seed=0, patience=0.0012, **options)
        assert run.summary["returns_to_a_cut"]
    gc.collect()
    assert not unheard


def test_a_gradient_that_is_used_twice_does_not_balance():
    record = PartLog("server0", None, used=[0, 1, 2, 1])
    with pytest.raises(LockstepError, match=r"server0 used the gradients of these batches more than once: \[1\]"):
        gradient_ledger([record])


def test_a_leg_goes_on_after_those_that_are_over():
    """On a wall clock each stage began where its own cut said, so that the second was before the first."""
    case = {"workload": "ctr-synthetic", **WORKLOADS["ctr-synthetic"], "cluster": "local", "seed": 0, "samples": 190}
    case["protocol"] = {"phases": [{"protocol": {"name": "sequential"}, "steps": 3}, {"protocol": {"name": "bsp"}}]}
    for seed in range(3):  # of which each is stopped elsewhere
        finding = check(case | {"seed": seed, "checkpoint_every": 8})
        assert finding is None, f"{finding.kind}: {finding.detail}"
