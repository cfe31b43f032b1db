"""The modelled cluster against formulas that were known before it: queues, barriers, saturation, DS-Sync's Table 1."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from lib import Lognormal, Node, Uplink, VirtualCluster, protocols, train, workloads
from lib.cluster import collectives
from lib.cluster.collectives import schedule_transfers
from lib.cluster.spec import Interface, Queue, Work, idle_interface, send
from lib.cluster.virtual import HEADER
from lib.store.optim import SGD
from notebooks.dssync import cost

ENDLESS = 1e30
PLAIN = {"save": False, "trace": False, "gradients": False}
"""Without gradients a run takes as long, to the last digit (test_timing_runs.py)."""


def interfaces(count, bandwidth=1.0, latency=0.0):
    return [Interface(Queue(bandwidth), Queue(bandwidth), latency) for _ in range(count)]


def seconds(steps, count, limit=float("inf"), **options):
    """When the last of so many idle members is done with the steps."""
    return schedule_transfers(steps, interfaces(count, **options), np.zeros(count), limit).max()


SIZE, BANDWIDTH = 50e6, 1.25e9


@pytest.mark.parametrize("workers", [4, 9, 16, 64])
def test_ds_syncs_table_1_has_a_parameter_server(workers, servers=2):
    """Whole-vector hops on a 10 Gbit/s network."""
    share = servers * BANDWIDTH / workers
    measured = seconds(cost.whole_through_server(workers, SIZE), workers + 1, share, bandwidth=BANDWIDTH)
    assert measured == pytest.approx(2 * workers**2 * SIZE / (servers * BANDWIDTH), rel=0.01)


VECTOR = SIZE / BANDWIDTH
LATENCY = 50e-6
COLLECTIVES = {
    # DS-Sync's Table 1, of all workers or of a group; where a tree's logarithm is no whole number it is rounded up.
    "unchunked_ring": lambda n: (2 * n - 1) * (VECTOR + LATENCY),
    "unchunked_tree": lambda n: 3 * math.ceil(math.log2(n)) * (VECTOR + LATENCY),
    # What NCCL says, and what halving and doubling costs.
    "ring": lambda n: 2 * (n - 1) / n * VECTOR + 2 * (n - 1) * LATENCY,
    "halving_doubling": lambda n: 2 * (n - 1) / n * VECTOR + 2 * math.log2(n) * LATENCY,
}


@pytest.mark.parametrize("workers", [2, 3, 4, 8, 9, 16, 64])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_costs_its_formula(name, workers):
    if name == "halving_doubling":  # its formula is of powers of two
        workers = 1 << (workers.bit_length() - 1)
    steps = getattr(collectives, name)(range(workers), SIZE)
    measured = seconds(steps, workers, bandwidth=BANDWIDTH, latency=LATENCY)
    assert measured == pytest.approx(COLLECTIVES[name](workers), rel=0.01)


@given(st.integers(2, 70), st.sampled_from([4, 1e4, 1e6, 1e8]), st.sampled_from([0.0, 1e-6, 1e-3]))
def test_by_itself_a_cluster_takes_a_tree_or_a_ring_whichever_is_sooner_done(workers, size, latency):
    members = [idle_interface(BANDWIDTH, latency) for _ in range(workers)]
    auto, ring, tree = (
        seconds(collectives.transfers(each, members, size), workers, bandwidth=BANDWIDTH, latency=latency)
        for each in ("auto", "ring", "tree")
    )
    assert auto == min(ring, tree) or auto == pytest.approx(min(ring, tree), rel=1e-6)


def test_a_ring_pays_where_a_vector_is_long_and_a_tree_where_it_is_short():
    """Of five, one has to bring its whole vector to a tree of four, and to fetch the whole mean: two vectors, not 8 / 5."""
    members = [idle_interface(1e9, 1e-4) for _ in range(5)]
    steps = {size: len(collectives.transfers("auto", members, size)) for size in (1e3, 1e8)}
    assert steps == {1e3: 1 + 4 + 1, 1e8: 8}


def behind(uplinks, each, **options):
    """Interfaces of which so many are behind each uplink of 1 byte a second."""
    members = interfaces(uplinks * each, **options)
    for first in range(0, len(members), each):
        shared = Interface(Queue(1.0), Queue(1.0), 0.0)
        for member in members[first : first + each]:
            member.uplink = shared
    return members


@pytest.mark.parametrize("bandwidth, inside", [(1e9, 0), (1.0, 1.5)], ids=["GPUs of a machine", "a rack"])
def test_what_crosses_an_uplink_shares_it(bandwidth, inside):
    """Sixteen nodes, four behind each uplink, in rank order: a ring of all crosses each once, four rings of equal remainder four
    times. A machine's GPUs have next to no time among themselves, a rack's nodes have links like its uplink."""

    def ring(chosen):
        members = chosen(behind(4, 4, bandwidth=bandwidth))
        return schedule_transfers(collectives.ring(range(len(members)), 1.0), members, np.zeros(len(members))).max()

    assert ring(lambda all: all) == pytest.approx(15 / 8, rel=1e-6)
    assert [ring(lambda all, at=at: all[4 * at :][:4]) for at in range(4)] == pytest.approx([inside] * 4, abs=1e-6)
    members = behind(4, 4, bandwidth=bandwidth)
    across = [schedule_transfers(collectives.ring(range(4), 1.0), members[at::4], np.zeros(4)).max() for at in range(4)]
    assert max(across) == pytest.approx(4 * 1.5, rel=1e-6)
    assert ring(lambda all: all[:8]) == pytest.approx(7 / 4, rel=1e-6)


@pytest.mark.parametrize("uplinks, each", [(2, 8), (8, 8), (4, 2)])
def test_a_hierarchical_mean_costs_two_small_rings(uplinks, each, inner=100.0, latency=0.01):
    """Inside, each sends all but its share twice at its own bandwidth; between, the whole vector crosses an uplink as in a ring
    of machines. So 64 GPUs wait for 28 latencies where a ring of all has 126."""
    machines = np.repeat(np.arange(uplinks), each)
    members = behind(uplinks, each, bandwidth=inner, latency=latency)
    measured = schedule_transfers(collectives.hierarchical(machines, 16.0), members, np.zeros(uplinks * each)).max()
    inside = 2 * (each - 1) * (16 / each / inner + latency)
    between = 2 * (uplinks - 1) * (16 / uplinks + latency)
    assert measured == pytest.approx(inside + between, rel=0.02)
    members = behind(uplinks, each, bandwidth=inner, latency=latency)
    flat = schedule_transfers(collectives.ring(range(uplinks * each), 16.0), members, np.zeros(uplinks * each))
    assert measured < flat.max()


@pytest.mark.parametrize("machines", [[0] * 8, [*range(8)], [0, 0, 0, 1, 1]], ids=["one", "a GPU each", "unlike"])
def test_a_hierarchical_mean_is_a_ring_where_there_is_one_level(machines):
    made, ring = collectives.hierarchical(machines, 8.0), collectives.ring(machines, 8.0)
    assert seconds(made, len(machines)) == seconds(ring, len(machines))
    assert len(made) == len(ring)


def test_a_message_crosses_both_uplinks_and_none_inside():
    here, beside, there = behind(2, 2, bandwidth=10.0, latency=0.5)[:3]
    assert send(here, beside, 0.0, 10.0) == 1.5
    assert send(here, there, 2.0, 10.0) == 2 + 10 + 0.5
    assert send(beside, there, 2.0, 10.0) == 2 + 20 + 0.5, "behind the other's on the uplink"
    assert (here.uplink.out.bytes, here.uplink.into.bytes, there.uplink.into.bytes) == (20, 0, 20)


def pair(latency=0.0):
    """Two interfaces of 1 byte a second, and what an all-reduce of so many bytes between them costs each."""
    members = interfaces(2, latency=latency)

    def averaged(size, at):
        return schedule_transfers(collectives.ring(range(2), size), members, np.full(2, at)).tolist()

    return members, averaged


def test_a_collective_shares_with_the_messages_that_were_there_before():
    """Ten seconds of a message are left, and a ring of two chunks of two seconds comes: half of the interface is the ring's, so
    its first is over after four. The other way nothing is in its way but that it waits for what it passes on."""
    (here, there), averaged = pair()
    assert send(here, there, 0.0, 10.0) == 10
    assert averaged(4.0, 0.0) == [6, 8]
    assert send(here, there, 0.0, 1.0) == 15, "behind all of both"
    (here, there), averaged = pair()
    send(here, there, 0.0, 2.0)
    assert averaged(4.0, 0.0) == [6, 6], "two seconds of each until the fourth, and then the ring alone"


def test_a_message_has_what_a_collective_leaves():
    """A ring of two chunks of a second with a latency of one: it leaves a third of three seconds, and all that follow."""
    (here, there), averaged = pair(latency=1.0)
    assert averaged(2.0, 0.0) == [4, 4]
    assert send(here, there, 0.0, 1.0) == pytest.approx(3 + 1)
    assert send(here, there, 5.0, 2.0) == 7 + 1, "it is over"
    (here, there), averaged = pair(latency=1.0)
    averaged(2.0, 10.0)
    assert send(here, there, 8.0, 3.0) == 13 + 1, "two seconds before it, and one in its three"
    assert send(here, there, 13.0, 1.0) == 14 + 1


@given(calls=st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.integers(0, 30)), min_size=1, max_size=12))
def test_an_interface_carries_no_more_than_it_can_and_rests_not_while_it_is_asked(calls):
    """Messages and rings in any order of coming."""
    for all_at_once in (False, True):
        (here, there), averaged = pair()
        for ring, size, at in sorted(calls, key=lambda call: call[2]):
            at = 0.0 if all_at_once else float(at)
            averaged(float(size), at) if ring else send(here, there, at, float(size))
        work, over = sum(size for _, size, _ in calls), max(here.out.free, here.out.passed)
        assert here.out.bytes == work and here.out.busy == pytest.approx(work)
        assert over == pytest.approx(work) if all_at_once else over > work - 1e-6


def test_a_chunked_server_is_bound_by_its_interface(workers=8, servers=2):
    steps = cost.through_server(workers, SIZE, servers)
    measured = seconds(steps, workers + servers, bandwidth=BANDWIDTH)
    expected = 2 * workers * SIZE / (servers * BANDWIDTH)
    assert measured == pytest.approx(expected, rel=0.15)  # the first push and last pull overlap


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_poisson_arrivals_wait_as_in_an_m_d_1_queue(load):
    """Mean wait = load / (2 (1 - load)) services, messages of one second from senders that never queue themselves."""
    stream = np.random.default_rng(1)
    server = Interface(Queue(1.0), Queue(1.0), 0.0)
    arrivals = np.cumsum(stream.exponential(1 / load, 400_000))
    waits = [send(Interface(Queue(ENDLESS), Queue(1.0), 0.0), server, now, 1.0) - now - 1.0 for now in arrivals]
    assert np.mean(waits) == pytest.approx(load / (2 * (1 - load)), rel=0.03)
    assert server.into.waited / server.into.messages == pytest.approx(np.mean(waits))
    assert server.into.busy / arrivals[-1] == pytest.approx(load, rel=0.01)


def bowl(workers, steps, **options):
    size = {"batch_size": 1, "samples": workers * steps, "dim": 4}
    return workloads.get("quadratic", dense_optimizer=SGD(lr=0.1), **size, **options)


def idle_network(workload, **options):
    """Nodes on which a batch takes one second and everything else none."""
    fast = {"bandwidth": ENDLESS, "latency": 0.0, "core_memory": ENDLESS}
    return {"worker": Node(flops=workload.work().flops, **fast), "server": Node(cores=64, **fast), **options}


SIGMA = 0.3


def seconds_of_a_step(protocol, workers, steps):
    workload = bowl(workers, steps)
    cluster = VirtualCluster(workers=workers, slowdown=Lognormal(sigma=SIGMA), **idle_network(workload))
    return train(workload, protocol, cluster, **PLAIN).summary["virtual_seconds"] / steps


@pytest.mark.parametrize("workers", [2, 16])
def test_a_sync_step_takes_the_mean_of_the_slowest_of_n(workers):
    law = stats.lognorm(SIGMA)
    expected, _ = integrate.quad(lambda t: 1 - law.cdf(t) ** workers, 0, math.inf)
    assert seconds_of_a_step("sync", workers, 1_500) == pytest.approx(expected, rel=0.01)


def test_async_goes_at_the_mean_speed():
    assert seconds_of_a_step("async", 8, 1_000) == pytest.approx(math.exp(SIGMA**2 / 2), rel=0.01)


def test_a_server_saturates_at_its_bandwidth_over_the_bytes_of_a_step(workers=32, dim=1_000):
    workload = workloads.get("quadratic", batch_size=1, samples=workers * 60, dim=dim, dense_optimizer=SGD(lr=0.1))
    fast = {"latency": 0.0, "core_memory": ENDLESS, "flops": ENDLESS}
    nodes = {"worker": Node(bandwidth=1e8, **fast), "server": Node(bandwidth=1e6, cores=64, **fast)}
    run = train(workload, "async", VirtualCluster(workers=workers, **nodes), **PLAIN)
    step = 4 * dim + 2 * HEADER  # a gradient comes in, and a request for parameters
    assert run.summary["qps"] == pytest.approx(1e6 / step, rel=0.01)
    two = train(workload, "async", VirtualCluster(workers=workers, servers=2, **nodes), **PLAIN)
    assert two.summary["qps"] == pytest.approx(2 * run.summary["qps"], rel=0.05)


def test_threads_saturate_the_memory_they_share():
    """As ShadowSync's 24: eight cores, memory for three."""
    node = Node(flops=ENDLESS, cores=8, memory=3e9, core_memory=1e9)
    work = Work(bytes=1e9)
    rates = [running / node.seconds(work, running) for running in range(1, 9)]
    assert rates == pytest.approx([1, 2, 3, 3, 3, 3, 3, 3])


