"""The name of a run: it changes with the code that the run leads to, and with no other."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lib
from lib.errors import LockstepError
from lib.results import closure
from lib.training.train import Job

ROOT = Path(__file__).parents[2]
RETURNS = ("    return ", "    pass; return ")
"""A statement more, somewhere in every function."""
CLICKS = {"workload": "criteo-deepfm", "protocol": "gba", "cluster": "virtual"}


@pytest.fixture
def edited(monkeypatch):
    """The key of `CLICKS` as if a file of lib, or one beside a notebook, read otherwise."""
    texts = {}

    def key(name, old, new, **more):
        path = ROOT / (name if name.startswith("notebooks/") else f"lib/{name}")
        text = path.read_text(encoding="utf-8")
        assert old in text, f"{name} has changed; plant something else"
        texts[path] = text.replace(old, new)
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        known = closure._sources.pop(module, None)
        try:
            return Job.of(**CLICKS | more).key
        finally:
            del texts[path]
            closure._sources.pop(module, None)
            if known:
                closure._sources[module] = known

    before = closure.read
    monkeypatch.setattr(closure, "read", lambda path: texts.get(path) or before(path))
    return key


def test_what_cannot_change_a_run_does_not_change_its_name(edited):
    now = Job.of(**CLICKS).key
    same = [
        ("protocols/gba.py", "The rule in one sentence", "In short"),
        ("protocols/gba.py", "    def ", "    # a remark\n    def "),
        ("protocols/hop.py", *RETURNS),
        ("protocols/__init__.py", '"sync": "', '"sink": "lib.protocols.baselines:Sync", "sync": "'),
        ("protocols/dssync.py", *RETURNS),
        ("workloads/vision.py", *RETURNS),
        ("models/graph.py", *RETURNS),
        ("cluster/local.py", *RETURNS),
        ("cluster/ray/cluster.py", *RETURNS),
        ("cluster/slowdowns/presets.py", *RETURNS),
        ("drivers/replica_loop.py", *RETURNS),
        ("drivers/pipeline_loop.py", *RETURNS),
        ("reporting/plots.py", *RETURNS),
        ("measure/doctor.py", "    yield ", "    pass; yield "),
        ("notebooks/gba/tasks.py", *RETURNS),
        ("training/sweep.py", *RETURNS),
        ("training/watch.py", *RETURNS),
        ("switching/controller.py", *RETURNS),
        ("store/checkpoint.py", *RETURNS),
        ("results/run.py", "parquet", "feather"),
        ("progress.py", *RETURNS),
        ("errors.py", "did you mean", "perhaps"),
    ]
    for name, old, new in same:
        assert edited(name, old, new) == now, name


def test_what_can_change_a_run_changes_its_name(edited):
    different = [
        ("protocols/gba.py", *RETURNS),
        ("protocols/server_rule.py", *RETURNS),
        ("workloads/ctr.py", *RETURNS),
        ("models/ctr.py", *RETURNS),
        ("models/flat.py", *RETURNS),
        ("data/clicks.py", *RETURNS),
        ("cluster/virtual/network.py", *RETURNS),
        ("cluster/spec.py", *RETURNS),
        ("drivers/server_loop.py", *RETURNS),
        ("store/table/index.py", *RETURNS),
        ("store/optim.py", "class Adam(", "class Adam(more, "),
        ("results/outcome.py", *RETURNS),
        ("training/legs.py", *RETURNS),
        ("streams.py", *RETURNS),
    ]
    keys = [Job.of(**CLICKS).key, *(edited(*change) for change in different)]
    for place, key in enumerate(keys):
        assert key not in keys[:place], different[place - 1]


def test_what_few_runs_use_is_part_of_their_names(edited):
    change = ("store/checkpoint.py", *RETURNS)
    assert edited(*change, checkpoint_every=1000) != Job.of(**CLICKS, checkpoint_every=1000).key
    phases = (lib.Phase(protocol="sync"), lib.Phase(protocol="gba"))
    choice = lib.Choice(phases=phases, rule=lib.Automatic(cost=1.0), every=1.0)
    for name in ("switching/controller.py", "training/watch.py"):
        assert edited(name, *RETURNS, protocol=choice) != Job.of(**CLICKS | {"protocol": choice}).key


def test_another_version_of_a_package_is_another_run(monkeypatch):
    now = Job.of(**CLICKS).key
    for package in ("torch", "numpy", "numba"):
        with monkeypatch.context() as patched:
            before = closure._version
            patched.setattr(closure, "_version", lambda name, p=package, b=before: "0" if name == p else b(name))
            assert Job.of(**CLICKS).key != now
    assert Job.of(**CLICKS).key == now


def test_a_name_costs_nothing_after_the_first():
    Job.of(**CLICKS)

    def seconds():
        start = time.thread_time()
        Job.of(**CLICKS)
        return time.thread_time() - start

    assert min(seconds() for _ in range(5)) < 0.05


FORMS = {
    "__init__": "from .handed import Thing",
    "start": """
