"""Ray: how it is started, which machine and share of a core a node gets, and what a lost machine or process does to a run."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch.distributed as distributed

from lib.cluster.base import Meeting
from lib.cluster.ray import cluster as starting
from lib.cluster.ray.cluster import RayCluster
from lib.cluster.ray.node import RaySite, actor_options, require_gpu_share
from lib.errors import BadOption, LockstepError
from lib.training.train import Job

TASK = {"batch_size": 8, "vocabulary": 30, "fields": 2, "dim": 2, "hidden": (4,), "dense_features": 1}
MACHINES = [
    {"NodeID": name, "Alive": alive, "Resources": {"CPU": cores}}
    for name, alive, cores in (("a", True, 1.0), ("b", True, 2.0), ("c", True, 4.0), ("d", False, 8.0))
]
READS_PROC = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="whose process is whose is in /proc")


def placed(node, machines=MACHINES):
    """The share of a core that a node of six processes gets; its machine, and whether another will do."""
    found = actor_options(node, machines, 6)
    where = found.get("scheduling_strategy")
    return found["num_cpus"], where and (where.node_id, where.soft)


@pytest.fixture
def _any_name(monkeypatch):
    """Ray's own names of machines are longer."""
    strategies = pytest.importorskip("ray.util.scheduling_strategies")
    monkeypatch.setattr(strategies.NodeAffinitySchedulingStrategy, "_validate_attributes", lambda self: None)


@pytest.mark.usefixtures("_any_name")
def test_servers_are_spread_over_the_machines_that_are_up():
    assert [placed(f"server{number}")[1] for number in range(4)] == [("a", True), ("b", True), ("c", True), ("a", True)]
    assert placed("worker1")[1] is None


@pytest.mark.parametrize(
    "cores, share", [((2,), 0.3333), ((1, 1, 1), 0.3333), ((4, 4), 0.5), ((16, 16, 16), 1), ((8, 1), 0.1666), ((0,), 0)]
)
def test_all_find_room_where_the_largest_machine_is_lost(cores, share):
    """Three workers and three servers."""
    machines = [
        {"NodeID": str(number), "Alive": True, "Resources": {"CPU": float(many)} if many else {}}
        for number, many in enumerate(cores)
    ]
    assert placed("worker0", machines) == (share, None)
    left = sorted(cores)[:-1] or cores
    assert share == 0 or sum(int(many / share) for many in left) >= 6


def test_nodes_other_than_workers_and_servers_have_no_share():
    """The shares fill the machines: one more node that asked for cores would be waited for, for ever."""
    assert [placed(f"{role}0")[0] for role in ("worker", "embedding", "reader", "sync")] == [0.5, 0, 0, 0]
    assert placed("master") == (0, None)


