"""What a user may get wrong, and what may go wrong around a run: a sentence to act on, and nothing saved is lost."""

import errno
import itertools
import json
import os
import re
import threading
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch

import lib
from lib import LocalCluster, Run, VirtualCluster, paths, workloads
from lib.errors import BadOption, LockstepError, NotFinite, NotSaved, UnknownName, UnknownOption
from lib.protocols import ALL, get
from lib.tasks.clicks import ClickThrough
from lib.tasks.flat_model import FlatModel
from tests.toys import diagonal

TINY = {"batch_size": 32, "vocabulary": 20, "fields": 2, "hidden": (4,), "evaluation_samples": 100}
CLICKS = workloads.get("ctr-synthetic", samples=32 * 8, **TINY)
BOWL = workloads.get("quadratic", samples=32 * 8)
KINDS = (VirtualCluster, LocalCluster)
NAMES = ("quadratic", "gba", "virtual")
TRAIN = [name for name in ALL if name != "frozen"]
SPREAD = [name for name in ALL if get(name).family != "pipeline"]


def every_step(name):
    """The protocol; one that mixes every few steps does so in each, for there are few."""
    rule = get(name)
    return replace(rule, every=1) if "every" in {field.name for field in fields(rule)} else rule


def train(workload=BOWL, protocol="sync", cluster=None, **options):
    return lib.train(workload, protocol, cluster or VirtualCluster(workers=2), **{"save": False} | options)


# Names and options


MISTAKES = [
    (("quadratik", "sync", "virtual"), {}, UnknownName, "workload 'quadratik'.*'quadratic'.*ctr-synthetic"),
    (("quadratic", "synk", "virtual"), {}, UnknownName, "protocol 'synk'.*did you mean 'sync'.*ds-sync"),
    (("quadratic", "GBA", "virtual"), {}, UnknownName, "protocol 'GBA'.*did you mean 'gba'"),
    (("quadratic", "sync", "vitual"), {}, UnknownName, "cluster 'vitual'.*did you mean 'virtual'.*local.*ray"),
    ((3, "sync", "virtual"), {}, BadOption, "3 is no workload.*a registered name or an object"),
    (("quadratic", BOWL, "virtual"), {}, BadOption, "is no protocol"),
    (NAMES, {"worker_count": 3}, UnknownOption, "'worker_count'.*'workers'"),
    (NAMES, {"batchsize": 3}, UnknownOption, "'batchsize'.*did you mean 'batch_size'"),
    (NAMES, {"iotta": 3}, UnknownOption, "'iotta'.*did you mean 'iota'.*evaluations"),
    (("quadratic", get("gba"), "virtual"), {"iota": 7}, UnknownOption, r"'iota' is an option of 'gba'.*GBA\(iota=7\)"),
    ((BOWL, "gba", "virtual"), {"batch_size": 7}, UnknownOption, r"of 'quadratic'.*QuadraticBowl\(batch_size=7\)"),
    (("quadratic", "gba", LocalCluster()), {"workers": 7}, UnknownOption, r"of 'local'.*LocalCluster\(workers=7\)"),
    (NAMES, {"samples": 0}, BadOption, "train: samples must be at least 1, not 0"),
    (NAMES, {"evaluations": 0}, BadOption, "evaluations must be at least 1 or a list or 'daily', not 0"),
    (NAMES, {"on_nan": "ignore"}, BadOption, "on_nan must be 'stop' or 'skip', not 'ignore'"),
    (("quadratic", "gba", "local"), {"threads": 0}, BadOption, "threads must be at least 1"),
    (("ctr-synthetic", "sync", "virtual"), {"data": ""}, BadOption, "data must be a text that is not empty"),
    (("kg-synthetic", "sync", "virtual"), {"data": ""}, BadOption, "data must be a text that is not empty"),
    (("cifar10-wrn", "sync", "virtual"), {"data": ""}, BadOption, "data must be a text that is not empty"),
    (("squad-bert", "sync", "virtual"), {"data": ""}, BadOption, "data must be a text that is not empty"),
    ((CLICKS, "ds-sync+gba", "virtual"), {}, BadOption, r"'gba' \(server\) cannot carry .*'ds-sync'.* rule of: server"),
    ((CLICKS, "prague+ds-sync", "virtual"), {}, BadOption, "dense 'ds-sync' cannot carry sparse 'prague'"),
    ((CLICKS, "oac+s-easgd", "virtual"), {}, BadOption, "dense 's-easgd' .* cannot carry sparse 'oac'"),
    ((CLICKS, "oac", VirtualCluster(workers=3)), {}, BadOption, "not 3 workers; .* readers, writers and in_flight"),
    ((BOWL, "oac", "virtual"), {}, BadOption, "oac moves rows .* 'quadratic' has no tables; choose another workload"),
    ((BOWL, "oac", "local"), {}, BadOption, "oac moves rows .* 'quadratic' has no tables; choose another workload"),
]


