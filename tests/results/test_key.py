"""The name of a run: it changes with what can change the run, and with nothing else."""

import importlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import lib
from lib.results import key as naming
from lib.tasks.quadratic import QuadraticBowl
from lib.training.train import Job

ROOT = Path(__file__).parents[2]
RETURNS = ("    return ", "    pass; return ")
"""A statement more, somewhere in every function."""
CLICKS = {"workload": "criteo-deepfm", "protocol": "gba", "cluster": "virtual"}


@pytest.fixture
def edited(monkeypatch):
    """The key of `CLICKS` as if a file of lib read otherwise."""
    parsed = naming._syntax_hash

    def key(name, old, new):
        text = (naming.LIB / name).read_text(encoding="utf-8")
        assert old in text, f"{name} has changed; plant something else"
        found = naming._hash(naming.syntax_without_docs(text.replace(old, new)))
        with monkeypatch.context() as patched:
            patched.setattr(naming, "_syntax_hash", lambda path: found if path == naming.LIB / name else parsed(path))
            forget()
            return Job.of(**CLICKS).key

    def forget():
        naming.engine.cache_clear()
        naming._hashes_of_module.cache_clear()

    yield key
    forget()


CHANGES = [
    ("protocols/gba.py", "The rule in one sentence", "In short", True),
    ("protocols/gba.py", "    def ", "    # a remark\n    def ", True),
    ("protocols/__init__.py", '"sync": "', '"sink": "lib.protocols.baselines:Sync", "sync": "', True),
    ("errors.py", "did you mean", "perhaps", True),
    *((f"{name}.py", *RETURNS, True) for name in ("protocols/hop", "protocols/dssync", "tasks/vision", "progress")),
    ("command_line.py", *RETURNS, True),
    ("store/optim.py", "class Adam(", "class Adam(more, ", False),
    *((f"protocols/{name}.py", *RETURNS, False) for name in ("gba", "server_rule")),
    *((f"tasks/{name}.py", *RETURNS, False) for name in ("clicks_stream", "clicks")),
    *((f"drivers/{name}.py", *RETURNS, False) for name in ("server_loop", "replica_loop")),
    *((f"{name}.py", *RETURNS, False) for name in ("cluster/spec", "streams")),
]


def test_an_edit_of_what_trains_changes_the_name_and_no_other_does(edited):
    keys = {Job.of(**CLICKS).key}
    for name, old, new, same in CHANGES:
        key, known = edited(name, old, new), len(keys)
        keys.add(key)
        assert key == Job.of(**CLICKS).key if same else len(keys) == known + 1, name


def test_another_version_of_a_package_is_another_run(monkeypatch):
    now, before = Job.of(**CLICKS).key, naming.version
    for package in ("torch", "numpy", "numba"):
        with monkeypatch.context() as patched:
            patched.setattr(naming, "version", lambda name, p=package: "0" if name == p else before(name))
            assert Job.of(**CLICKS).key != now
    assert Job.of(**CLICKS).key == now


def test_a_name_costs_nothing_after_the_first():
    Job.of(**CLICKS)

    def seconds():
        start = time.thread_time()
        Job.of(**CLICKS)
        return time.thread_time() - start

    assert min(seconds() for _ in range(5)) < 0.05


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

def unused():
    return 1
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
    mine.edit("workload", "LOADS = 2", "LOADS = 3")
    mine.edit("helper", "return 1", "return 2")
    assert mine.key() == now, "no run of it uses these"
    mine.edit("helper", "SHIFT = 0.0", "SHIFT = 0.5")
    assert mine.key() != now
    second = lib.train(**mine.job())
    assert second.digest != first.digest, "the saved run of the old model is not given back"
    mine.edit("helper", "SHIFT = 0.5", "SHIFT = 0.0")
    assert mine.key() == now and lib.train(**mine.job()).digest == first.digest


def test_a_name_is_that_of_the_code_in_memory(mine):
    now = mine.key()
    mine.edit("helper", "+= SHIFT", "+= 1 + SHIFT", reload=False)
    assert mine.key() == now, "what is trained is the code as it was imported"


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
        return subprocess.check_output([sys.executable, script], env=environment)

    now = key("1")
    text = script.read_text().replace("Half of it", "Twice it")
    script.write_text(text.replace("factor = 1", "factor = 1  # so much"))
    assert key("2") == now


# Files


@dataclass(frozen=True, kw_only=True)
class Reading(QuadraticBowl):
    """What it reads is an option."""

    name: ClassVar[str] = "reading"
    table: str = ""


def test_a_file_that_a_field_names_is_part_of_the_name(tmp_path):
    file = tmp_path / "part.csv"

    def key():
        return Job.of(Reading(table=str(file)), "sync", "virtual").key

    file.write_text("1,2")
    before = key()
    assert key() == before
    file.write_text("1,3")
    assert key() != before
    file.write_text("1,2")
    assert key() == before, "content decides, not when it was written"
    file.rename(file.with_name("other.csv"))
    assert key() != before
    folder = Job.of(Reading(table=str(tmp_path)), "sync", "virtual").key
    file.write_text("1,4")
    assert Job.of(Reading(table=str(tmp_path)), "sync", "virtual").key == folder, "a run may write there"
    assert Job.of(Reading(table="no such file"), "sync", "virtual").configuration.keys() >= {"workload"}


@pytest.mark.parametrize("large, decides", [(1 << 10, "when"), (1 << 30, "bytes")])
def test_a_large_file_is_known_by_its_size_and_its_time_and_others_by_their_bytes(
    large, decides, tmp_path, monkeypatch
):
    monkeypatch.setattr(naming, "LARGE", large)
    path, now = tmp_path / "table", time.time_ns()

    def name(byte, when):
        path.write_bytes(byte * 2**20)
        os.utime(path, ns=(when, when))
        return naming.content_digest(path)

    first = name(b"a", now)
    assert (first == name(b"a", now + 10**9)) == (decides == "bytes")
    assert (first == name(b"b", now)) == (decides == "when")
    assert first == name(b"a", now)


def test_what_names_no_file_is_none():
    for table in (".", "/", "dlrm", "a warning that fills a line " * 10):  # the last is longer than any name may be
        assert naming.file_digests(Reading(table=table)) == {}
    assert naming.content_digest(Path("there is no such file")) == ""
