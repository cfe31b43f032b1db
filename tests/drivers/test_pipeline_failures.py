"""What stops a pipeline: the first cause comes out, the store holds what a serial run made, and the run goes on from its cut."""

import numpy as np
import pytest
import torch

import lib
from lib import LocalCluster, VirtualCluster, protocols, workloads
from lib.drivers import pipeline_loop
from lib.drivers.pipeline_loop import HostStore, Pipeline
from lib.drivers.trainer import Trainer
from lib.errors import NotFinite
from lib.tasks.flat_model import FlatModel
from notebooks.oac.anomalies import check_run
from notebooks.oac.replay import serial
from tests.toys import records

GRAPH = {"entities": 60, "triples": 600, "dim": 4, "batch_size": 16, "negatives": 4, "samples": 480}
CLUSTERS = {"virtual": VirtualCluster(), "local": LocalCluster(threads=8)}
WHERE = {
    "a reader": (HostStore, "_read"),
    "its input": (workloads.get("kg-synthetic", **GRAPH).__class__, "draw"),
    "validation": (Pipeline, "_validate"),
    "the device": (Trainer, "_call_model"),
    "the update": (Pipeline, "_update"),
    "the way back": (Pipeline, "_download_updated_rows"),
    "a writer": (HostStore, "_write_rows"),
}


class Broken(Exception):
    """What the fault raises."""


def breaks(plant, where, at=14):
    """The call of that number raises, and so do those after it, with another number."""
    owner, name = WHERE[where]
    works, calls = getattr(owner, name), []

    def broken(*args, **options):
        calls.append(name)
        if len(calls) > at:
            raise Broken(len(calls))
        return works(*args, **options)

    plant.setattr(owner, name, broken)


def parts_of(plant):
    """The store and the device of the run that comes."""
    made = []
    for kind in (HostStore, Pipeline):

        class Kept(kind):
            def __init__(self, *args):
                super().__init__(*args)
                made.append(self)

        plant.setattr(pipeline_loop, kind.__name__, Kept)
    return made


def versions(workload, order):
    """Row and timestamp -> its bytes, in a serial run in that order."""
    seen = {}
    for stamps in range(len(order) + 1):
        rows = serial(workload, 0, order[:stamps])["server0/rows"]["entity"]
        for number, row, stamp in zip(rows.ids, rows.values, rows.stamps, strict=True):
            seen[int(number), int(stamp)] = row.tobytes()
    return seen


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("where", WHERE)
def test_the_first_cause_comes_out_and_the_store_is_consistent(where, cluster, monkeypatch):
    workload = workloads.get("kg-synthetic", **GRAPH)
    with monkeypatch.context() as plant:
        breaks(plant, where)
        made = parts_of(plant)
        with pytest.raises(Broken, match=r"^15$"):
            records(workload, protocols.get("oac"), CLUSTERS[cluster])
    store, device = made
    rows, expected = store._tables["entity"].export(), versions(workload, device.record.taken)
    for number, row, stamp in zip(rows.ids, rows.values, rows.stamps, strict=True):
        if stamp >= 0:
            assert expected[int(number), int(stamp)] == row.tobytes()
    assert rows.stamps.max() < len(device.record.taken)


@pytest.mark.parametrize("where", WHERE)
def test_the_run_goes_on_from_its_last_cut(where, monkeypatch, reports):
    options = {**GRAPH, "checkpoint_every": 96}
    whole = lib.train("kg-synthetic", "oac", "virtual", **options, save=False)
    with monkeypatch.context() as plant:
        breaks(plant, where)
        with pytest.raises(Broken):
            lib.train("kg-synthetic", "oac", "virtual", **options)
    on = lib.train("kg-synthetic", "oac", "virtual", **options, resume=True, accesses=False)
    assert on.digest == whole.digest and on.summary["order"] == whole.summary["order"]


@pytest.fixture
def infinite(monkeypatch):
    """The gradients of the tenth computation are not finite."""
    launch, calls = FlatModel.launch, []

    def launched(self, batch, *args):
        calls.append(batch.index)
        there = launch(self, batch, *args)
        if len(calls) == 10:
            there.rows["entity"][0, 0] = torch.inf
            there.dense[0] = torch.nan
        return there

    monkeypatch.setattr(FlatModel, "launch", launched)


def test_a_batch_that_is_not_finite_changes_nothing(infinite):
    workload = workloads.get("kg-synthetic", **GRAPH)
    run = lib.train(workload, "oac", "virtual", on_nan="skip", keep=True, accesses=True, save=False)
    assert run.summary["dropped"] == 1 and check_run(run)[0]["anomalies"] == {}
    order = run.summary["order"]
    left = serial(workload, 0, [*order[:9], *order[10:]])
    rows, expected = run.model.rows["entity"], left["server0/rows"]["entity"]
    known = np.isin(rows.ids, expected.ids)
    assert np.array_equal(rows.values[known], expected.values) and np.array_equal(rows.state[known], expected.state)
    assert all(np.array_equal(run.model.dense[name], value) for name, value in left["worker0/dense"][0].items())


def test_a_run_stops_at_what_is_not_finite(infinite):
    with pytest.raises(NotFinite, match="at batch 9 "):
        lib.train("kg-synthetic", "oac", "virtual", **GRAPH, save=False)