@pytest.mark.parametrize(
    "gpus, workers, share", [((4,), 4, 1), ((2, 2), 3, 1), ((1,), 4, 0.25), ((2, 1), 8, 0.3333), ((2,), 3, 0.5)]
)
def test_workers_share_gpus_where_there_are_fewer_of_them(gpus, workers, share):
    """So many fit on the GPUs that are up, each of which is shared by whole workers."""
    machines = [{"Alive": True, "Resources": {"CPU": 4.0, "GPU": float(many)}} for many in gpus]
    machines += [{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": False, "Resources": {"GPU": 8.0}}]
    assert require_gpu_share(machines, workers) == share
    assert sum(many * int(1 / share) for many in gpus) >= workers


def test_a_ray_cluster_without_a_gpu_is_an_error():
    with pytest.raises(BadOption, match='no machine of the Ray cluster has a GPU for device="cuda"; use device="cpu"'):
        require_gpu_share(MACHINES, 4)


@pytest.mark.parametrize(
    "device, gpus, share, backend", [("cuda", 4, 1, "nccl"), ("cuda", 1, 0.25, "gloo"), ("cpu", 4, 0, "gloo")]
)
def test_processes_that_share_a_gpu_average_with_gloo(monkeypatch, device, gpus, share, backend):
    """NCCL cannot have two ranks on one GPU. Servers have none."""
    pytest.importorskip("ray")
    asked, made = [], []

    class Actors:
        def nodes(self):
            return [{"NodeID": "a", "Alive": True, "Resources": {"CPU": 4.0, "GPU": float(gpus)}}]

        def remote(self, **options):
            return lambda kind: SimpleNamespace(remote=lambda *args: asked.append((options["num_gpus"], args[3])))

    world = RayCluster(address="head:6379", device=device, workers=4).open(0, 4)
    world.ray = Actors()
    monkeypatch.setattr(world, "_form_process_group", lambda: asyncio.sleep(0))
    monkeypatch.setattr(starting, "actor_options", lambda *_: {})

    async def run():
        world._launch_workers()
        world._start_actor("server0")
        site = RaySite(world.cluster, 0, "worker0", asked[0][1])
        site.store = None
        site.group(Meeting("all", (0, 1)))
        return site.device.type

    for name, found in (("ProcessGroupNCCL", "nccl"), ("ProcessGroupGloo", "gloo")):
        monkeypatch.setattr(distributed, name, lambda *_, found=found: made.append(found), raising=False)
    monkeypatch.setattr(distributed, "PrefixStore", lambda *_: None)
    assert asyncio.run(run()) == device
    assert [each for each, _ in asked] == [share] * 4 + [0]
    assert made == [backend] and world.collective_backend == backend


@pytest.mark.parametrize("fails, tries", [(RuntimeError("timed out"), 2), (ValueError("an option"), 1)])
def test_ray_that_does_not_start_is_started_once_more_and_reported(monkeypatch, fails, tries):
    pytest.importorskip("ray")
    met = []

    def start(**options):
        met.append(options)
        raise fails

    world = RayCluster(workers=1).open(seed=0, workers=1)
    monkeypatch.setattr(world.ray, "init", start)
    monkeypatch.setattr(starting, "PAUSE", 0.0)
    with pytest.raises(LockstepError, match="Ray did not start on this machine in two tries"):
        world._open_ray_session()
    assert len(met) == tries
    with pytest.raises(LockstepError, match="no Ray at 'nowhere:1' that this process can join"):
        world.cluster = RayCluster(workers=1, address="nowhere:1")
        world._open_ray_session()


def test_an_address_at_which_nothing_listens_is_refused_at_once(monkeypatch):
    monkeypatch.setattr(starting, "PAUSE", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(LockstepError, match=f"no Ray at '127.0.0.1:{port}' that this process can join"):
        starting.start_ray(f"127.0.0.1:{port}", {})
    assert time.monotonic() - began < 60, "Ray's own tries take 93 s"


@pytest.mark.parametrize("fails", [False, True])
def test_of_a_ray_that_was_started_here_only_a_failed_runs_logs_are_left(monkeypatch, tmp_path, fails):
    async def run(main, progress):
        if fails:
            raise LockstepError("a server is gone")

    world, logs = RayCluster(workers=1).open(seed=0, workers=1), tmp_path / "session"
    logs.mkdir()
    monkeypatch.setattr(world.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(world.ray, "init", lambda **options: SimpleNamespace(address_info={"session_dir": str(logs)}))
    monkeypatch.setattr(world.ray, "shutdown", lambda: None)
    monkeypatch.setattr(world, "_run", run)
    with pytest.raises(LockstepError) if fails else nullcontext():
        world.run(None)
    assert logs.exists() == fails


@pytest.mark.ray  # next to the Ray of other tests it was killed twice
def test_a_start_that_fails_leaves_nothing_running(monkeypatch, tmp_path):
    """Ray's own way to fail: its server runs, then what should wait for it gives up. What ran before is left alone."""
    pytest.importorskip("ray")
    server = tmp_path / "ray" / "server.py"
    server.parent.mkdir()
    server.write_text("import time; time.sleep(600)")
    environment = {**os.environ, "PYTHON": sys.executable, "SERVER": str(server)}
    words = ["sh", "-c", 'read _; exec "$PYTHON" "$SERVER"']
    started = [subprocess.Popen(words, stdin=subprocess.PIPE, env=environment)]

    def start(**options):
        started[0].stdin.close()  # from here on it is what it was started for, as any process is a moment later
        while str(server) not in psutil.Process(started[0].pid).cmdline():
            time.sleep(0.01)
        started.append(subprocess.Popen([sys.executable, str(server)]))
        raise RuntimeError("timed out")

    world = RayCluster(workers=1).open(seed=0, workers=1)
    monkeypatch.setattr(world.ray, "init", start)
    monkeypatch.setattr(starting, "PAUSE", 0.0)
    try:
        with pytest.raises(LockstepError, match="did not start"):
            world._open_ray_session()
        assert [each.poll() is None for each in started] == [True, False, False]
    finally:
        for each in started:
            each.kill()


SCRIPT = """
import json
import os
from contextlib import suppress
from contextlib import nullcontext
from pathlib import Path

os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

from ray.cluster_utils import Cluster

from lib.training.train import Job

NOTICED = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 10}
MACHINE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
machines = Cluster(initialize_head=True, head_node_args={**MACHINE, "include_dashboard": False, "_system_config": NOTICED})
others = [machines.add_node(**MACHINE) for _ in range(2)]
trained = killed = used = 0


def processes(machine):
    raylet = machine.all_processes["raylet"][0].process.pid
    found = 0
    for child in Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split():
        with suppress(OSError):  # it has ended
            found += "ray::Host" in Path(f"/proc/{child}/cmdline").read_text()
    return found


def progress(samples):
    global trained, killed, used
    trained += samples
    used = max(used, sum(processes(each) > 0 for each in (machines.head_node, *others)))
    if trained > 1600 and not killed and any(map(processes, others)):
        machine = max(others, key=processes)
        killed = processes(machine)
        others.remove(machine)
        machines.remove_node(machine, allow_graceful=False)


try:
    cluster = {"workers": 3, "servers": 3, "address": machines.address}
    task = json.loads(os.environ["TASK"])
    job = Job.of("ctr-synthetic", "gba", "ray", samples=8000, checkpoint_every=800, save=False, **task, **cluster)
    summary = job.run(progress).summary
finally:
    machines.shutdown()
print(json.dumps({**summary, "killed": killed, "machines": used}))
"""


@pytest.mark.nightly
@pytest.mark.ray
@READS_PROC
def test_a_machine_is_lost(reports):
    """The servers are on three machines of one core each. The run returns to its last checkpoint on the machines that are left:
    the rows of the third are gone with it."""
    pytest.importorskip("ray")
    environment = os.environ | {"TASK": json.dumps(TASK)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads(done.stdout.strip().splitlines()[-1])
    assert summary["killed"] and summary["returns_to_a_cut"] >= 1
    assert summary["machines"] >= 2, summary
    assert summary["samples"] == 8000, summary
    outcomes = ("applied", "decayed", "dropped", "lost", "in_flight")
    assert summary["issued"] == sum(summary[name] for name in outcomes) >= 1000


@pytest.mark.nightly
@pytest.mark.ray
@READS_PROC
def test_a_process_that_dies_once_more_than_is_allowed_ends_the_run(joined_ray):
    killed = []

    def progress(samples):
        if samples and not killed:
            killed.append(max(hosts()))
            os.kill(killed[0], signal.SIGKILL)

    job = Job.of("ctr-synthetic", "gba", "ray", samples=8000, save=False, workers=2, restarts=0, **TASK)
    with pytest.raises(LockstepError, match="process died of itself, and a run with restarts=0 returns to its"):
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
