"""Ctrl-C during training: the process ends soon, as interrupted, with nothing half-written and no process left behind."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

SCRIPT = """
import dataclasses, pathlib, sys
import lib
from lib.tasks.clicks import ClickThrough

class Endless(ClickThrough):
    def draw(self, seed, first, size, index):
        if index == 20:
            pathlib.Path({mark!r}).touch()
        return super().draw(seed, first, size, index)

if __name__ == "__main__":
    workload = Endless(samples=10**12, batch_size=64, vocabulary=50, fields=3, evaluation_samples=100)
    cluster = {{"virtual": lib.VirtualCluster, "local": lib.LocalCluster, "ray": lib.RayCluster}}[{cluster!r}](workers=2)
    pathlib.Path({mark!r} + ".starting").touch()
    lib.train(workload, {protocol!r}, cluster)
"""


PATIENCE = 300
"""Seconds: a machine that is busy with something else takes a hundred times what an idle one does."""


def wait_for(happens):
    end = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < end, f"not within {PATIENCE} s"
        time.sleep(0.02)


def family(root):
    """The process and all that descend from it, by (id, start): ids are used again."""
    parents, starts = {}, {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as stat:
                state, parent, *rest = stat.read().rpartition(")")[2].split()
        except OSError:
            continue
        if state != "Z":
            parents[int(entry)], starts[int(entry)] = int(parent), rest[17]
    members = {root} & parents.keys()
    while grown := {pid for pid, parent in parents.items() if parent in members} - members:
        members |= grown
    return {(pid, starts[pid]) for pid in members}


def alive(processes):
    return {pid for pid, start in processes if (pid, start) in family(pid)}


def listening(processes):
    """The addresses on which they wait for connections."""
    found = set()
    for pid, _ in processes:
        with suppress(psutil.Error):  # it has ended
            connections = psutil.Process(pid).net_connections("tcp")
            found |= {
                each.laddr.ip.removeprefix("::ffff:") for each in connections if each.status == psutil.CONN_LISTEN
            }
    return found


def interrupted(tmp_path, cluster, protocol, after):
    """Ctrl-C as a terminal sends it: to the whole foreground group. The addresses on which its processes listened."""
    mark, script = tmp_path / "mark", tmp_path / "script.py"
    script.write_text(SCRIPT.format(mark=str(mark), cluster=cluster, protocol=protocol))
    environment = os.environ | {"LOCKSTEP_REPORTS": str(tmp_path / "reports")}
    process = subprocess.Popen(
        [sys.executable, script], env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    met = set()
    try:
        begun = mark if after is None else mark.with_name("mark.starting")
        wait_for(lambda: begun.exists() or process.poll() is not None)
        time.sleep(after or 0.1)
        assert process.poll() is None, process.communicate()[1]
        met = family(process.pid)
        addresses = listening(met)
        os.killpg(process.pid, signal.SIGINT)
        errors = process.communicate(timeout=PATIENCE)[1]
        assert errors.rstrip().endswith("KeyboardInterrupt"), errors
        assert process.returncode == -signal.SIGINT
        wait_for(lambda: not alive(met))
        runs = tmp_path / "reports" / "runs"
        assert not runs.exists() or not list(runs.iterdir())
    finally:
        for pid in alive(met):  # only what this test started
            os.kill(pid, signal.SIGKILL)
        process.kill()  # it may not have come as far as that
        process.wait()
    return addresses


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    "cluster, protocol", [pytest.param("virtual", "gba", marks=pytest.mark.nightly), ("local", "s-easgd")]
)
def test_ctrl_c_ends_a_run_in_this_process(tmp_path, cluster, protocol):
    """In virtual time test_jupyter.py sends one too."""
    interrupted(tmp_path, cluster, protocol, None)


@pytest.mark.ray
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks for processes in /proc")
@pytest.mark.parametrize("after", [None, pytest.param(4.0, marks=pytest.mark.nightly)], ids=["training", "starting"])
def test_a_run_on_ray_listens_on_the_loopback_address_and_ctrl_c_ends_all_its_processes(tmp_path, after):
    """Torch's store and Ray's servers listened on all addresses; the store has no authentication. Ray is let finish its start,
    since its processes outlive one that is cut short."""
    addresses = interrupted(tmp_path, "ray", "ds-sync", after)
    assert addresses == {"127.0.0.1"} or after
