"""How a group averages on a modelled network: which member sends how much to which in each step, and when all is through."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter

import numpy as np

from lib.cluster.spec import Interface, Queue, uplinks

Transfer = tuple[np.ndarray, np.ndarray, float]
"""Senders, receivers (each at most once) and the bytes that every one of them sends."""


class Passage:
    """A collective's way through some queues, one for each of its places."""

    def __init__(self, queues: Sequence[Queue], limit: float = float("inf")):
        self._queues = queues
        figures = [(min(queue.bandwidth, limit), queue.passed, queue.free) for queue in queues]
        self._bandwidth, self._passed, self._free = np.array(figures).reshape(-1, 3).T.copy()
        self._begun = np.full(len(queues), np.inf)
        self._alone, self._moved = np.zeros((2, len(queues)))

    def start_transmission(self, places: np.ndarray, ready: np.ndarray, size: float) -> tuple[np.ndarray, np.ndarray]:
        """Bytes that are ready at a time at each of the places, none of which is named twice; from when and to when they pass.
        With messages queued before them they share: both go half as fast while both are there."""
        start = np.maximum(ready, self._passed[places])
        seconds = size / self._bandwidth[places]
        shared = np.clip(self._free[places] - start, 0.0, seconds)
        self._passed[places] = end = start + seconds + shared
        self._free[places] += shared
        self._begun[places] = np.minimum(self._begun[places], start)
        self._alone[places] += seconds - shared
        self._moved[places] += size
        return start, end

    def charge_queues(self, earliest: float) -> None:
        """Enter the passage in the books of the queues; none of them will be used before `earliest` any more."""
        for place in np.flatnonzero(self._moved):
            queue, end = self._queues[place], float(self._passed[place])
            queue.passed, queue.free = end, float(self._free[place])
            queue.bytes += float(self._moved[place])
            queue.busy += float(self._moved[place]) / queue.bandwidth
            begin = max(float(self._begun[place]), queue.free)
            if queue.passing:
                queue.passing = [each for each in queue.passing if each[1] > earliest]
            if begin < end:
                queue.passing.append((begin, end, min(float(self._alone[place]) / (end - begin), 1.0)))


def schedule_transfers(
    steps: Sequence[Transfer], members: Sequence[Interface], ready: np.ndarray, max_bandwidth: float = float("inf")
) -> np.ndarray:
    """Transfers among some interfaces that depend on one another: a node sends what it has received in the steps before.

    `ready` says when each member has what it needs to begin, the result when it is done; `max_bandwidth` is what each transfer
    is held to, where the peer gives it only a share. The interfaces and uplinks are taken from the first step to the
    last: of two groups that cross one uplink, the second waits for the first.
    """
    now, ready = float(ready.min()), ready.astype(float)
    out, into = (Passage([*map(attrgetter(side), members)], max_bandwidth) for side in ("out", "into"))
    latency = np.array([*map(attrgetter("latency"), members)])
    behind = {id(member.uplink): member.uplink for member in members if member.uplink}
    shared = [queue for uplink in behind.values() for queue in (uplink.out, uplink.into)]
    between, place = Passage(shared), {id(queue): np.array([number]) for number, queue in enumerate(shared)}
    for senders, receivers, size in steps:
        start, ended = out.start_transmission(senders, ready[senders], size)
        for flow in np.argsort(start, kind="stable") if shared else ():
            for queue in uplinks(members[senders[flow]], members[receivers[flow]]):
                [start[flow]], [through] = between.start_transmission(place[id(queue)], start[flow : flow + 1], size)
                ended[flow] = max(ended[flow], through)
        lag = np.maximum(latency[senders], latency[receivers])
        _, entered = into.start_transmission(receivers, start + lag, size)
        ready[receivers] = np.maximum(ready[receivers], np.maximum(entered, ended + lag))
    for passage in (out, into, between):
        passage.charge_queues(now)
    return ready


def ring(machines: Sequence[int], size: float) -> list[Transfer]:
    """Chunked: reduce-scatter, then all-gather, each of W - 1 steps in which every node sends a chunk to the next."""
    workers = len(machines)
    everyone = np.arange(workers)
    step = everyone, (everyone + 1) % workers, size / workers
    return [step] * (2 * (workers - 1))


