"""Cases in which something was broken once, as small as they were found: they stay whole."""

import gc

import pytest

import lib
from lib.cluster.virtual import VirtualLoop
from lib.drivers.record import PartLog, settle
from lib.errors import LockstepError
from tests.soak.cases import WORKLOADS
from tests.soak.checks import check

SMALL = {"cluster": "virtual", "worker.flops": 1e6}


def phases(*names, **first):
    """The first of them ends at the limit that is given."""
    return {"phases": [{"protocol": {"name": name}, **(first if name == names[0] else {})} for name in names]}


def dies(node, **when):
    return {"node": node, "kind": "dies", **when}


FOUND = {
    "a timing run had no cuts": {"protocol": "async", "samples": 80, "gradients": False, "checkpoint_every": 16},
    "nor on one device": {"protocol": "oac", "samples": 80, "gradients": False, "checkpoint_every": 16},
    "a pipeline inherited the other workers": {"protocol": phases("async", "oac", until_samples=40), "samples": 120},
    "a device has no copy": {
        "protocol": phases("hop-bs", "pipelined", until_samples=8),
        "samples": 80,
        "patience": 0.0,
        "failures": [dies("worker*", every=0.05, lasts=0.01)],
    },
    "an optimiser had not stepped in a stage": {
        "protocol": "s-easgd",
        "workers": 6,
        "samples": 160,
        "dense_optimizer": {"name": "adam", "lr": 0.01},
        "evaluations": "daily",
    },
    "a replica had no step before the switch": {
        "protocol": phases("ds-sync", "gba", until_samples=40),
        "workers": 8,
        "samples": 160,
        "dense_optimizer": {"name": "adam", "lr": 0.01},
    },
    **{
        f"{name} paused at unlike stretches": {
            "protocol": name,
            "workers": 3,
            "samples": 240,
            "feed": "stream",
            "partitions": [1, 0, 5],
            "checkpoint_every": 48,
        }
        for name in ("sync", "hop-bs", "hop-bw", "all-reduce")
    },
    "a gate waited for who had paused": {
        "protocol": "hop-bs",
        "bound": 0,
        "workers": 19,
        "samples": 640,
        "feed": "queue",
        "slowdown": 2.0,
        "checkpoint_every": 96,
    },
    **{
        f"{name} made a step twice after a rejoin": {
            "protocol": name,
            "workers": 4,
            "samples": 400,
            "feed": "split",
            "slowdown": 0.5,
            "patience": 0.0005,
            "failures": [dies("worker*", every=0.02, lasts=0.003)],
        }
        for name in ("sync", "hop-bs", "hop-bw", "all-reduce")
    },
    "batches of a stretch were made twice": {
        "protocol": phases("ds-sync", "async", until_samples=144),
        "workers": 4,
        "samples": 240,
        "feed": "stream",
        "checkpoint_every": 112,
        "patience": 0.0008,
        "failures": [dies("worker*", at=0.006, lasts=0.0009)],
    },
    "a fast replica made its batches again": {
        "workload": "quadratic",
        "protocol": "s-easgd",
        "samples": 480,
        "feed": "split",
        "speeds": [5.0, 1.0, 1.0],
        "patience": 0.0005,
        "failures": [dies("worker0", at_batch=12, lasts=0.001)],
    },
    "who was there again averaged in buckets, the others at once": {
        "protocol": "all-reduce",
        "buckets": 2,
        "workers": 11,
        "samples": 87,
        "patience": 0.00026,
        "failures": [dies("worker10", at=0.00033, lasts=0.0006)],
    },
    "a worker mixed with those who waited for who had paused": {
        "workload": "kg-synthetic",
        "protocol": "all-reduce",
        "workers": 6,
        "samples": 161,
        "seed": 162,
        "feed": "queue",
        "checkpoint_every": 32,
        "mishaps": {"late": 0.1, "delay": 0.023, "lost": 0.5, "retry": 0.036},
    },
    "after a pause a barrier had workers in step, and their groups had not": {
        "protocol": "all-reduce",
        "workers": 6,
        "samples": 194,
        "feed": "stream",
        "partitions": [0, 3, 0, 3, 0, 1],
        "checkpoint_every": 128,
        "patience": 0.0007,
        "failures": [
            dies("worker5", at=0.00031, lasts=0.0016),
            {"node": "worker5 - server0", "kind": "dies", "at": 0.0055, "lasts": 0.003},
        ],
    },
    "a server was dead when the stage of the cut began": {
        "protocol": phases("hop-bs", "sequential", steps=1),
        "samples": 131,
        "seed": 28,
        "checkpoint_every": 24,
        "mishaps": {"late": 0.1, "delay": 0.0016, "lost": 0.5, "retry": 0.00051},
        "failures": [dies("server0", at=0.015, lasts=0.0058)],
    },
    **{
        f"{name}'s end was never told to who died without data": {
            "workload": "quadratic",
            "protocol": name,
            "until": "all",
            "workers": 3,
            "samples": 240,
            "batch_size": 8,
            "worker.flops": 1e5,
            "feed": "stream",
            "partitions": [0, 1, 3],
            "patience": 1e-4,
            "failures": [dies("worker0", at=0.001, lasts=1e-4)],
        }
        for name in ("s-easgd", "s-ma")
    },
    "all replicas were gone": {
        "protocol": "ds-sync",
        "workers": 3,
        "samples": 240,
        "patience": 0.001,
        "failures": [dies("worker*", at=0.02, lasts=0.01)],
    },
    "a timer outlived its node": {
        "protocol": "prague",
        "workers": 4,
        "samples": 416,
        "seed": 709,
        "feed": "split",
        "checkpoint_every": 80,
        "patience": 0.00096,
        "failures": [
            dies("worker1", at_batch=5, lasts=0.01),
            {"node": "worker1", "kind": "hangs", "every": 0.03, "lasts": 0.01},
        ],
    },
    **{
        f"a barrier and a group took a worker in at unlike steps, {seed}": {
            "protocol": "all-reduce",
            "workers": 3,
            "samples": 320,
            "batch_size": 8,
            "seed": seed,
            "feed": "queue",
            "patience": 1e-4,
            "mishaps": {"late": 0.5, "delay": 0.0044, "lost": 0.3, "retry": 0.0022},
            "failures": [dies("worker0", at=0.02, lasts=0.01)],
        }
        for seed in range(1, 5)
    },
    "groups of a later stage missed who had died before": {
        "protocol": phases("ds-sync", "swarm-adam", until_samples=150),
        "workers": 3,
        "samples": 400,
        "checkpoint_every": 48,
        "patience": 0.001,
        "failures": [dies("worker0", at=0.01, lasts=0.005)],
    },
    **{
        f"a cut forgot {what}": {
            "protocol": "gba",
            "workers": 4,
            "samples": 320,
            "checkpoint_every": 48,
            "seed": 4,
            **how,
        }
        for what, how in {
            "late and lost messages": {"mishaps": {"late": 0.3, "delay": 0.001, "lost": 0.2, "retry": 0.001}},
            "deaths by batch": {"failures": [dies("worker1", at_batch=3, lasts=0.005)], "patience": 0.001},
            "slow-downs by batch": {
                "failures": [{"node": "worker1", "kind": "slows", "at_batch": 2, "lasts": 0.2, "factor": 5.0}]
            },
            "who was dead": {"failures": [dies("worker2", at=0.01, lasts=0.05)], "patience": 0.001},
            "how often it had gone back": {
                "samples": 640,
                "seed": 2,
                "failures": [dies("server0", at=0.02, lasts=0.005)],
            },
        }.items()
    },
    "nothing was trained in any stage": {
        "workload": "quadratic",
        "protocol": phases("async", "gba", until_samples=1),
        "workers": 2,
        "samples": 2,
        "feed": "stream",
        "patience": 0.0,
        "failures": [{"node": "worker1", "kind": "hangs", "at": 0.0, "lasts": 1.0}],
    },
    "two died at one moment, in the order in which they had come back": {
        "protocol": "async",
        "workers": 2,
        "samples": 344,
        "seed": 820,
        "checkpoint_every": 51,
        "slowdown": 0.3,
        "patience": 0.00094,
        "failures": [
            dies("worker*", at=0.027, lasts=0.017),
            {"node": "worker*", "kind": "hangs", "at_batch": 5, "lasts": 0.0095},
        ],
    },
    "a reader was dead at a cut, and nobody had asked it since": {
        "protocol": "ds-sync",
        "workers": 4,
        "samples": 213,
        "seed": 428,
        "dense_optimizer": {"name": "adam", "lr": 0.01},
        "row_optimizer": {"name": "momentum", "lr": 0.1},
        "checkpoint_every": 64,
        "slowdown": 0.7,
        "mishaps": {"late": 0.1, "delay": 2.2e-05, "lost": 0.1, "retry": 0.0017},
        "reader_nodes": 2,
        "server.reading": 0.000222,
        "failures": [dies("reader0", at=0.0092, lasts=0.0013)],
    },
    "who had made fewer steps before a cut waited in an all-reduce for who waited at the gate for it": {
        "protocol": "hybrid",
        "workers": 6,
        "samples": 276,
        "seed": 899,
        "dense_optimizer": {"name": "momentum", "lr": 0.1},
        "row_optimizer": {"name": "momentum", "lr": 0.01},
        "feed": "queue",
        "checkpoint_every": 80,
        "speeds": (2.0, 0.3, 2.0, 2.0, 1.0, 0.3),
        "tau": 0,
        "counts": "all",
        "buckets": 1,
    },
    "a partner that had died was asked for an answer, but not by who went on from a cut": {
        "protocol": "ad-psgd",
        "workers": 8,
        "samples": 403,
        "seed": 157,
        "feed": "stream",
        "checkpoint_every": 333,
        "slowdown": {"name": "transient", "mean_on": 0.004, "mean_off": 0.0026, "factor": 8.0},
        "failures": [
            {"node": "worker0", "kind": "hangs", "at_batch": 7, "lasts": 0.0011},
            {"node": "worker2", "kind": "slows", "every": 0.111362, "lasts": 0.0087, "factor": 20.0},
            {"node": "worker3", "kind": "dies", "every": 0.11636200000000001, "lasts": 0.0049},
        ],
    },
    "a shadow whose group broke asked for another when its worker had paused": {
        "protocol": "s-bmuf",
        "workers": 6,
        "samples": 259,
        "seed": 417,
        "checkpoint_every": 200,
        "slowdown": 0.3,
        "failures": [dies("worker0", at=0.009, lasts=0.0073)],
    },
}


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
    plan = [
        {"node": "worker3", "kind": "hangs", "at_batch": 7, "lasts": 0.0029},
        {"node": "server0", "kind": "dies", "every": 0.06, "lasts": 0.01},
    ]
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
        settle([record])


def test_a_leg_goes_on_after_those_that_are_over():
    """On a wall clock each stage began where its own cut said, so that the second was before the first."""
    case = {"workload": "ctr-synthetic", **WORKLOADS["ctr-synthetic"], "cluster": "local", "seed": 0, "samples": 190}
    case["protocol"] = {"phases": [{"protocol": {"name": "sequential"}, "steps": 3}, {"protocol": {"name": "bsp"}}]}
    for seed in range(3):  # of which each is stopped elsewhere
        finding = check(case | {"seed": seed, "checkpoint_every": 8})
        assert finding is None, f"{finding.kind}: {finding.detail}"
