"""Machines that really go: three of Ray's raylets on this machine, of which one is killed while a run is on them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json
import os
from pathlib import Path

os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

from ray.cluster_utils import Cluster

from lib.errors import LockstepError
from lib.training.train import Job

NOTICED = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 10}
MACHINE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
machines = Cluster(initialize_head=True, head_node_args={**MACHINE, "include_dashboard": False, "_system_config": NOTICED})
others = [machines.add_node(**MACHINE) for _ in range(2)]
SMALL = {"batch_size": 8, "vocabulary": 30, "fields": 2, "dim": 2, "hidden": (4,), "dense_features": 1}
told = []


def processes(machine):
    raylet = machine.all_processes["raylet"][0].process.pid
    children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
    return sum("ray::Host" in Path(f"/proc/{child}/cmdline").read_text() for child in children)


def train(restarts):
    trained, killed = 0, 0

    def progress(samples):
        nonlocal trained, killed
        trained += samples
        if trained > 1600 and not killed and any(map(processes, others)):
            machine = max(others, key=processes)
            killed = processes(machine)
            others.remove(machine)
            machines.remove_node(machine, allow_graceful=False)

    cluster = {"workers": 3, "servers": 2, "address": machines.address, "restarts": restarts}
    job = Job.of(
        "ctr-synthetic", "gba", "ray", samples=8000, checkpoint_every=800, save=False, seed=restarts, **SMALL, **cluster
    )
    try:
        summary = job.run(progress).summary
    except LockstepError as error:
        told.append({"killed": killed, "error": str(error)})
        return
    names = ("samples", "issued", "applied", "decayed", "dropped", "lost", "in_flight", "returns_to_a_cut")
    told.append({"killed": killed, **{name: summary[name] for name in names}})


try:
    train(restarts=3)
    train(restarts=0)
finally:
    machines.shutdown()
print(json.dumps(told))
"""


@pytest.mark.ray
def test_a_machine_is_lost(reports):
    """The run returns to its last cut on the machines that are left; one that is not to do so says what happened."""
    pytest.importorskip("ray")
    if not Path("/proc/self/task").exists():
        pytest.skip("which processes a raylet has is read from /proc")
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    went_on, ended = json.loads(done.stdout.strip().splitlines()[-1])
    assert went_on["killed"] and went_on["returns_to_a_cut"] >= 1
    assert went_on["samples"] == 8000, went_on
    outcomes = ("applied", "decayed", "dropped", "lost", "in_flight")
    assert went_on["issued"] == sum(went_on[name] for name in outcomes) >= 1000
    assert ended["killed"]
    assert "process died of itself, and a run with restarts=0 returns to its cut no more" in ended["error"]
