"""What a modelled cluster is made of: nodes, links, what a computation costs, and the messages between nodes in virtual time.

Each end's interface is a queue, and so is each direction of a private link. A message leaves its sender at the sender's bandwidth
once what the sender sent before has left; its first byte arrives a latency later; it enters the receiver at the receiver's
bandwidth once what arrived before has entered. Both overlap, so a lone message takes size / min(bandwidths) + latency. Messages
from one node to another arrive in the order of sending. A message that waits at a busy receiver does not block its sender's
interface: the switch between them has room. An uplink that several nodes share is one more queue, out of their switch and into
it; messages wait there in the order of arrival.

Collectives and messages are two flows through an interface, which packets share. While messages are queued where a collective
comes, each has half of the bandwidth; messages that come while a collective passes have what it leaves. In a queue of whole
messages each step of a ring would wait behind the rows of a batch, and rows behind all of the ring, its latencies among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from lib.cluster.failures import MessageFailures
from lib.errors import BadOption
from lib.options.checked import Checked, Count, Positive
from lib.options.units import BYTES, Bandwidth, Latency, Speed, StepSeconds


@dataclass(frozen=True, slots=True)
class Work:
    """What a piece of computation costs a node."""

    flops: float = 0.0
    """Floating-point operations."""
    bytes: float = 0.0
    """Bytes moved through the node's memory."""
    samples: int = 0
    """Samples that are made of raw data."""


@dataclass(frozen=True, kw_only=True)
class Device(Checked):
    """An accelerator on a node: it does the node's computations, one at a time."""

    flops: Speed
    """Operations per second that a training step reaches, which is well below the data sheet's peak."""
    memory: Bandwidth
    """Bandwidth of its own memory, bytes per second."""
    pcie: Bandwidth = 12e9
    """Bytes per second between it and the host, each way."""
    launch: StepSeconds = 10e-6
    """Seconds before a computation starts."""
    capacity: Annotated[Positive, BYTES] = 16e9
    """Bytes of its own memory: what a replica or a cache must fit in."""

    def seconds(self, work: Work) -> float:
        return self.launch + max(work.flops / self.flops, work.bytes / self.memory)


@dataclass(frozen=True, kw_only=True)
class Node(Checked):
    """A machine, or a worker's share of one.

    The age of gradients follows from these figures. A worker reads its batch (`reading`), then reads parameters, whose age grows
    until the gradient is in the store: while the answer travels, the computation runs (its operations over `flops`), the
    gradient travels, and the server serves both requests, which queue for its `cores`. So larger `reading` and `flops` lower the
    ages, and `latency` raises them; `launch` counts in each half that has such a node. Without a barrier, the age in updates is
    the number of the others' updates meanwhile. `notebooks/gradient_age.py` finds the workers of a wanted age. GBA's Table 5.3
    has 0.12 to 0.21 on average.
    """

    flops: Speed = 2e9
    """Operations per second of one core."""
    launch: StepSeconds = 0.0
    """Seconds that any computation takes in addition: the framework's own time, which matters for small batches."""
    cores: Count = 1
    """Computations that run at the same time; others queue."""
    memory: Bandwidth | None = None
    """Memory bandwidth of the whole node, bytes per second, shared by what runs; None: enough for every core's."""
    core_memory: Bandwidth = 8e9
    """The most of it that one core can use."""
    bandwidth: Bandwidth = 1.25e9
    """Network interface, bytes per second, each way (10 Gbit/s)."""
    latency: Latency = 50e-6
    """Seconds from this node to any other, after the last byte has left."""
    reading: StepSeconds = 0.0
    """Seconds that a core takes to read a sample of raw data; 0: batches are always ready."""
    device: Device | None = None
    """An accelerator that computes instead of the cores."""

    def __post_init__(self):
        if self.device and self.reading:
            raise BadOption("node: reading is a core's, and with a device the cores are not modelled; leave it out")

    def seconds(self, work: Work, running: int = 1) -> float:
        """The larger of the time to compute and the time to move the bytes, with so many computations on the node."""
        if self.device:
            return self.device.seconds(work)
        share = self.core_memory if self.memory is None else min(self.core_memory, self.memory / running)
        return self.launch + max(work.flops / self.flops, work.bytes / share) + work.samples * self.reading

    @property
    def lanes(self) -> int:
        """Computations at the same time."""
        return 1 if self.device else self.cores


