"""Many runs at once: the same bits as one by one, wherever they are made, and from wherever they are asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import lib
from lib.errors import BadOption, UnknownOption
from lib.progress import _open
from lib.tasks.quadratic import QuadraticBowl
from lib.training import sweep as sweeps
from lib.training.sweep import SweepFailed
from tests.training.test_interrupt import alive, family, wait_for

ROOT = Path(__file__).parents[2]
CLICKS = {"workload": "ctr-synthetic", "cluster": "virtual", "workers": 4, "samples": 2000, "evaluation_samples": 200}


@dataclass(frozen=True, kw_only=True)
class Breaks(QuadraticBowl):
    """Its third batch cannot be made."""

    name = "breaks"

    def draw(self, seed, first, size, index):
        if index == 2:
            raise ValueError("no such batch")
        return super().draw(seed, first, size, index)


@dataclass(frozen=True, kw_only=True)
class Dies(QuadraticBowl):
    """It ends the process that trains it, unless that is the one that asked for it."""

    name = "dies"
    home: int

    def draw(self, seed, first, size, index):
        if os.getpid() != self.home:
            os._exit(7)
        return super().draw(seed, first, size, index)


@dataclass(frozen=True, kw_only=True)
class Where(QuadraticBowl):
    """It notes which process trains it."""

    name = "where"
    folder: str

    def draw(self, seed, first, size, index):
        (Path(self.folder) / f"{os.getpid()}").touch()
        time.sleep(0.02)  # so that one process cannot make every run before the other takes one
        return super().draw(seed, first, size, index)


@pytest.fixture(scope="module", autouse=True)
def _no_child_stays():
    yield
    sweeps._stop(sweeps._children)


def small(workload="quadratic", **more):
    return {"workload": workload, "protocol": "gba", "cluster": lib.VirtualCluster(workers=2), "samples": 320, **more}


@pytest.fixture
def a_child():
    """A child that takes orders, so that runs are made there and not only here."""
    (child,) = sweeps._start(1)
    with child.lock:
        child.wait()
    return child


def wait_here(monkeypatch, as_long_as):
    """This process leaves the runs that can travel to the child for so long."""
    before = sweeps._taken

    def taken(tasks):
        while threading.current_thread() is threading.main_thread() and as_long_as(tasks):
            time.sleep(0.01)
        return before(tasks)

    monkeypatch.setattr(sweeps, "_taken", taken)


@pytest.fixture
def nothing_here(monkeypatch):
    """Whatever can travel is made by the child."""
    wait_here(monkeypatch, lambda tasks: tasks)


def test_a_run_is_the_same_wherever_it_is_made(reports, a_child, nothing_here):
    jobs = [{**CLICKS, "protocol": name, "seed": seed} for name in ("gba", "s-easgd", "oac") for seed in (0, 1)]
    for job in jobs:
        if job["protocol"] == "oac":
            del job["workers"]
    alone = [lib.train(**job, save=False) for job in jobs]
    runs = lib.sweep(jobs, processes=2)
    assert [run.digest for run in runs] == [run.digest for run in alone]
    assert [repr(run.summary) for run in runs] == [repr(run.summary) for run in alone]
    assert len({run.digest for run in runs}) == 6
    for run, one in zip(runs, alone, strict=True):
        assert run.history.equals(one.history) and run.provenance == one.provenance
    assert len(list((reports / "runs").iterdir())) == 6
    assert [lib.train(**job).digest for job in jobs] == [run.digest for run in alone]


def test_both_processes_work_and_their_order_does_not_show(tmp_path, a_child):
    jobs = [small(Where(folder=str(tmp_path)), seed=seed) for seed in range(8)]
    runs = lib.sweep(jobs, processes=2)
    assert [run.provenance["seed"] for run in runs] == list(range(8))
    assert len(list(tmp_path.iterdir())) == 2 and str(os.getpid()) in os.listdir(tmp_path)
    assert sweeps._start(1) == [a_child], "it is kept for the next sweep"


def test_what_is_saved_is_loaded_and_equal_jobs_run_once(reports, monkeypatch):
    made = []
    train = sweeps.Job.run
    monkeypatch.setattr(sweeps.Job, "run", lambda job, progress: made.append(job.key) or train(job, progress))
    first = lib.train(**small())
    made.clear()
    runs = lib.sweep([small(), small(seed=1), small(seed=1, save=False), small()], processes=1)
    assert len(made) == 1 and len(list((reports / "runs").iterdir())) == 2
    assert runs[0].digest == runs[3].digest == first.digest and runs[1] is runs[2]
    assert runs[1].digest == lib.train(**small(seed=1), save=False).digest
    made.clear()
    lib.sweep([small(), small(force=True)], processes=1)
    assert len(made) == 1
    assert lib.sweep([]) == []


def test_options_are_checked_before_anything_runs(reports):
    with pytest.raises(UnknownOption, match=r"sweep: jobs\[1\]: .*no option 'iotta'; did you mean 'iota'"):
        lib.sweep([small(), small(iotta=3)])
    with pytest.raises(BadOption, match=r"sweep: jobs\[0\]: virtual cluster: workers must be a whole number, not 'x'"):
        lib.sweep([small(cluster="virtual", workers="x")])
    with pytest.raises(BadOption, match=r"sweep: jobs\[1\] must map workload, protocol, cluster"):
        lib.sweep([small(), {"workload": "quadratic"}])
    with pytest.raises(BadOption, match="processes must be at least 1, not 0"):
        lib.sweep([small()], processes=0)
    assert not reports.exists()


def test_a_job_that_fails_stops_no_other(reports, a_child, nothing_here):
    with pytest.raises(SweepFailed) as caught:
        lib.sweep([small(), small(Breaks(), seed=3), small(seed=1)], processes=2)
    assert "1 of 3 runs failed" in str(caught.value)
    assert "jobs[1] (breaks gba virtual, seed 3): no such batch" in str(caught.value)
    runs = caught.value.runs
    assert [run is None for run in runs] == [False, True, False]
    assert runs[2].digest == lib.train(**small(seed=1)).digest
    assert isinstance(caught.value.__cause__, ValueError)
    assert "in batch" in caught.value.__cause__.__notes__[0], "its traceback from the other process"
    assert _open == []


def test_a_process_that_dies_costs_its_run_alone(reports, a_child, monkeypatch):
    wait_here(monkeypatch, lambda tasks: len(tasks) == 3)  # the child takes the first run, which is its last
    with pytest.raises(SweepFailed, match=r"jobs\[0\].*process ended before it was done \(exit code 7\)"):
        lib.sweep([small(Dies(home=os.getpid())), small(), small(seed=1)], processes=2)
    assert sweeps._children == []
    assert len(list((reports / "runs").iterdir())) == 2


def test_what_cannot_travel_is_made_here(tmp_path, a_child):
    class Local(Where):
        """Another process cannot find it."""

    jobs = [small(Local(folder=str(tmp_path)), seed=seed) for seed in range(3)]
    assert len(lib.sweep(jobs, processes=2)) == 3
    assert os.listdir(tmp_path) == [str(os.getpid())]


def test_a_class_that_changed_since_the_child_read_it_is_not_run_there(tmp_path, a_child, nothing_here, monkeypatch):
    jobs = [small(Where(folder=str(tmp_path)), seed=seed) for seed in range(2)]
    lib.sweep(jobs, processes=2)
    assert str(os.getpid()) not in os.listdir(tmp_path)
    monkeypatch.setattr(Where, "loads", lambda workload: 1, raising=False)  # as a notebook that reloads its module does
    changed = lib.sweep(jobs, processes=2)
    assert str(os.getpid()) in os.listdir(tmp_path) and len(changed) == 2


def test_a_wall_clock_is_not_shared(tmp_path, a_child, monkeypatch):
    monkeypatch.setattr(sweeps, "order", lambda *_: pytest.fail("a run on a wall clock was sent away"))
    jobs = [small(Where(folder=str(tmp_path)), cluster=lib.LocalCluster(workers=2), seed=seed) for seed in range(2)]
    assert {run.summary["clock"] for run in lib.sweep(jobs, processes=2)} == {"wall"}
    assert os.listdir(tmp_path) == [str(os.getpid())]


SCRIPT = """
from dataclasses import dataclass
import lib
from lib.protocols.baselines import Sync
from lib.training import sweep as sweeps

