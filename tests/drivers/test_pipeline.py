"""OAC equals a serial execution in its computation order, bit for bit; plain asynchrony does not."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lib
from lib import Link, LocalCluster, Node, VirtualCluster, protocols, workloads
from lib.drivers import pipeline_loop
from lib.drivers.pipeline_loop import HostStore, Pipeline
from lib.drivers.trainer import Trainer
from lib.errors import NotFinite
from lib.results.outcome import digest
from lib.store.optim import SGD, Adagrad, Adam
from lib.tasks.flat_model import FlatModel
from notebooks.oac.anomalies import check_run
from notebooks.oac.replay import serial
from tests.soak.pipelines import stirred
from tests.toys import Letters, finals, records

GRAPH = {"entities": 60, "triples": 600, "dim": 4, "batch_size": 16, "negatives": 4}


def trained(workload, protocol, cluster, seed=0):
    """The final parameters and the order in which the device computed the batches."""
    parts = records(workload, protocol, cluster, seed)
    return finals(parts), next(part.taken for part in parts if part.taken)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10),
    in_flight=st.integers(1, 12),
    readers=st.integers(1, 5),
    writers=st.integers(1, 5),
    bandwidth=st.sampled_from([1e6, 1e7, 1e9]),
    memory=st.sampled_from([1e6, 1e9]),
    optimizer=st.sampled_from([SGD(lr=0.1), Adagrad(lr=0.1), Adam(lr=0.01)]),
)
def test_random_graphs_and_schedules_equal_a_serial_run(
    seed, in_flight, readers, writers, bandwidth, memory, optimizer
):
    workload = workloads.get("kg-synthetic", samples=400, row_optimizer=optimizer, dense_optimizer=optimizer, **GRAPH)
    server = Node(cores=4, bandwidth=bandwidth, core_memory=memory)
    cluster = VirtualCluster(worker=Node(bandwidth=bandwidth), server=server)
    rule = protocols.get("oac", in_flight=in_flight, readers=readers, writers=writers)
    final, order = trained(workload, rule, cluster, seed)
    assert sorted(order) == list(range(workload.batches()))
    assert digest(final) == digest(serial(workload, seed, order))


@pytest.mark.parametrize("seed", range(5))
def test_real_threads_equal_a_serial_run(seed):
    workload = workloads.get("kg-synthetic", samples=1600, **GRAPH)
    with stirred({"hesitation": 1e-4}):  # so small a batch would stay on the event loop
        final, order = trained(workload, protocols.get("oac"), LocalCluster(threads=8), seed)
    assert digest(final) == digest(serial(workload, seed, order))


@pytest.mark.parametrize(
    "name, seed, equal", [("sequential", 0, True), *(("pipelined", seed, False) for seed in range(3))]
)
def test_sequential_keeps_the_order_of_the_data_and_plain_asynchrony_equals_no_serial_run(name, seed, equal):
    workload = workloads.get("kg-synthetic", samples=400, **GRAPH)
    cluster = LocalCluster() if equal else VirtualCluster()
    final, order = trained(workload, protocols.get(name), cluster, seed)
    assert (digest(final) == digest(serial(workload, seed, order))) == equal
    assert order == list(range(workload.batches())) or not equal


@pytest.mark.parametrize(
    "name, options, most",
    [("pipelined", {"in_flight": 1}, 0), ("pipelined", {"in_flight": 3}, 2), ("sequential", {}, 0)],
)
def test_a_gradient_misses_the_other_batches_in_flight_at_most(name, options, most):
    rule = protocols.get(name, **options)
    run = lib.train(Letters(samples=30), rule, VirtualCluster(), save=False)
    assert run.summary["staleness_max"] == rule.max_staleness == most


def test_without_a_cache_no_update_may_leave_one():
    run = lib.train(Letters(samples=6), "pipelined", VirtualCluster(), accesses=True, save=False)
    computed = run.accesses[run.accesses["kind"] == "compute"]
    assert len(computed) == 18 and computed["safe"].eq(-1).all()


def test_the_cache_stays_bounded():
    sparse = GRAPH | {"entities": 3000, "triples": 20_000}
    workload = workloads.get("kg-synthetic", samples=3200, **sparse)
    rule = protocols.get("oac", in_flight=3)
    parts = records(workload, rule, VirtualCluster())
    largest = max(part.extra["largest cache"] for part in parts)
    rows_of_a_batch = 2 * GRAPH["batch_size"] + 2 * GRAPH["negatives"]
    assert rule.most_cached_updates == 8
    assert 0 < largest <= 8 * rows_of_a_batch
    assert sum(part.extra["rows evicted"] for part in parts) > 0


def in_flight(parts):
    """Most batches at once from the start of their reading to the end of their writing."""
    spans = [span for part in parts for span in part.spans]
    begins = {batch: start for kind, start, _, batch, _ in spans if kind == "read"}
    ends = {batch: end for kind, _, end, batch, _ in spans if kind == "write"}
    return max(sum(begins[other] <= begins[batch] < ends[other] for other in begins) for batch in begins)


@pytest.mark.parametrize("name", ["pipelined", "oac"])
@pytest.mark.parametrize("slow", ["worker", "server"])
def test_queues_bound_what_is_in_flight(name, slow):
    """One reader's, one in each queue, one on the device, one writer's: five, where the device is slow or where the store is."""
    workload = workloads.get("kg-synthetic", samples=400, **GRAPH)
    rule = protocols.get(name, in_flight=50, readers=1, writers=1, queue=1)
    nodes = {"worker": Node(flops=1e6)} if slow == "worker" else {"server": Node(cores=8, core_memory=1e4)}
    assert rule.most_in_flight == 5
    assert in_flight(records(workload, rule, VirtualCluster(**nodes))) <= 5
    assert in_flight(records(workload, protocols.get(name, in_flight=3, queue=1), VirtualCluster(**nodes))) <= 3


def test_every_stage_has_its_cost():
    """Two batches one by one; each row has 4 bytes, and 16 of id and timestamp; every message has a header of 64."""
    host, link = Node(core_memory=12.0, latency=0.0), Link(ends=("server0", "worker0"), bandwidth=100.0)
    device = Node(flops=1e6, core_memory=60.0)
    cluster = VirtualCluster(server=host, worker=device, links=(link,))
    rule = protocols.get("oac", in_flight=1, readers=1, writers=1)
    spans = [span for part in records(Letters(), rule, cluster) for span in part.spans]
    took = {kind: end - start for kind, start, end, batch, _ in spans if batch == 0}
    assert took == pytest.approx(
        {
            "read": 2 * 12 / 12,
            "transfer": (3 * (8 + 4 + 8) + 64) / 100,
            "validate": 60 / 60,
            "compute": 1.0,
            "update": 3 * (60 + 4) / 60,
            "push": (3 * (8 + 4 + 8) + 64) / 100,
            "write": 2 * 12 / 12,
        }
    )


def test_rows_are_read_and_written_with_their_optimisers_state():
    """Three rows of one number, for which Adam keeps three."""
    cluster = VirtualCluster(server=Node(core_memory=12.0))
    parts = records(Letters(row_optimizer=Adam(lr=0.01)), protocols.get("oac", in_flight=1), cluster)
    took = {kind: end - start for part in parts for kind, start, end, batch, _ in part.spans if batch == 0}
    assert took["read"] == pytest.approx(2 * 3 * 4 * 4 / 12) == took["write"]


def test_the_store_is_read_as_a_whole_after_all_other_accesses():
    run = lib.train(Letters(samples=100), "oac", "virtual", accesses=True, save=False)
    whole = run.accesses["batch"] == -1
    assert 0 < whole.sum() < len(run.accesses) and set(run.accesses.loc[whole, "kind"]) == {"read"}
    store = run.accesses[run.accesses["kind"] != "compute"]
    assert store[["stamp", "safe"]].eq(-1).all(axis=None), "of computations alone"
    assert store.loc[store["batch"] == -1, "order"].eq(np.iinfo(np.int64).max).all()
    assert store.loc[store["batch"] == -1, "order"].min() > store.loc[store["batch"] >= 0, "order"].max()


# What stops a pipeline: the first cause comes out, the store holds what a serial run made, and the run goes on from its cut

CLUSTERS = {"virtual": VirtualCluster(), "local": LocalCluster(threads=8)}
WHERE = {
    "a reader": (HostStore, "_read"),
    "its input": (workloads.get("kg-synthetic", samples=480, **GRAPH).__class__, "draw"),
    "validation": (Pipeline, "_validate"),
    "the device": (Trainer, "_call_model"),
    "the update": (Pipeline, "_update"),
    "the way back": (Pipeline, "_download_updated_rows"),
    "a writer": (HostStore, "_write_and_log"),
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
    workload = workloads.get("kg-synthetic", samples=480, **GRAPH)
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
    options = {**GRAPH, "samples": 480, "checkpoint_every": 96}
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
    workload = workloads.get("kg-synthetic", samples=480, **GRAPH)
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
        lib.train("kg-synthetic", "oac", "virtual", samples=480, **GRAPH, save=False)