@dataclass(frozen=True, kw_only=True)
class Link(Checked):
    """A private connection of two nodes: what they send each other does not pass their network interfaces."""

    ends: tuple[str, str]
    """The two nodes, as "server0" and "worker0": PCIe between a host and its device, or a slow line."""
    bandwidth: Bandwidth
    """Bytes per second, each way."""
    latency: Latency = 0.0
    """Seconds after the last byte has left."""

    def __post_init__(self):
        if self.ends[0] == self.ends[1]:
            raise BadOption(f"link: ends must be two different nodes, not {self.ends}")


@dataclass(frozen=True, kw_only=True)
class Uplink(Checked):
    """What several nodes share on their way to all the others, each way: the interface of a machine whose GPUs are the nodes, or
    what joins a rack's switch to the rest. What they send each other does not pass it."""

    nodes: tuple[str, ...]
    """Those behind it, as "worker0"."""
    bandwidth: Bandwidth
    """Bytes per second, each way."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a node, or one direction of a private link, did in a run."""

    name: str
    lanes: int
    """Computations that it can do at the same time."""
    computed: float
    """Seconds of computation, over all lanes."""
    sent: float
    """Seconds that it was sending."""
    received: float
    """Seconds that it was receiving."""
    send_wait: float
    """Mean seconds that a message waited to be sent."""
    receive_wait: float
    """Mean seconds that a message waited to be received, behind others from elsewhere."""
    bytes_sent: float
    bytes_received: float


@dataclass(slots=True)
class Queue:
    """One direction of an interface."""

    bandwidth: float
    """Bytes per second."""
    free: float = 0.0
    """When the messages that are queued so far are through."""
    passed: float = 0.0
    """When the collectives that came so far are through."""
    passing: list[tuple[float, float, float]] = field(default_factory=list)
    """The start and end of each collective, and the share of the bandwidth that it takes from messages."""
    busy: float = 0.0
    """Seconds of transmission."""
    waited: float = 0.0
    """Seconds that messages stood in the queue, summed."""
    bytes: float = 0.0
    messages: int = 0

    def start_transmission(self, ready: float, size: float) -> float:
        """Queue a message that is ready at a time and return when its transmission starts; it ends when the queue is `free`."""
        start = max(ready, self.free)
        seconds = size / self.bandwidth
        self.waited += start - ready
        self.busy += seconds
        self.bytes += size
        self.messages += 1
        self.free = self._end_shared_with_collectives(start, seconds) if self.passing else start + seconds
        return start

    def _end_shared_with_collectives(self, start: float, seconds: float) -> float:
        """When a transmission ends that starts then, takes so many seconds alone, and shares with the collectives that pass."""
        self.passing = [each for each in self.passing if each[1] > start]
        for begin, end, share in self.passing:
            before = max(begin - start, 0.0)
            if seconds <= before:
                break
            seconds, start = seconds - before, start + before
            left = (end - start) * (1 - share)
            if seconds <= left:
                return start + seconds / (1 - share)
            seconds, start = seconds - left, end
        return start + seconds


@dataclass(slots=True, eq=False)
class Interface:
    """A node's connection, which sends and receives at the same time; compared by identity."""

    out: Queue
    into: Queue
    latency: float
    uplink: Interface | None = None
    """The uplink that it shares with others, on the way to nodes that do not share it."""


