"""What a modelled cluster is made of: nodes, links, and what a computation costs. Every figure is an option."""

from dataclasses import dataclass
from typing import Annotated

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
