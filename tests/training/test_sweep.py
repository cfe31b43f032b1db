"""Many runs at once: the same bits as one by one, wherever they are made, and from wherever they are asked for."""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from joblib import Parallel, delayed

import lib
from lib.errors import BadOption, UnknownOption
from lib.progress import Progress
from lib.tasks.quadratic import QuadraticBowl
from lib.training import sweep as sweeps
from lib.training.schedule import BATCH
from lib.training.sweep import SweepFailed
from tests.training.test_interrupt import alive, family, started, wait_for

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


def small(workload="quadratic", **more):
    return {"workload": workload, "protocol": "gba", "cluster": lib.VirtualCluster(workers=2), "samples": 320, **more}


@pytest.fixture
def folder(tmp_path):
    """Where runs of `Where` note their processes."""
    (there := tmp_path / "processes").mkdir()
    return there


@pytest.fixture(scope="module")
def folder_of_all(tmp_path_factory):
    return tmp_path_factory.mktemp("sweep") / "reports"


@pytest.fixture
def reports(folder_of_all, monkeypatch):
    """The same folder for all, empty: other processes know theirs from their start, and another folder takes other processes."""
    shutil.rmtree(folder_of_all, ignore_errors=True)
    monkeypatch.setenv("LOCKSTEP_REPORTS", str(folder_of_all))
    return folder_of_all


def test_a_run_is_the_same_wherever_it_is_made(reports):
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


def test_the_line_counts_runs_and_what_is_done_of_those_under_way(reports, monkeypatch):
    lines = []
    monkeypatch.setattr(Progress, "refresh", lambda line, **_: lines.append((line.desc, line.n)))
    monkeypatch.setattr(sweeps, "LOOK", 0.05)
    jobs = [{**CLICKS, "protocol": "gba", "samples": 6_000, "seed": seed, "save": False} for seed in range(2)]
    lib.sweep(jobs, processes=2, label="tuning")
    counts = [n for _, n in lines]
    one = 6_000 + 47 * BATCH  # which has so many batches
    assert counts == sorted(counts) and counts[-1] == 2 * one
    assert any(0 < n < 2 * one and n != one for n in counts), "a run that has not ended is counted too"
    assert {desc for desc, _ in lines} >= {"tuning, 0 of 2 runs", "tuning, 2 of 2 runs"}


def test_options_are_checked_before_anything_runs(reports):
    with pytest.raises(UnknownOption, match=r"sweep: jobs\[1\]: .*no option 'iotta'; did you mean 'iota'"):
        lib.sweep([small(), small(iotta=3)])
    with pytest.raises(BadOption, match=r"sweep: jobs\[0\]: virtual cluster: workers must be a whole number, not 'x'"):
        lib.sweep([small(cluster="virtual", workers="x")])
    with pytest.raises(BadOption, match=r"sweep: jobs\[1\] must map cluster, protocol, workload"):
        lib.sweep([small(), {"workload": "quadratic"}])
    with pytest.raises(BadOption, match="processes must be at least 1, not 0"):
        lib.sweep([small()], processes=0)
    assert not reports.exists()


def test_a_job_that_fails_stops_no_other(reports):
    with pytest.raises(SweepFailed) as caught:
        lib.sweep([small(), small(Breaks(), seed=3), small(seed=1)], processes=2)
    assert "1 of 3 runs failed" in str(caught.value)
    assert "breaks gba virtual, seed 3: no such batch" in str(caught.value)
    runs = caught.value.runs
    assert [run is None for run in runs] == [False, True, False]
    assert runs[2].digest == lib.train(**small(seed=1)).digest
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_class_that_no_other_process_can_import_travels(reports, folder):
    class Local(Where):
        """As a notebook's."""

    jobs = [small(Local(folder=str(folder)), seed=seed) for seed in range(3)]
    runs = lib.sweep(jobs, processes=2)
    assert str(os.getpid()) not in os.listdir(folder) and len(list((reports / "runs").iterdir())) == 3
    assert [run.digest for run in lib.sweep(jobs, processes=1)] == [run.digest for run in runs]
    assert len(list((reports / "runs").iterdir())) == 3, "they are found again by the same names"


