"""What really goes: of three raylets one is killed while a run is on them, and a process of a run that may lose none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lib.errors import LockstepError
from lib.training.train import Job

TASK = {"batch_size": 8, "vocabulary": 30, "fields": 2, "dim": 2, "hidden": (4,), "dense_features": 1}
SCRIPT = """
import json
import os
from pathlib import Path

os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

import numpy as np
from ray.cluster_utils import Cluster

from lib.store.spec import RowStore
from lib.training.train import Job

NOTICED = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 10}
MACHINE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
machines = Cluster(initialize_head=True, head_node_args={**MACHINE, "include_dashboard": False, "_system_config": NOTICED})
others = [machines.add_node(**MACHINE) for _ in range(2)]
trained = killed = 0
stood = {}


def processes(machine):
    raylet = machine.all_processes["raylet"][0].process.pid
    children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
    return sum("ray::Host" in Path(f"/proc/{child}/cmdline").read_text() for child in children)


def parent(process):
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def progress(samples):
    global trained, killed
    trained += samples
    for note in Path("/dev/shm").glob("lockstep-*-server*/rows"):  # whose owner is a server, and that one's parent a raylet
        owner = int(np.fromfile(note, np.int64, 3)[2])
        if not killed and Path(f"/proc/{owner}").exists():
            stood[note.parent.name.split("-")[2]] = parent(owner)
    if trained > 1600 and not killed and any(map(processes, others)):
        machine = max(others, key=processes)
        killed = processes(machine)
        others.remove(machine)
        machines.remove_node(machine, allow_graceful=False)


try:
    cluster = {"workers": 3, "servers": 3, "address": machines.address, "store": RowStore(shared_memory=True)}
    task = json.loads(os.environ["TASK"])
    job = Job.of("ctr-synthetic", "gba", "ray", samples=8000, checkpoint_every=800, save=False, **task, **cluster)
    summary = job.run(progress).summary
finally:
    machines.shutdown()
print(json.dumps({**summary, "killed": killed, "machines": len({*stood.values()}), "servers": len(stood)}))
"""


pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="whose process is whose is read from /proc"),
]


def test_a_machine_is_lost(reports):
    """Each server stands on a machine of its own, of one core; the run returns to its last cut on those that are left,
    since the rows of the third are gone with it."""
    pytest.importorskip("ray")
    environment = os.environ | {"TASK": json.dumps(TASK)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads(done.stdout.strip().splitlines()[-1])
    assert summary["killed"] and summary["returns_to_a_cut"] >= 1
    assert summary["servers"] == 3 and summary["machines"] >= 2, summary
    assert summary["samples"] == 8000, summary
    outcomes = ("applied", "decayed", "dropped", "lost", "in_flight")
    assert summary["issued"] == sum(summary[name] for name in outcomes) >= 1000


def test_a_process_that_dies_once_more_than_is_allowed_ends_the_run(joined_ray):
    killed = []

    def progress(samples):
        if samples and not killed:
            killed.append(max(hosts()))
            os.kill(killed[0], signal.SIGKILL)

    job = Job.of("ctr-synthetic", "gba", "ray", samples=8000, save=False, workers=2, restarts=0, **TASK)
    with pytest.raises(LockstepError, match="process died of itself, and a run with restarts=0 returns to its cut no"):
        job.run(progress)
    assert killed


def hosts():
    """The processes of parts that this process has started, by way of a raylet."""
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if "ray::Host" in place.read_text() and _parent(_parent(int(place.parent.name))) == os.getpid():
                yield int(place.parent.name)
        except OSError:  # it has ended
            continue


def _parent(process):
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