@dataclass(frozen=True, kw_only=True)
class Mine(Sync):
    name = "mine"

print("once")
sweeps._start(1)[0].wait()
cluster = lib.VirtualCluster(workers=2)
jobs = [dict(workload="quadratic", protocol=p, cluster=cluster, samples=320, seed=s, save=False) for s in (0, 1)
        for p in ("sync", Mine())]
runs = lib.sweep(jobs, processes=2)
print(runs[0].digest == runs[1].digest, runs[0].digest == runs[2].digest)
"""


def test_a_script_needs_no_guard(tmp_path):
    script = tmp_path / "scripts" / "script.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    (tmp_path / "lib").mkdir()  # a package of that name where the script is started is none of ours
    (tmp_path / "lib" / "__init__.py").write_text("1 / 0")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LOCKSTEP_REPORTS": str(tmp_path / "reports")}
    done = subprocess.run(
        [sys.executable, script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "once\nTrue False\n"), done.stderr
    assert all(", took " in line for line in done.stderr.splitlines())  # which it says on a busy machine


ENDLESS = """
import sys
import lib
lib.sweep([dict(workload="quadratic", protocol="gba", cluster="virtual", workers=2, samples=320)])
jobs = [dict(workload="ctr-synthetic", protocol="gba", cluster="virtual", workers=4, samples=10**9, seed=s)
        for s in range(3)]