def test_a_class_that_changed_since_the_other_process_read_it_is_not_run_there(reports, folder, monkeypatch):
    jobs = [small(Where(folder=str(folder)), seed=seed) for seed in range(2)]
    monkeypatch.setattr(Where, "loads", lambda workload: 1, raising=False)  # as a notebook that reloads its module does
    assert len(lib.sweep(jobs, processes=2)) == 2
    assert os.listdir(folder) == [str(os.getpid())]


def test_a_wall_clock_is_not_shared(reports, folder):
    jobs = [small(Where(folder=str(folder)), cluster=lib.LocalCluster(workers=2), seed=seed) for seed in range(2)]
    assert {run.summary["clock"] for run in lib.sweep(jobs, processes=2)} == {"wall"}
    assert os.listdir(folder) == [str(os.getpid())]


def test_the_processes_stay_beside_those_of_joblib_and_are_replaced_once_killed(reports, folder):
    """joblib's are loky's own reusable ones, which a person's notebook may use next to a sweep."""
    jobs = [small(Where(folder=str(folder)), seed=seed) for seed in range(6)]
    lib.sweep(jobs[:2], processes=2)
    assert Parallel(2)(delayed(abs)(each) for each in (-1, -2)) == [1, 2]
    first = set(os.listdir(folder))
    for process in first:
        os.kill(int(process), signal.SIGKILL)
    assert len(lib.sweep(jobs[2:4], processes=2)) == 2  # made here, if the loss is noticed only now
    lib.sweep(jobs[4:], processes=2)
    assert str(os.getpid()) not in first and set(os.listdir(folder)) - first - {str(os.getpid())}


def test_what_a_killed_process_had_under_way_is_made_here(reports):
    runs = lib.sweep([small(Dies(home=os.getpid())), small(), small(seed=1)], processes=2)
    assert [run.summary["samples"] for run in runs] == [320] * 3
    assert len(list((reports / "runs").iterdir())) == 3


SCRIPT = """
from dataclasses import dataclass
import lib
from lib.protocols.baselines import Sync

@dataclass(frozen=True, kw_only=True)
class Mine(Sync):
    name = "mine"

print("once")
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
    here = {"env": environment, "cwd": tmp_path, "timeout": 3000}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, **here)
    assert (done.returncode, done.stdout) == (0, "once\nTrue False\n"), done.stderr
    assert all(" passed, " in line for line in done.stderr.splitlines())  # which it says on a busy machine


ENDLESS = """
import pathlib, sys
import lib
from lib.tasks.clicks import ClickThrough

class Endless(ClickThrough):
    def draw(self, seed, first, size, index):
        if index == 20:
            pathlib.Path(sys.argv[1], f"run-{seed}").touch()
        return super().draw(seed, first, size, index)

if __name__ == "__main__":
    lib.sweep([dict(workload="quadratic", protocol="gba", cluster="virtual", workers=2, samples=320)])
    workload = Endless(samples=10**12, batch_size=64, vocabulary=50, fields=3, evaluation_samples=100)
    jobs = [dict(workload=workload, protocol="gba", cluster="virtual", workers=4, seed=seed) for seed in range(3)]
    lib.sweep(jobs, processes=2)
"""


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks for processes in /proc")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_or_a_kill_ends_a_sweep_and_its_processes(tmp_path, sent):
    reports, script = tmp_path / "reports", tmp_path / "script.py"
    script.write_text(ENDLESS.replace("sys.argv[1]", repr(str(tmp_path))))
    with started(script, reports) as (process, met):
        wait_for(lambda: process.poll() is not None or len(list(tmp_path.glob("run-*"))) == 2)
        assert process.poll() is None, process.communicate()[1]
        met |= family(process.pid)
        assert len(met) >= 3
        (os.killpg if sent == signal.SIGINT else os.kill)(process.pid, sent)
        process.wait(timeout=300)
        assert process.returncode == -sent
        wait_for(lambda: not alive(met))
        saved = [each for each in os.listdir(reports / "runs") if each[0] != "."]
        assert len(saved) == 1, "what was saved before, and no half"
        assert ("KeyboardInterrupt" in process.communicate()[1]) == (sent == signal.SIGINT)


TWICE = """
import sys
import lib
from lib.drivers.plan import Plan
from pathlib import Path
before = Plan.batch
def batch(self, index):
    (Path(sys.argv[1]) / f"{sys.argv[2]}-{index}").touch()
    return before(self, index)
Plan.batch = batch
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
