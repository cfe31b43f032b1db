"""OAC equals a serial execution in its computation order, bit for bit; plain asynchrony does not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lib
from lib import Link, LocalCluster, Node, VirtualCluster, protocols, workloads
from lib.results.outcome import digest
from lib.store.optim import SGD, Adagrad, Adam
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