@pytest.mark.parametrize("given, options, error, words", MISTAKES)
def test_what_cannot_be_run_is_named_with_the_nearest_or_all_that_can(given, options, error, words):
    with pytest.raises(error, match=words):
        lib.train(*given, **options, save=False)


@pytest.mark.parametrize("cluster", KINDS)
def test_a_cluster_refuses_a_device_that_is_not_there(cluster):
    with pytest.raises(BadOption, match=f'{cluster.name} cluster: .*(device="cpu"|none that torch knows)'):
        cluster(device="tape" if torch.cuda.is_available() else "cuda:99")


def test_a_device_that_is_too_small_is_named_with_what_was_asked_for(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB")

    monkeypatch.setattr(FlatModel, "step", full)
    with pytest.raises(BadOption, match=r"the device has: Tried to allocate 2.00 GiB; fewer workers, .*store.max_rows"):
        train()


# Shapes of data and worlds


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["gba", "s-easgd", "async+gba"])
def test_a_workload_without_sparse_features(name, kind):
    summary = train(BOWL, name, kind(workers=2)).summary
    assert summary["issued"] == 8 == summary["applied"] + summary["decayed"]


@pytest.mark.parametrize("name, kind", diagonal(SPREAD, KINDS))
def test_workers_without_any_data_hold_nobody_up(name, kind):
    summary = train(CLICKS, every_step(name), kind(workers=11)).summary
    assert summary["issued"] == 8 and summary["samples"] == CLICKS.samples and np.isfinite(summary["auc"])


@pytest.mark.parametrize("name, kind", diagonal(TRAIN, KINDS))
def test_a_world_of_one(name, kind):
    run = train(CLICKS, every_step(name), kind(workers=1), evaluations=4)
    assert run.summary["issued"] == 8 and run.summary["staleness_max"] <= max(0, get(name).max_staleness)
    assert run.history["auc"].notna().sum() == 4


# Numbers that are none


@dataclass(frozen=True, kw_only=True)
class Broken(ClickThrough):
    """Clicks some of whose batches have a NaN in their inputs."""

    name: ClassVar[str] = "broken"
    bad: tuple[int, ...] = ()

    def draw(self, seed, first, size, index):
        batch = super().draw(seed, first, size, index)
        dense = batch.features["dense"].copy()
        dense[:1, :1] = np.nan if index in self.bad else dense[:1, :1]
        return replace(batch, features={"dense": dense})


def broken(*bad):
    return Broken(samples=32 * 8, bad=bad, days=4, **TINY)


def world(kind, name):
    return kind(workers=None if get(name).family == "pipeline" else 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["sync", "s-easgd", "all-reduce", "oac"])
def test_a_nan_stops_the_run_and_names_batch_and_worker(name, kind):
    before = threading.active_count()
    with pytest.raises(NotFinite) as caught:
        train(broken(5), name, world(kind, name))
    worker = {"sync": "1", "all-reduce": "1", "oac": "0"}.get(name, r"\d")  # who takes from a queue is open
    assert re.search(rf"loss nan .* batch 5 \(day 2\) on worker {worker}; .*on_nan='skip'", str(caught.value))
    assert threading.active_count() == before


@pytest.mark.nightly
@pytest.mark.ray
def test_a_nan_stops_a_run_on_ray_with_the_same_words(joined_ray):
    with pytest.raises(NotFinite, match=r"batch 5 \(day 2\) on worker 1; .*on_nan='skip'"):
        train(broken(5), "sync", lib.RayCluster(workers=2))


@pytest.mark.parametrize("name, kind", diagonal(TRAIN, KINDS))
def test_a_nan_may_be_skipped_and_is_counted_as_dropped(name, kind):
    run = train(broken(2, 5), name, world(kind, name), on_nan="skip")
    summary = run.summary
    assert (summary["issued"], summary["dropped"], summary["not_finite"]) == (8, 2, 2)
    assert summary["applied"] + summary["decayed"] == 6 and summary["samples"] == 32 * 6
    assert np.isfinite(summary["auc"]) and run.history["train_loss"].notna().any()


@pytest.mark.parametrize("name", ["gba", "ds-sync", "oac"])
def test_a_run_whose_every_batch_is_skipped_leaves_the_model_as_it_was(name):
    run = train(broken(*range(8)), name, world(VirtualCluster, name), on_nan="skip")
    assert run.summary["dropped"] == 8 and run.summary["samples"] == 0
    assert run.history["auc"].tolist() == [run.summary["auc"]]


# Saving


def saved(folder):
    return list((folder / "runs").iterdir())


