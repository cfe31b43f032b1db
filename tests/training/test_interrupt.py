"""Ctrl-C during training: the process ends soon, as interrupted, with nothing half-written and no process left behind."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import psutil
import pytest

from lib import paths

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
    """The process and all that descend from it."""
    process = psutil.Process(root)
    return {process, *process.children(recursive=True)}


def alive(processes):
    found = set()
    for each in processes:
        with suppress(psutil.Error):  # it has ended
            found |= {each} if each.is_running() and each.status() != psutil.STATUS_ZOMBIE else set()
    return found


def listening(processes):
    """The addresses on which they wait for connections."""
    found = set()
    for process in processes:
        with suppress(psutil.Error):  # it has ended
            for each in process.net_connections("tcp"):
                if each.status == psutil.CONN_LISTEN:
                    found.add(each.laddr.ip.removeprefix("::ffff:"))
    return found


@contextmanager
def started(script, reports):
    """The process of a script, in a group of its own; of it and of what is put into the set nothing is left afterwards."""
    environment = os.environ | {"PYTHONPATH": str(paths.root()), "LOCKSTEP_REPORTS": str(reports)}
    words = [sys.executable, script]
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    met = set()
    try:
        yield process, met
    finally:
        for each in alive(met):  # only what this test started
            each.kill()
        process.kill()  # it may not have come as far as that
        process.wait()


def interrupted(tmp_path, cluster, protocol, after):
    """Ctrl-C as a terminal sends it: to the whole foreground group. The addresses on which its processes listened."""
    mark, script = tmp_path / "mark", tmp_path / "script.py"
    script.write_text(SCRIPT.format(mark=str(mark), cluster=cluster, protocol=protocol))
    with started(script, tmp_path / "reports") as (process, met):
        begun = mark if after is None else mark.with_name("mark.starting")
        wait_for(lambda: begun.exists() or process.poll() is not None)
        time.sleep(after or 0.1)
        assert process.poll() is None, process.communicate()[1]
        met |= family(process.pid)
        addresses = listening(met)
        os.killpg(process.pid, signal.SIGINT)
        errors = process.communicate(timeout=PATIENCE)[1]
        assert errors.rstrip().endswith("KeyboardInterrupt"), errors
        assert process.returncode == -signal.SIGINT
        wait_for(lambda: not alive(met))
        runs = tmp_path / "reports" / "runs"
        assert not runs.exists() or not list(runs.iterdir())
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
