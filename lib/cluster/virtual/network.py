"""Messages between nodes in virtual time: each end's interface is a queue, and so is each direction of a private link.

A message leaves its sender at the sender's bandwidth once what the sender sent before has left; its first byte arrives a
latency later; it enters the receiver at the receiver's bandwidth once what arrived before has entered. Both overlap, so a
lone message takes size / min(bandwidths) + latency. Messages from one node to another arrive in the order of sending.
What waits at a busy receiver does not hold its sender's interface: a switch stands between them and has room. An uplink that
several nodes share is a queue more, out of their switch and into it; what crosses it waits there in the order of coming.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from lib.cluster.faults.failures import Connection
from lib.cluster.spec import Link, Uplink, Usage


@dataclass(slots=True)
class Queue:
    """One direction of an interface."""

    bandwidth: float
    """Bytes per second."""
    free: float = 0.0
    """When what is queued so far is through."""
    busy: float = 0.0
    """Seconds of transmission."""
    waited: float = 0.0
    """Seconds that messages stood in the queue, summed."""
    bytes: float = 0.0
    messages: int = 0

    def enter(self, ready: float, size: float) -> float:
        """Queue a message that is ready at a time; when its transmission starts."""
        start = max(ready, self.free)
        seconds = size / self.bandwidth
        self.waited += start - ready
        self.busy += seconds
        self.bytes += size
        self.messages += 1
        self.free = start + seconds
        return start


@dataclass(slots=True, eq=False)
class Interface:
    """A node's connection: it sends and receives at the same time. It is no other, however alike."""

    out: Queue
    into: Queue
    latency: float
    uplink: Interface | None = None
    """What it shares with others on the way to those that do not share it."""


def usage(name: str, interface: Interface, computed: float = 0.0, lanes: int = 0) -> Usage:
    """What a node, or one direction of a private link, did."""
    out, into = interface.out, interface.into
    waits = (queue.waited / queue.messages if queue.messages else 0.0 for queue in (out, into))
    return Usage(name, lanes, computed, out.busy, into.busy, *waits, out.bytes, into.bytes)


def send(source: Interface, target: Interface, now: float, size: float) -> float:
    """Queue a message on both ends; when its last byte has arrived."""
    latency = max(source.latency, target.latency)
    start = source.out.enter(now, size)
    begun, ended = across(source, target, start, source.out.free, size)
    entered = target.into.enter(begun + latency, size)
    return max(entered + size / target.into.bandwidth, ended + latency)


def across(source: Interface, target: Interface, begun: float, ended: float, size: float) -> tuple[float, float]:
    """When the first and the last byte of a message are past the uplinks between its ends, if there are any."""
    if source.uplink is not target.uplink:
        for queue in (source.uplink and source.uplink.out, target.uplink and target.uplink.into):
            if queue:
                begun = queue.enter(begun, size)
                ended = max(ended, queue.free)
    return begun, ended


Transfer = tuple[np.ndarray, np.ndarray, float]
"""Senders, receivers (each at most once) and the bytes that every one of them sends."""


def carry_out(
    steps: Sequence[Transfer], members: Sequence[Interface], ready: np.ndarray, limit: float = float("inf")
) -> np.ndarray:
    """Transfers among some interfaces that depend on one another: a node sends what it has received in the steps before.

    `ready` says when each member has what it needs to begin, the result when it is done; `limit` is the bandwidth that each
    transfer is held to, where the peer gives it only a share. The interfaces and uplinks are taken from the first step to the
    last: of two groups that cross one uplink, the second waits for the first.
    """
    shared = any(member.uplink for member in members)
    out = np.array([min(member.out.bandwidth, limit) for member in members])
    into = np.array([min(member.into.bandwidth, limit) for member in members])
    leaves = np.array([member.out.free for member in members])
    enters = np.array([member.into.free for member in members])
    latency = np.array([member.latency for member in members])
    moved = np.zeros((2, len(members)))
    ready = ready.astype(float)
    for senders, receivers, size in steps:
        start = np.maximum(ready[senders], leaves[senders])
        leaves[senders] = ended = start + size / out[senders]
        for flow in np.argsort(start, kind="stable") if shared else ():
            ends = members[senders[flow]], members[receivers[flow]]
            start[flow], ended[flow] = across(*ends, start[flow], ended[flow], size)
        lag = np.maximum(latency[senders], latency[receivers])
        entered = np.maximum(start + lag, enters[receivers])
        enters[receivers] = entered + size / into[receivers]
        arrived = np.maximum(enters[receivers], ended + lag)
        ready[receivers] = np.maximum(ready[receivers], arrived)
        moved[0, senders] += size
        moved[1, receivers] += size
    for number, member in enumerate(members):
        for queue, free, size in ((member.out, leaves, moved[0]), (member.into, enters, moved[1])):
            queue.free = float(free[number])
            queue.bytes += float(size[number])
            queue.busy += float(size[number]) / queue.bandwidth
    return ready