def unchunked_ring(machines: Sequence[int], size: float) -> list[Transfer]:
    """W hops to gather the sum and come back to its owner, W - 1 to show it to the others."""
    workers = len(machines)
    return [_hop(hop % workers, (hop + 1) % workers, size) for hop in range(2 * workers - 1)]


def halving_doubling(machines: Sequence[int], size: float) -> list[Transfer]:
    """Chunked: halving and doubling over pairs at distances 1, 2, 4, ...; D (1 - 1/W) each way in log W steps.

    Ranks beyond the largest power of two hand their vector to a partner first, and get the result last.
    """
    workers = len(machines)
    power = 1 << (workers.bit_length() - 1)
    spare, ranks = np.arange(power, workers), np.arange(power)
    first = [(spare, spare - power, size)] if spare.size else []
    last = [(spare - power, spare, size)] if spare.size else []
    distances = [1 << level for level in range(power.bit_length() - 1)]
    halving = [(ranks, ranks ^ distance, size / (2 * distance)) for distance in distances]
    return [*first, *halving, *reversed(halving), *last]


def unchunked_tree(machines: Sequence[int], size: float) -> list[Transfer]:
    """A binary tree, level by level: a parent takes its two children one after the other (2 hops a level), and shows both
    the result at once (1 hop). Levels are whole numbers: log W is rounded up."""
    levels = math.ceil(math.log2(len(machines)))
    # Any pair may represent its level: a level ends when its last parent is served, and all parents take equally long.
    return [_hop(hop % 2, (hop + 1) % 2, size) for hop in range(3 * levels)]


def hierarchical(machines: Sequence[int], size: float) -> list[Transfer]:
    """Chunked: reduce-scatter inside each machine, a ring between machines for each chunk, all-gather
    inside. A ring of all nodes where machines differ in size: then no chunk has an owner on each."""
    places, counts = np.unique(machines, return_counts=True)
    if (counts != counts[0]).any():
        return ring(machines, size)
    crews = np.argsort(machines, kind="stable").reshape(places.size, counts[0])
    inside = crews.ravel(), np.roll(crews, -1, axis=1).ravel(), size / counts[0]
    between = crews.ravel(), np.roll(crews, -1, axis=0).ravel(), size / crews.size
    scatter = [inside] * (counts[0] - 1)
    return [*scatter, *[between] * (2 * (places.size - 1)), *scatter]


ALGORITHMS: dict[str, Callable[[Sequence[int], float], list[Transfer]]] = {
    "ring": ring,
    "tree": halving_doubling,
    "whole-ring": unchunked_ring,
    "whole-tree": unchunked_tree,
    "hierarchical": hierarchical,
}
"""Of the machine of each member, and of bytes."""
COLLECTIVES = ("auto", *ALGORITHMS)
"""The values of `VirtualCluster.collective`."""


def transfers(collective: str, members: Sequence[Interface], size: float) -> list[Transfer]:
    """Of an average of so many bytes. "auto": as a ring or as a tree, whichever would take less time if all interfaces were idle
    and like the slowest of these; uplinks are not looked at."""
    first: dict[Interface, int] = {}
    machines = [first.setdefault(member.uplink or member, at) for at, member in enumerate(members)]
    if collective != "auto":
        return ALGORITHMS[collective](machines, size)
    latency = max(member.latency for member in members)
    bandwidth = min(min(member.out.bandwidth, member.into.bandwidth) for member in members)
    ways = ring(machines, size), halving_doubling(machines, size)
    return min(ways, key=lambda steps: sum(latency + each / bandwidth for _, _, each in steps))


def all_gather(members: Sequence[Interface], size: float) -> list[Transfer]:
    """Everyone's array to all others, around a ring."""
    everyone = np.arange(len(members))
    return [(everyone, np.roll(everyone, -1), size)] * (len(members) - 1)


def _hop(sender: int, receiver: int, size: float) -> Transfer:
    return np.array([sender]), np.array([receiver]), size
