"""Messages between nodes in virtual time: each end's interface is a queue, and so is each direction of a private link.

A message leaves its sender at the sender's bandwidth once what the sender sent before has left; its first byte arrives a
latency later; it enters the receiver at the receiver's bandwidth once what arrived before has entered. Both overlap, so a
lone message takes size / min(bandwidths) + latency. Messages from one node to another arrive in the order of sending.
What waits at a busy receiver does not hold its sender's interface: a switch stands between them and has room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lib.cluster.spec import Usage


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


@dataclass(slots=True)
class Interface:
    """A node's connection: it sends and receives at the same time."""

    out: Queue
    into: Queue
    latency: float


def usage(name: str, interface: Interface, computed: float = 0.0, lanes: int = 0) -> Usage:
    """What a node, or one direction of a private link, did."""
    out, into = interface.out, interface.into
    waits = (queue.waited / queue.messages if queue.messages else 0.0 for queue in (out, into))
    return Usage(name, lanes, computed, out.busy, into.busy, *waits, out.bytes, into.bytes)


def send(source: Interface, target: Interface, now: float, size: float) -> float:
    """Queue a message on both ends; when its last byte has arrived."""
    latency = max(source.latency, target.latency)
    start = source.out.enter(now, size)
    entered = target.into.enter(start + latency, size)
    return max(entered + size / target.into.bandwidth, source.out.free + latency)


Transfer = tuple[np.ndarray, np.ndarray, float]
"""Senders, receivers (each at most once) and the bytes that every one of them sends."""


@dataclass(slots=True)
class Exchange:
    """Transfers among some interfaces that depend on one another: a node sends what it has received in the steps before."""

    members: Sequence[Interface]
    ready: np.ndarray
    """When each member has what it needs to go on."""
    limit: float = field(default=float("inf"))
    """Bandwidth that each transfer is held to, where the peer gives it only a share."""

    def run(self, steps: Sequence[Transfer]) -> np.ndarray:
        """Carry the steps out; when each member is done. The interfaces are taken from the first step to the last."""
        out = np.array([min(member.out.bandwidth, self.limit) for member in self.members])
        into = np.array([min(member.into.bandwidth, self.limit) for member in self.members])
        leaves = np.array([member.out.free for member in self.members])
        enters = np.array([member.into.free for member in self.members])
        latency = np.array([member.latency for member in self.members])
        moved = np.zeros((2, len(self.members)))
        ready = self.ready.astype(float)
        for senders, receivers, size in steps:
            start = np.maximum(ready[senders], leaves[senders])
            leaves[senders] = start + size / out[senders]
            lag = np.maximum(latency[senders], latency[receivers])
            entered = np.maximum(start + lag, enters[receivers])
            enters[receivers] = entered + size / into[receivers]
            arrived = np.maximum(enters[receivers], leaves[senders] + lag)
            ready[receivers] = np.maximum(ready[receivers], arrived)
            moved[0, senders] += size
            moved[1, receivers] += size
        for number, member in enumerate(self.members):
            for queue, free, size in ((member.out, leaves, moved[0]), (member.into, enters, moved[1])):
                queue.free = float(free[number])
                queue.bytes += float(size[number])
                queue.busy += float(size[number]) / queue.bandwidth
        return ready