def test_every_protocol_of_a_group_uses_the_chosen_collective():
    workload = bowl(4, 10)
    nodes = idle_network(workload)
    nodes["worker"] = Node(flops=workload.work().flops, bandwidth=16.0, latency=0.0, core_memory=ENDLESS)

    def took(name):
        cluster = VirtualCluster(workers=4, collective=name, **nodes)
        return train(workload, "all-reduce", cluster, **PLAIN).summary["virtual_seconds"]

    times = {name: took(name) for name in collectives.ALGORITHMS}
    vector = 4 * 4 / 16  # seconds of one hop
    # Headers of the small messages to the rendezvous cost time on a network this slow; they are the same for all.
    other = times["ring"] - 10 * 2 * 3 / 4 * vector
    assert times["whole-ring"] - other == pytest.approx(10 * 7 * vector, rel=0.01)
    assert times["whole-tree"] - other == pytest.approx(10 * 6 * vector, rel=0.01)
    assert times["hierarchical"] == times["ring"], "no node shares an uplink"
    assert protocols.get("all-reduce").exchange.copies


def test_a_group_finds_its_machines_by_their_uplinks(steps=10):
    """Two machines of two GPUs in turn, whose interfaces take a second for the vector: a ring of all sends 2 x 3/4 of it
    twice over each, a hierarchical one the whole once."""
    workload = bowl(4, steps)
    nodes = idle_network(workload)
    uplinks = tuple(Uplink(nodes=(f"worker{one}", f"worker{one + 2}"), bandwidth=16.0) for one in (0, 1))
    ring, two = (
        train(workload, "all-reduce", VirtualCluster(workers=4, uplinks=uplinks, collective=name, **nodes), **PLAIN)
        for name in ("ring", "hierarchical")
    )
    saved = ring.summary["virtual_seconds"] - two.summary["virtual_seconds"]
    assert saved == pytest.approx(steps * (3 - 1), rel=0.01)
