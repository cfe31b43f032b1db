"""Every test keeps its hands off the real reports folder; those that need Ray share one."""

import asyncio
import inspect
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# At these sizes torch's threads only wait for one another, and other processes begin for longer than they work.
os.environ |= {"OMP_NUM_THREADS": "1", "LOCKSTEP_PROCESSES": "1"}

# On a busy machine an example may take any time, and the first one that imports scipy does.
settings.register_profile("lockstep", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lockstep")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # Started in the background, as a CI may: children would inherit that and be deaf to the Ctrl-C that tests send them.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    """Files of one folder follow each other: pytest loses the fixtures of a folder that it comes to for the second time."""
    config.args.sort()


LONG = ("ray", "test_on_a_device.py", "test_sweep.py", "test_failures.py", "test_protocols.py", "test_runner.py")
"""The groups that take longest. They begin first, so that no process is left with one at the end."""


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items):
    """With `-n 2`, a file's tests stay in one process, for their fixtures; and all that use Ray, for there is one of it."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=lambda item: [*LONG, _group(item)].index(_group(item)))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Ray ends with the last test that needs it: its processes are never quite idle."""
    ray = sys.modules.get("ray")
    if ray and ray.is_initialized() and (nextitem is None or _group(nextitem) != "ray"):
        ray.shutdown()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """A test that is a coroutine has an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


def _group(item):
    params = getattr(item, "callspec", None)
    with_ray = item.get_closest_marker("ray") or "joined_ray" in item.fixturenames
    return "ray" if with_ray or (params and any(map(_is_ray, params.params.values()))) else item.path.name


def _is_ray(value):
    return (isinstance(value, str) and value == "ray") or getattr(value, "__name__", None) == "RayCluster"


@pytest.fixture(scope="session", autouse=True)
def _elsewhere(tmp_path_factory):
    before = {name: os.environ.pop(name, None) for name in ("LOCKSTEP_REPORTS", "LOCKSTEP_STAGE", "LOCKSTEP_COMMAND")}
    os.environ["LOCKSTEP_REPORTS"] = str(tmp_path_factory.mktemp("reports"))
    yield
    del os.environ["LOCKSTEP_REPORTS"]
    os.environ.update({name: value for name, value in before.items() if value is not None})


@pytest.fixture
def reports(tmp_path, monkeypatch):
    """An empty reports folder for a test of saving."""
    folder = tmp_path / "reports"
    monkeypatch.setenv("LOCKSTEP_REPORTS", str(folder))
    return folder


@pytest.fixture
def own_memory(monkeypatch):
    """Shared memory where nobody else looks: a run anywhere on the machine removes what killed processes have left."""
    from lib.store import shared_memory

    with tempfile.TemporaryDirectory(dir=shared_memory._memory(), prefix="tests-") as folder:
        monkeypatch.setattr(shared_memory, "_memory", lambda: Path(folder))
        yield


@pytest.fixture
def joined_ray():
    """Ray, started once for all tests in a row that need it: a RayCluster joins what is initialised."""
    ray = pytest.importorskip("ray")
    from lib.cluster.ray.cluster import start_ray

    if not ray.is_initialized():
        quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
        start_ray(None, {"address": "local", "num_cpus": 2, "object_store_memory": 200 * 2**20, **quiet})
    return ray


@pytest.fixture(params=["virtual", "local", pytest.param("ray", marks=pytest.mark.ray)])
def cluster(request):
    """The name of each cluster in turn."""
    if request.param == "ray":
        request.getfixturevalue("joined_ray")
    return request.param
