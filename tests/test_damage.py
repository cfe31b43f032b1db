"""Every file that is read survives flipped bits and a lost end: what was written comes back, or an error names the file."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lib
from data_prep import manifest
from data_prep.criteo_kaggle import CriteoKaggle
from data_prep.job import Options
from lib.cluster.slowdowns import Slowdown
from lib.errors import LockstepError
from lib.results.run import Run
from lib.tasks.prepared_datasets import PreparedClicks
from reports.claims import stored_verdicts as saved

DAMAGE = {"place": st.floats(0, 1, exclude_max=True), "bit": st.one_of(st.none(), st.integers(0, 7))}
SETTINGS = settings(max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])


def damage(path, place, bit):
    """Flip a bit at a place of the file, or lose everything from there on."""
    data = bytearray(path.read_bytes())
    at = int(place * len(data))
    if bit is None:
        del data[at:]
    else:
        data[at] ^= 1 << bit
    path.write_bytes(bytes(data))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    made = lib.train("ctr-synthetic", "gba", "virtual", workers=3, samples=640, keep=True, save=False)
    made.save(folder := tmp_path_factory.mktemp("runs") / "run")
    return folder


@pytest.fixture
def verdict(tmp_path, monkeypatch):
    """One that is stored, of made-up results."""
    monkeypatch.setenv("LOCKSTEP_STAGE", str(tmp_path / "stage"))
    monkeypatch.setenv("LOCKSTEP_COMMAND", "lockstep run 94_fidelity")
    table = pd.DataFrame([{"subject": "virtual", "seed": 0, "error": 0.1, "order": 1.0}])
    return saved.record(table, "94_fidelity")[0]


@SETTINGS
@given(name=st.sampled_from(["run.json", "history", "trace", "usage", "model"]), **DAMAGE)
def test_a_saved_run(run, tmp_path, name, place, bit):
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run, folder)
    [path] = folder.glob(f"{name}*")
    damage(path, place, bit)
    sound = Run.load(run)
    try:
        found = Run.load(folder)
        model = found.model
    except LockstepError as error:
        assert str(folder) in str(error)
        return
    for kind in ("history", "trace", "usage"):
        pd.testing.assert_frame_equal(getattr(found, kind), getattr(sound, kind), check_exact=True)
    assert (found.digest, found.provenance) == (sound.digest, sound.provenance)
    assert json.dumps(found.summary) == json.dumps(sound.summary)
    np.testing.assert_array_equal(model.dense["values"], sound.model.dense["values"])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    CriteoKaggle.twin(folder / "raw", 300, 0)
    CriteoKaggle.prepare(folder / "raw", folder / "out", Options(buckets=50))
    return folder / "out"


@SETTINGS
@given(number=st.integers(-15, 15), **DAMAGE)
def test_prepared_data(prepared, tmp_path, number, place, bit):
    """Reading finds what does not fit together; single numbers of gigabytes are for `python -m data_prep check` to compare."""
    folder = tmp_path / "out"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(prepared, folder)
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".npy", ".json") and path.stat().st_size)
    path = files[number] if number > 0 else folder / "manifest.json"
    damage(path, place, bit)
    try:
        data = PreparedClicks(folder)
        for day in data.names:
            data.read(day, slice(None))
        faults = manifest.check(folder)
    except LockstepError as error:
        assert str(folder) in str(error)
        return
    assert path.suffix == ".json" or any(str(path) in fault for fault in faults)


CLUSTER = """
workers: 8
slowdown: {name: lognormal, sigma: 0.5}
worker: {flops: 1.0e9, bandwidth: 1.0e8}
server: {cores: 4}
links: [{ends: [worker0, server0], bandwidth: 1.0e7}]
failures: [{node: worker1, kind: dies, at: 3.0, lasts: 1.0}]
"""
SLOWDOWN = """
slowdown:
  name: empirical
  quantiles: [0.5, 1.0, 2.0]
  levels: [0, 0.5, 1]
  seconds: [3.0]
  shares: [0.5]
"""


@SETTINGS
@given(kind=st.sampled_from(["cluster", "slowdown"]), **DAMAGE)
def test_yaml(tmp_path, kind, place, bit):
    text, read = {"cluster": (CLUSTER, lib.VirtualCluster.load), "slowdown": (SLOWDOWN, Slowdown.read)}[kind]
    path = tmp_path / f"{kind}.yaml"
    path.write_text(text)
    read(str(path))
    damage(path, place, bit)
    try:
        read(str(path))
    except LockstepError as error:
        assert str(path) in str(error) or kind == "cluster"


@SETTINGS
@given(**DAMAGE)
def test_a_stored_verdict(tmp_path, verdict, place, bit):
    path = saved.verdict_file(verdict.claim.id, tmp_path)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(saved.verdict_file(verdict.claim.id).read_bytes())
    damage(path, place, bit)
    try:
        (found,) = (each for each in saved.verdicts(tmp_path) if each.claim.id == verdict.claim.id)
        assert found.claim == verdict.claim
    except LockstepError as error:
        assert str(path) in str(error)