class Network:
    """The interfaces of all nodes, the private links between some, the uplinks that some share, and what befalls the messages
    from one to another."""

    def __init__(
        self, links: Sequence[Link], uplinks: Sequence[Uplink], befalls: Callable[[str, str], Connection] | None
    ):
        """`befalls`: what it is, of a sender and a receiver; None: nothing ever."""
        self.links: dict[tuple[str, str], tuple[Interface, Interface]] = {}
        """A link is two pairs of interfaces, one pair a direction, which share nothing."""
        for link in links:
            for ends in (link.ends, link.ends[::-1]):
                self.links[ends] = (idle(link.bandwidth, link.latency), idle(link.bandwidth, link.latency))
        self.uplinks = {f"uplink of {each.nodes[0]}": idle(each.bandwidth, 0.0) for each in uplinks}
        behind = zip(uplinks, self.uplinks.values(), strict=True)
        self._uplink_of = {node: uplink for each, uplink in behind for node in each.nodes}
        self.interfaces: dict[str, Interface] = {}
        self._befalls = befalls
        self._connections: dict[tuple[str, str], Connection] = {}

    def join(self, node: str, bandwidth: float, latency: float) -> Interface:
        """The new interface of a node, behind its uplink."""
        interface = self.interfaces[node] = idle(bandwidth, latency)
        interface.uplink = self._uplink_of.get(node)
        return interface

    def machines(self, ranks: Sequence[int]) -> list[int]:
        """Of each of these workers, the first of them behind the same uplink; itself if it has none."""
        uplinks = [self.interfaces[f"worker{rank}"].uplink or rank for rank in ranks]
        first: dict[Interface | int, int] = {}
        return [first.setdefault(each, at) for at, each in enumerate(uplinks)]

    def send(self, source: str, target: str, now: float, size: float, start: float) -> float:
        """Queue a message; when it has arrived. Failures count from `start` on."""
        ends = self.links.get((source, target)) or (self.interfaces[source], self.interfaces[target])
        arrival = send(*ends, now, size)
        if self._befalls is None:
            return arrival
        return start + self._connection(source, target).arrival(now - start, arrival - start)

    def save(self) -> dict[str, Any]:
        """The books of interfaces that are idle, and how far the chances have come."""
        books = {name: [_book(queue) for queue in queues] for name, queues in self._queues().items()}
        connections = [(*ends, connection.save()) for ends, connection in self._connections.items()]
        return {"books": books, "connections": connections}

    def load(self, state: dict[str, Any]) -> None:
        """Be as when that was saved; what there was not then has done nothing."""
        for name, queues in self._queues().items():
            for queue, book in zip(queues, state["books"].get(name, ()), strict=False):
                for entry, value in book.items():
                    setattr(queue, entry, value)
        for source, target, kept in state["connections"]:
            self._connection(source, target).load(kept)

    def _connection(self, source: str, target: str) -> Connection:
        if (source, target) not in self._connections:
            self._connections[source, target] = self._befalls(source, target)
        return self._connections[source, target]

    def _queues(self) -> dict[str, list[Queue]]:
        nodes = {name: [each.out, each.into] for name, each in (self.interfaces | self.uplinks).items()}
        links = {
            " - ".join(ends): [end for each in pair for end in (each.out, each.into)]
            for ends, pair in self.links.items()
        }
        return nodes | links


def idle(bandwidth: float, latency: float) -> Interface:
    """An interface that nothing has passed yet."""
    return Interface(Queue(bandwidth), Queue(bandwidth), latency)


def _book(queue: Queue) -> dict[str, float]:
    return {each.name: getattr(queue, each.name) for each in fields(queue) if each.name != "bandwidth"}
