"""Timings of the modelled cluster that a reader can check by hand."""

import asyncio

import numpy as np
import pytest

from lib import Node, VirtualCluster, train, workloads
from lib.cluster.base import Meeting, nbytes
from lib.cluster.spec import Work
from lib.cluster.virtual import HEADER
from lib.protocols.server_rule import Push

B, L = 1e6, 0.01
"""Bytes per second and seconds of latency of every link here."""
BYTES = 1_000_000 - HEADER
"""A message of one second."""
NODE = Node(flops=1.0, bandwidth=B, latency=L)


class Part:
    def __init__(self, site):
        self.site, self.came = site, []

    async def take(self, array):
        self.came.append(self.site.now())

    async def give(self, size):
        return np.zeros(size, np.uint8)

    async def compute(self, flops):
        await self.site.compute(Work(flops=flops), lambda: None)
        self.came.append(self.site.now())

    async def prepare(self):
        await self.site.compute(None, lambda: None)
        self.came.append(self.site.now())

    async def mean(self, meeting, size):
        mean = await self.site.mean(meeting, np.full(size, float(self.site.rank), np.float32))
        self.came.append(self.site.now())
        return mean


def run(main, seed=0, nodes=("server0",), **options):
    """What `main(world, part, ...)` returns, of a part on each of these nodes."""
    cluster = VirtualCluster(**{"workers": 4, "worker": NODE, "server": NODE} | options)

    async def hosted(world):
        return await main(world, *[(await world.host(Part, node=node))._slot.part for node in nodes])

    return cluster.open(seed, cluster.workers).run(hosted)


def workers(ranks):
    return [f"worker{rank}" for rank in ranks]


def message(size=BYTES):
    return np.zeros(size, np.uint8)


def test_a_message_takes_its_bytes_over_the_bandwidth_and_the_latency():
    async def main(world):
        handle = await world.host(Part, node="server0")
        await handle.take(message())
        sent = world.now()
        await handle.give(BYTES)
        return sent, world.now() - sent

    there = 1 + L
    back = HEADER / B + L
    assert run(main, nodes=()) == pytest.approx((there + back, HEADER / B + L + 1 + L))


@pytest.mark.parametrize("sender, seconds", [("worker0", 1 + 3 * L), ("server0", 0)])
def test_the_narrower_interface_and_the_longer_latency_count_and_within_a_node_neither(sender, seconds):
    async def main(world):
        handle = (await world.host(Part, node="server0")).bind(world.site(sender))
        await handle.take(message())
        return handle._slot.part.came

    assert run(main, nodes=(), server=Node(bandwidth=4 * B, latency=3 * L)) == pytest.approx([seconds])


def test_incast_queues_at_the_receiver_and_fan_out_at_the_sender():
    async def main(world):
        servers = [await world.host(Part, node=f"server{k}") for k in range(2)]
        parts = [server._slot.part for server in servers]
        sites = [world.site(f"worker{rank}") for rank in range(3)]
        await asyncio.gather(*(servers[0].bind(site).take(message()) for site in sites))
        incast, start = parts[0].came[:], world.now()
        await asyncio.gather(*(server.bind(sites[0]).take(message()) for server in servers))
        return incast, parts[0].came[3] - start, parts[1].came[0] - start

    incast, *fan_out = run(main, nodes=())
    assert incast == pytest.approx([1 + L, 2 + L, 3 + L])
    assert fan_out == pytest.approx([1 + L, 2 + L])


@pytest.mark.parametrize("cores, ends", [(1, [1, 2, 3, 4, 5]), (2, [1, 1, 2, 2, 3]), (8, [1] * 5)])
def test_a_node_computes_as_many_things_at_once_as_it_has_cores(cores, ends):
    async def main(world, part):
        await asyncio.gather(*(part.compute(1.0) for _ in range(5)))
        return part.came

    assert run(main, server=Node(flops=1.0, cores=cores)) == ends


def test_the_larger_of_operations_and_bytes_is_what_work_costs():
    node = Node(flops=10.0, core_memory=100.0)
    assert node.seconds(Work(flops=30.0, bytes=200.0)) == 3 and node.seconds(Work(flops=10.0, bytes=200.0)) == 2


def test_a_worker_twice_as_fast_takes_half_and_preparing_data_takes_nothing():
    async def main(world, *parts):
        await asyncio.gather(*(part.prepare() for part in parts))
        await asyncio.gather(*(part.compute(3.0) for part in parts))
        return [part.came for part in parts]

    assert run(main, nodes=workers(range(2)), workers=2, speeds=(1, 2)) == [[0, 3], [0, 1.5]]


@pytest.mark.parametrize("members", [(0,), (0, 1), (0, 1, 3), (0, 1, 2, 3)])
def test_a_mean_costs_what_a_ring_costs(members):
    size = 250_000

    async def main(world, *parts):
        means = await asyncio.gather(*(part.mean(Meeting("1", members), size) for part in parts))
        return means, [part.came for part in parts]

    means, came = run(main, nodes=workers(members), collective="ring")
    width = len(members)
    seconds = 2 * (width - 1) / width * 4 * size / B + 2 * (width - 1) * L
    assert came == [pytest.approx([seconds])] * width
    assert all((mean == np.float32(sum(members) / width)).all() for mean in means)


def test_a_ring_waits_for_the_last_to_come():
    async def main(world, *parts):
        async def late():
            await asyncio.sleep(5)
            await parts[1].mean(Meeting("1", (0, 1)), 250_000)

        await asyncio.gather(parts[0].mean(Meeting("1", (0, 1)), 250_000), late())
        return [part.came for part in parts]

    assert run(main, nodes=workers(range(2))) == [pytest.approx([5 + 1 + 2 * L])] * 2


ENDLESS = 1e300


def sync_seconds(steps, workers, bandwidth):
    """Virtual seconds of Sync on a quadratic whose step costs one second of computation."""
    bowl = workloads.get("quadratic", samples=32 * workers * steps, dim=1000)
    fast = {"bandwidth": bandwidth, "latency": L, "core_memory": ENDLESS}
    nodes = {"worker": Node(flops=bowl.work().flops, **fast), "server": Node(cores=workers, **fast)}
    run = train(bowl, "sync", VirtualCluster(workers=workers, **nodes), save=False)
    return run.summary["virtual_seconds"]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_step_of_sync_on_a_fast_network_is_compute_and_two_latencies(workers):
    # The push and the request for the next parameters travel together; then the parameters come back.
    steps = [sync_seconds(n, workers, ENDLESS) for n in (1, 2, 7)]
    step = 1 + 2 * L
    # Around the steps: `run` and its answer, the last push and its answer, `leave` and its answer.
    assert steps == pytest.approx([n * step + 6 * L for n in (1, 2, 7)])


def test_a_step_of_sync_on_a_slow_network_also_moves_the_parameters_both_ways():
    vector = 4 * 1000
    one, two = (sync_seconds(n, 1, B) for n in (1, 2))
    # pushed gradient, request, parameters: one after another on one link each way
    assert two - one == pytest.approx(1 + 2 * L + (vector + HEADER + HEADER + vector + HEADER) / B)


def test_the_bytes_of_a_message_are_those_of_its_arrays():
    array = np.zeros(10, np.float32)
    assert nbytes((array, {"a": [array, 3.0, None, "text"]}, Push(1, 2, 3), True)) == 80