import typing
from typing import TYPE_CHECKING
import shapes.whole
from shapes import member, Thing
from . import sibling
from .deep.er import name
if TYPE_CHECKING:
    from shapes import types_alone
registry = {"a": "shapes.by_name"}
def late():
    try:
        from .in_function import x
    except ImportError:
        import shapes.in_handler
    match registry:
        case {}:
            import shapes.in_case
""",
    "deep/er": "import numpy",
    "handed": "from shapes.behind import x",
}
FOLLOWED = {"whole", "member", "sibling", "deep.er", "in_function", "in_handler", "in_case", "handed", "behind"}


def test_every_form_of_an_import_is_followed_and_nothing_is_imported(tmp_path, monkeypatch):
    package = tmp_path / "shapes"
    (package / "deep").mkdir(parents=True)
    for name in (
        "types_alone",
        "by_name",
        *FORMS,
        *(name.replace(".", "/") for name in FOLLOWED - {"deep.er", "handed"}),
    ):
        (package / f"{name}.py").write_text(FORMS.get(name, "x = 1"))
    monkeypatch.syspath_prepend(tmp_path)
    modules, packages = closure.of(["shapes.start"])
    assert modules.keys() == {"shapes", "shapes.start", *(f"shapes.{name}" for name in FOLLOWED)}
    assert list(packages) == ["numpy"]
    assert not any(name.startswith("shapes") for name in sys.modules)


def test_a_door_of_lib_leads_to_what_is_asked_for():
    modules, _ = closure.of(["lib.cluster.base"])
    assert modules.keys() & {"lib.cluster.slowdowns.timed", "lib.cluster.slowdowns"} == set()


MINE = '''
from dataclasses import dataclass
from lib.tasks.quadratic import QuadraticBowl
from {package} import helper
LOADS = 2

@dataclass(frozen=True, kw_only=True)
class Mine(QuadraticBowl):
    """A bowl."""

    name = "mine"

    def model(self, seed):
        return helper.shifted(super().model(seed))
'''
HELPER = """
import torch
SHIFT = 0.0

