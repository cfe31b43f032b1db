"""The papers' clusters, as far as the papers describe them. Each figure's source stands next to it.

What a paper does not say is an estimate of ours and is marked so; a verdict must not depend on such a figure alone.
"""

from dataclasses import replace
from typing import TypeVar

from lib import Device, Link, Lognormal, Node, VirtualCluster

Part = TypeVar("Part", Node, Device)

GBIT = 1e9 / 8
"""Bytes per second."""

V100 = Device(
    flops=7e12,  # estimate: half of the data sheet's 14-15.7 TFLOP/s in single precision
    memory=700e9,  # estimate: of the data sheet's 900 GB/s
    pcie=12e9,  # PCIe 3.0 x16: 15.75 GB/s less protocol overhead
    capacity=32e9,  # OAC, Sec. 4.1: 32 GB
)


def scale(part: Part, by: float, *fields: str) -> Part:
    """A node or a device that is so many times faster, or larger, in some of its figures."""
    return replace(part, **{name: by * getattr(part, name) for name in fields})


def gba() -> VirtualCluster:
    """GBA's shared cluster: 100 workers and parameter servers whose machines are used by others too (Fig. 1, Sec. 5)."""
    worker = Node(
        flops=20e9,  # estimate: a few cores of a Skylake (Sec. 5.1 names the processor, not the share)
        core_memory=10e9,  # estimate
        bandwidth=10 * GBIT,  # estimate
    )
    server = Node(cores=16, flops=20e9, memory=100e9, bandwidth=25 * GBIT)  # estimates
    return VirtualCluster(
        workers=100,  # Sec. 5.1, Criteo
        servers=4,  # estimate; `notebooks.gba.tasks` has what Fig. 7 needs
        worker=worker,
        server=server,
        slowdown=Lognormal(sigma=0.6),  # estimate: gives Tab. 5.2's ratio of about two between Sync and Async
    )


def shadowsync() -> VirtualCluster:
    """ShadowSync: 20 trainers and 12 embedding servers on 20-core machines, 25 Gbit/s (Sec. 4, Experimental Setup)."""
    machine = Node(
        cores=24,  # 24 worker threads on each trainer
        flops=2e9 * 8,  # 2 GHz; eight operations a cycle is an estimate
        memory=80e9,  # estimate: Fig. 8's threads stop paying at 24, so 24 threads use all of it
        core_memory=80e9 / 24,  # by that estimate
        bandwidth=25 * GBIT,
    )
    server = replace(machine, cores=38)  # 38 threads
    return VirtualCluster(workers=20, servers=12, worker=machine, server=server)


def persia(workers: int = 8) -> VirtualCluster:
    """Persia: 8 to 64 V100 and 100 machines of 52 cores, 100 Gbit/s (Sec. 6, Cluster setup)."""
    host = Node(cores=52, flops=20e9, memory=200e9, bandwidth=100 * GBIT)  # operations and memory are estimates
    machines = {"worker": replace(host, device=V100), "server": host}
    return VirtualCluster(workers=workers, servers=8, collective="ring", **machines)


def oac(cores: int = 80) -> VirtualCluster:
    """OAC: one V100 in a machine of 80 cores (setup 1) or 20 (setup 2) (Sec. 4.1); the store in its memory, PCIe between."""
    host = Node(cores=cores, flops=20e9, memory=100e9, core_memory=10e9)  # estimates but for the cores
    pcie = Link(ends=("server0", "worker0"), bandwidth=V100.pcie, latency=10e-6)
    return VirtualCluster(worker=Node(device=V100), server=host, links=(pcie,))