def node_usage(name: str, interface: Interface, computed: float = 0.0, lanes: int = 0) -> Usage:
    """What a node, or one direction of a private link, did."""
    out, into = interface.out, interface.into
    waits = (queue.waited / queue.messages if queue.messages else 0.0 for queue in (out, into))
    return Usage(name, lanes, computed, out.busy, into.busy, *waits, out.bytes, into.bytes)


def send(source: Interface, target: Interface, now: float, size: float) -> float:
    """Queue a message on both ends; when its last byte has arrived."""
    latency = max(source.latency, target.latency)
    begun, ended = source.out.start_transmission(now, size), source.out.free
    for queue in uplinks(source, target) if source.uplink or target.uplink else ():
        begun = queue.start_transmission(begun, size)
        ended = max(ended, queue.free)
    target.into.start_transmission(begun + latency, size)
    return max(target.into.free, ended + latency)


def uplinks(source: Interface, target: Interface) -> list[Queue]:
    """What a message crosses between its ends."""
    if source.uplink is target.uplink:
        return []
    return [queue for queue in (source.uplink and source.uplink.out, target.uplink and target.uplink.into) if queue]


class Network:
    """The interfaces of all nodes, the private links of some, the shared uplinks, and the failures of messages."""

    def __init__(
        self,
        links: Sequence[Link],
        uplinks: Sequence[Uplink],
        failures_between: Callable[[str, str], MessageFailures],
    ):
        """`failures_between` returns what happens to messages from one node to another."""
        self.links: dict[tuple[str, str], tuple[Interface, Interface]] = {}
        """A link is two pairs of interfaces, one pair a direction, which share nothing."""
        for link in links:
            for ends in (link.ends, link.ends[::-1]):
                self.links[ends] = (
                    idle_interface(link.bandwidth, link.latency),
                    idle_interface(link.bandwidth, link.latency),
                )
        self.uplinks = {f"uplink of {each.nodes[0]}": idle_interface(each.bandwidth, 0.0) for each in uplinks}
        behind = zip(uplinks, self.uplinks.values(), strict=True)
        self._uplink_of = {node: uplink for each, uplink in behind for node in each.nodes}
        self.interfaces: dict[str, Interface] = {}
        self._failures_between = failures_between
        self._connections: dict[tuple[str, str], MessageFailures] = {}

    def add_interface(self, node: str, bandwidth: float, latency: float) -> Interface:
        """The new interface of a node, behind its uplink."""
        interface = self.interfaces[node] = idle_interface(bandwidth, latency)
        interface.uplink = self._uplink_of.get(node)
        return interface

    def state(self) -> dict[str, Any]:
        """The books of interfaces that are idle, and how far the chances have come."""
        books = {name: [asdict(queue) for queue in queues] for name, queues in self._queues_by_link().items()}
        connections = [(*ends, connection.state()) for ends, connection in self._connections.items()]
        return {"books": books, "connections": connections}

    def restore(self, state: dict[str, Any]) -> None:
        """Be as when that was saved; what there was not then has done nothing."""
        for name, queues in self._queues_by_link().items():
            for queue, book in zip(queues, state["books"].get(name, ()), strict=False):
                for entry, value in book.items():
                    setattr(queue, entry, value)
        for source, target, kept in state["connections"]:
            self.message_failures(source, target).restore(kept)

    def message_failures(self, source: str, target: str) -> MessageFailures:
        """What happens to messages from one node to another."""
        if (source, target) not in self._connections:
            self._connections[source, target] = self._failures_between(source, target)
        return self._connections[source, target]

    def _queues_by_link(self) -> dict[str, list[Queue]]:
        nodes = {name: [each.out, each.into] for name, each in (self.interfaces | self.uplinks).items()}
        links = {
            " - ".join(ends): [end for each in pair for end in (each.out, each.into)]
            for ends, pair in self.links.items()
        }
        return nodes | links


def idle_interface(bandwidth: float, latency: float) -> Interface:
    """An interface that nothing has passed yet."""
    return Interface(Queue(bandwidth), Queue(bandwidth), latency)