def shifted(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += SHIFT
    return model
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A user's package: a workload, and what its model calls."""
    package = f"mine_{tmp_path.name.replace('-', '_')}"
    folder = tmp_path / package
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "workload.py").write_text(MINE.format(package=package))
    (folder / "helper.py").write_text(HELPER)
    (folder / "stranger.py").write_text("def unused():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    class User:
        def edit(self, name, old, new, reload=True):
            path = folder / f"{name}.py"
            text = path.read_text()
            assert old in text
            path.write_text(text.replace(old, new))
            os.utime(path, ns=(time.time_ns(), time.time_ns() + 10**9))  # pyc files are told apart by seconds and size
            if reload:
                importlib.invalidate_caches()
                importlib.reload(sys.modules[f"{package}.helper"])
                importlib.reload(sys.modules[f"{package}.workload"])

        def job(self):
            workload = importlib.import_module(f"{package}.workload").Mine(samples=320)
            return {"workload": workload, "protocol": "gba", "cluster": "virtual", "workers": 2}

        def key(self):
            return Job.of(**self.job()).key

    yield User()
    for name in [name for name in sys.modules if name.startswith(package)]:
        del sys.modules[name]


def test_a_users_module_is_part_of_the_name(mine, reports):
    now = mine.key()
    first = lib.train(**mine.job())
    mine.edit("workload", '"""A bowl."""', '"""A bowl of mine."""  # indeed')
    mine.edit("stranger", "return 1", "return 2")
    assert mine.key() == now, "what no run of it imports"
    mine.edit("helper", "SHIFT = 0.0", "SHIFT = 0.5")
    assert mine.key() != now
    second = lib.train(**mine.job())
    assert second.digest != first.digest, "the saved run of the old model is not given back"
    mine.edit("helper", "SHIFT = 0.5", "SHIFT = 0.0")
    assert mine.key() == now and lib.train(**mine.job()).digest == first.digest


def test_a_file_that_was_edited_and_not_loaded_again(mine):
    now = mine.key()
    mine.edit("helper", "+= SHIFT", "+= 1 + SHIFT", reload=False)
    with pytest.warns(UserWarning, match=r"helper\.py was changed after .*helper was imported.*reload"):
        assert mine.key() == now, "what is trained is the code as it was"


def test_a_file_that_was_edited_before_anybody_asked(mine):
    mine.job()
    mine.edit("helper", "+= SHIFT", "+= 1 + SHIFT", reload=False)
    with pytest.raises(LockstepError, match=r"helper\.py was changed after .*helper was imported"):
        mine.key()


NOTEBOOK = '''
from dataclasses import dataclass
import numpy
import lib
from lib.protocols.baselines import Async
from lib.training.train import Job
factor = 1
table = numpy.arange(3)

def inner(x):
    """Half of it."""
    return x * factor

def outer(x):
    return inner(x) + table[0]

@dataclass(frozen=True, kw_only=True)
class Mine(Async):
    """Mine."""

    name = "mine"
    least: int = 1

    def on_push(self, state, push):
        outer(self.least)
        return super().on_push(state, push)
'''


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("Half of it", "Twice it", True),
        ('"""Mine."""', '"""Yours."""', True),
        ("import numpy", "import numpy\n\ndef other():\n    return 3", True),
        ("factor = 1", "factor = 2", False),
        ("x * factor", "x / factor", False),
        ("arange(3)", "arange(4)", False),
        ("outer(self.least)", "inner(self.least)", False),
        ("least: int = 1", "least: int = 2", False),
        ('name = "mine"\n', 'name = "mine"\n    more = 1\n', False),
    ],
)
def test_a_notebooks_class_is_taken_with_what_it_names(old, new, same):
    def key(text):
        cells = {"__name__": "__main__"}
        exec(compile(text, "<cell>", "exec"), cells)
        return Job.of("quadratic", cells["Mine"](), "virtual").key

    assert old in NOTEBOOK
    assert (key(NOTEBOOK.replace(old, new)) == key(NOTEBOOK)) == same


def test_what_a_function_makes_is_told_apart():
    def made(value):
        class Local(lib.protocols.get("async").__class__):
            name = "local"
            weight = value

        return Job.of("quadratic", Local(), "virtual").key

    assert made(1) == made(1) != made(2)


def test_a_script_and_another_process_come_to_the_same_name(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(NOTEBOOK + '\nprint(Job.of("quadratic", Mine(), "virtual").key)\n')

    def key(seed):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        return subprocess.run(
            [sys.executable, script], env=environment, capture_output=True, text=True, check=True
        ).stdout

    now = key("1")
    script.write_text(
        script.read_text().replace("Half of it", "Twice it").replace("factor = 1", "factor = 1  # so much")
    )
    assert key("2") == now
