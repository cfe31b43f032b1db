"""A saved run's name knows the files that its code reads."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import lib
from lib.results import files
from lib.tasks.quadratic import QuadraticBowl
from lib.training.train import Job

READS = '''
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from lib.tasks.quadratic import QuadraticBowl

@dataclass(frozen=True, kw_only=True)
class Mine(QuadraticBowl):
    """Its clicks are in clicks.csv."""
    name: ClassVar[str] = "mine"

    def model(self, seed):
        model = super().model(seed)
        model.weights.data += float((Path(__file__).parent / "clicks.csv").read_text())
        return model
'''


@dataclass(frozen=True, kw_only=True)
class Reading(QuadraticBowl):
    """What it reads is an option."""

    name: ClassVar[str] = "reading"
    table: str = ""


def test_a_file_that_a_users_module_names_is_part_of_the_name(tmp_path, reports):
    mine, clicks = tmp_path / "reads_a_file_beside_it.py", tmp_path / "clicks.csv"
    mine.write_text(READS)
    job = {"protocol": "sync", "cluster": "virtual", "workers": 2, "samples": 640}
    clicks.write_text("0")
    first = lib.train(str(mine), **job)
    assert lib.train(str(mine), **job).digest == first.digest and len(list((reports / "runs").iterdir())) == 1
    clicks.write_text("1")
    assert lib.train(str(mine), **job).digest != first.digest, "the run on the old file is not given back"
    clicks.write_text("0")
    assert lib.train(str(mine), **job).digest == first.digest and len(list((reports / "runs").iterdir())) == 2


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


def test_a_large_file_is_known_by_its_size_its_time_and_samples_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "WHOLE", 1 << 20)
    path = tmp_path / "large"
    path.write_bytes(bytes(range(256)) * (1 << 15))
    before, status = files.content(path), path.stat()
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    files._digest.cache_clear()
    assert files.content(path) != before, "its end is one of the samples"
    after = files.content(path)
    os.utime(path, ns=(time.time_ns(), time.time_ns() + 10**9))
    assert files.content(path) != after


def test_what_names_no_file_is_none():
    assert files.of(Reading(table=".")) == files.of(Reading(table="/")) == files.of(Reading(table="dlrm")) == {}
    assert files.content(Path("there is no such file")) == ""
    assert files.of(Reading(table="a warning that fills a line " * 10)) == {}, "longer than any name may be"
    module = f"told = {'ä' * 200!r}, {'a' * 300!r}, {'a/' * 300!r}"
    assert files.read_by(module, Path(__file__)) == {}