lib.training.sweep.Progress.advance = lambda self, amount: print(amount, flush=True)
lib.sweep(jobs, processes=2)
"""


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks for processes in /proc")
def test_ctrl_c_ends_a_sweep_and_its_processes(tmp_path):
    reports = tmp_path / "reports"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LOCKSTEP_REPORTS": str(reports)}
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS],
        env=environment,
        stdout=(tmp_path / "out").open("w"),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    met = set()
    try:
        # The child tells of its samples seldom and in thousands, this process of each batch.
        wait_for(lambda: process.poll() is not None or any(
            int(line) > 2000 for line in (tmp_path / "out").read_text().split()[:-1]))  # fmt: skip
        assert process.poll() is None, process.communicate()[1]
        met = family(process.pid)
        assert len(met) == 2
        os.killpg(process.pid, signal.SIGINT)
        errors = process.communicate(timeout=300)[1]
        assert errors.rstrip().endswith("KeyboardInterrupt"), errors
        assert process.returncode == -signal.SIGINT
        wait_for(lambda: not alive(met))
        assert len(os.listdir(reports / "runs")) == 1, "what was saved before, and no half"
    finally:
        for pid in alive(met):
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()


TWICE = """
import sys
import lib
from lib.drivers.run.trainer import Trainer
from pathlib import Path
before = Trainer.batch
async def batch(self, index):
    (Path(sys.argv[1]) / f"{sys.argv[2]}-{index}").touch()
    return await before(self, index)
Trainer.batch = batch
workload = lib.workloads.get("quadratic", samples=32 * 2000)
print(lib.sweep([dict(workload=workload, protocol="gba", cluster="virtual", workers=2)])[0].digest)
"""


def test_two_processes_that_ask_for_one_run_make_it_once(tmp_path):
    """As notebooks that share runs do, side by side."""
    (made := tmp_path / "made").mkdir()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LOCKSTEP_REPORTS": str(tmp_path / "reports")}
    started = [
        subprocess.Popen([sys.executable, "-c", TWICE, made, name], env=environment, stdout=subprocess.PIPE, text=True)
        for name in ("a", "b")
    ]
    digests = {process.communicate(timeout=3000)[0] for process in started}
    assert len(digests) == 1 and all(process.returncode == 0 for process in started)
    assert len({name[0] for name in os.listdir(made)}) == 1
    assert list((tmp_path / "reports" / "locks").iterdir()) == []