def test_a_run_is_found_again_by_its_configuration_and_by_nothing_less(reports):
    first = train(save=True, seed=3)
    (folder,) = saved(reports)
    stamp = (folder / "run.json").stat().st_mtime_ns
    again = train(save=True, seed=3)
    assert (folder / "run.json").stat().st_mtime_ns == stamp
    assert again.digest == first.digest and again.summary == json.loads(json.dumps(first.summary))
    pd.testing.assert_frame_equal(again.history, first.history)
    pd.testing.assert_frame_equal(again.trace, first.trace)
    for other in (
        lambda: train(save=True, seed=4),
        lambda: train(replace(BOWL, noise=0.5), save=True, seed=3),
        lambda: train(protocol=get("gba", iota=1), save=True, seed=3),
        lambda: train(protocol=get("gba", iota=2), save=True, seed=3),
        lambda: train(cluster=VirtualCluster(workers=2, slowdown=0.1), save=True, seed=3),
        lambda: train(save=True, seed=3, samples=64),
        lambda: train(save=True, seed=3, evaluations=2),
    ):
        before = len(saved(reports))
        other()
        assert len(saved(reports)) == before + 1


RULE = """
from lib.protocols.baselines import Async
class Mine(Async):
    name = "mine"
    data = "{data}"
    def on_start(self, state, worker):
        return super().on_start(state, worker) if worker in {{"a", "b", 0, 1}} else {other}
    @staticmethod
    def least():
        return {least}
"""


def test_a_rule_of_ones_own_is_another_run_once_its_code_or_constants_change(reports):
    for changed in ({}, {"data": "split"}, {"other": 1}, {"least": 2}):
        space = {"__name__": "notebook"}
        exec(RULE.format(**{"data": "queue", "other": 0, "least": 1} | changed), space)
        before = len(saved(reports)) if reports.exists() else 0
        for _ in range(2):
            train(protocol=space["Mine"](), save=True)
        assert len(saved(reports)) == before + 1


def test_force_trains_anew_and_replaces_the_saved_run(reports):
    first = train(save=True)
    (folder,) = saved(reports)
    (folder / "history.parquet").unlink()
    assert train(save=True, force=True).digest == first.digest
    assert saved(reports) == [folder] and Run.load(folder).digest == first.digest


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "run.json").write_text("{"),
        lambda folder: (folder / "run.json").write_text("{}"),
        lambda folder: (folder / "trace.parquet").write_bytes(b"PAR1 and no more"),
        lambda folder: (folder / "history.parquet").unlink(),
    ],
)
def test_a_saved_run_that_cannot_be_read_is_named_with_what_to_do(reports, spoil):
    train(save=True)
    (folder,) = saved(reports)
    spoil(folder)
    with pytest.raises(LockstepError, match=rf"saved run {folder} cannot be read .*delete that folder"):
        train(save=True)


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupt():
    raise KeyboardInterrupt


def second(fault, replace=os.replace):
    """Stands in for `os.replace`, at whose second call the fault happens: the old run is away, the new one not there yet."""
    calls = itertools.count(1)
    return lambda source, target: fault() if next(calls) == 2 else replace(source, target)


FULL = {
    "to_parquet": (pd.DataFrame, "to_parquet", full),
    "replace": (os, "replace", full),
    "second replace": (os, "replace", second(full)),
}


@pytest.mark.parametrize("where", FULL)
def test_a_full_disk_loses_neither_this_run_nor_an_earlier_one(reports, monkeypatch, where):
    earlier = train(save=True)
    (folder,) = saved(reports)
    with monkeypatch.context() as patch:
        patch.setattr(*FULL[where])
        with pytest.raises(NotSaved, match=f"{folder}: No space left on device.*LOCKSTEP_REPORTS") as caught:
            train(save=True, force=True)
    assert caught.value.run.digest == earlier.digest
    assert saved(reports) == [folder] and Run.load(folder).digest == earlier.digest  # and no temporary folder
    caught.value.run.save(reports / "runs" / "rescued")
    assert Run.load(reports / "runs" / "rescued").summary["applied"] == earlier.summary["applied"]


def test_ctrl_c_while_a_run_replaces_another_keeps_one_of_them(reports, monkeypatch):
    earlier = train(save=True)
    (folder,) = saved(reports)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", second(interrupt))
        with pytest.raises(KeyboardInterrupt):
            train(save=True, force=True)
    assert saved(reports) == [folder] and Run.load(folder).digest == earlier.digest


def test_a_reports_folder_that_takes_no_files_is_refused_before_training(reports, monkeypatch):
    reports.write_text("a file in the folder's place")
    with pytest.raises(LockstepError, match=rf"cannot write to {reports / 'runs'}: .*LOCKSTEP_REPORTS"):
        train(save=True, samples=10**12)  # it would not end
    reports.unlink()

    def read_only(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(paths.tempfile, "NamedTemporaryFile", read_only)
    with pytest.raises(LockstepError, match=rf"cannot write to {reports / 'runs'}: read-only; set LOCKSTEP_REPORTS"):
        train(save=True, samples=10**12)


def test_a_run_saved_in_a_read_only_folder_is_still_found(reports, monkeypatch):
    first = train(save=True)
    monkeypatch.setattr(paths.tempfile, "NamedTemporaryFile", full)
    assert train(save=True).digest == first.digest
