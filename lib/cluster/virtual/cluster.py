"""A modelled cluster in virtual time: real gradients, modelled seconds, the same bits every time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import yaml

from lib.cluster.base import Cluster, Handle, Main, World, in_thread, nbytes
from lib.cluster.faults.failures import ROLES, Connection
from lib.cluster.faults.nodes import FailingNodes
from lib.cluster.spec import Link, Node, Usage
from lib.cluster.virtual.collectives import ALGORITHMS
from lib.cluster.virtual.loop import VirtualLoop
from lib.cluster.virtual.network import Interface, Queue, usage
from lib.cluster.virtual.site import VirtualSite
from lib.errors import BadOption, NodeLost, unknown
from lib.options.checked import to_plain
from lib.options.document import load


@dataclass(frozen=True, kw_only=True)
class VirtualCluster(Cluster):
    """Up to thousands of modelled workers on one thread of this machine."""

    name: ClassVar = "virtual"
    clock: ClassVar = "virtual"

    worker: Node = field(default=Node())
    """What each worker runs on."""
    server: Node = field(default=Node(cores=8, bandwidth=3.125e9))
    """What each server runs on, and every node that is neither."""
    nodes: Mapping[str, Node] = field(default_factory=dict)
    """Nodes that differ, by name: "worker3", "server0", "sync0", "reader0", "embedding0",
    "master"."""
    links: tuple[Link, ...] = ()
    """Private connections, beside everybody's network interface."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Roles that share another's node: {"sync0": "server0"}. A worker has a node of its own, which others may share."""
    collective: str = "ring"
    """How groups average: ring or tree, in chunks; whole-ring or whole-tree, hop by hop as DS-Sync counts."""

    def __post_init__(self):
        super().__post_init__()
        if self.collective not in ALGORITHMS:
            raise unknown("collective", self.collective, ALGORITHMS)
        for where, names in (
            ("nodes", self.nodes),
            ("places", [*self.places, *self.places.values()]),
            ("links.ends", [end for link in self.links for end in link.ends]),
        ):
            for name in names:
                self._check_name(where, name)
        for name in self.places:
            if name.startswith("worker"):
                raise BadOption(
                    f"virtual cluster: places: {name} is a worker, whose node is its rank in every group, so it stands nowhere "
                    f"else; what is no worker may stand with it, as in {{'server0': {name!r}}}"
                )
        for failure in self.failures:
            if failure.node in self.places:
                raise BadOption(
                    f"virtual cluster: failures: {failure.node} stands on {self.places[failure.node]}: let that fail"
                )

    @classmethod
    def load(cls, path: str | Path) -> VirtualCluster:
        """A specification from YAML; an error names the file, the place in it and the field's path."""
        return load(path).read(cls)

    @classmethod
    def read(cls, data: Any) -> VirtualCluster:
        if isinstance(data, Mapping):  # `calibrate` writes beside the nodes what they were made of
            data = {name: value for name, value in data.items() if name not in ("measured", "provenance")}
        return super().read({} if data is None else data)

    def dump(self) -> str:
        """The specification as YAML, without what is as by default."""
        return yaml.safe_dump(to_plain(self), sort_keys=False)

    def node(self, name: str) -> Node:
        role = name.rstrip("0123456789")
        return self.nodes.get(name, self.worker if role == "worker" else self.server)

    def open(self, seed: int, workers: int) -> VirtualWorld:
        return VirtualWorld(self, seed, workers)

    def _check_name(self, where: str, name: str) -> None:
        role = name.rstrip("0123456789")
        number = name[len(role) :]
        counts = {**dict.fromkeys((*ROLES, "master")), "worker": self.workers or 4, "server": self.servers}
        if role not in counts or (number == "") != (role == "master"):
            raise BadOption(
                f"virtual cluster: {where}: no node {name!r}; nodes are worker0 ..., server0 ..., sync0, reader0, "
                "embedding0, master"
            )
        if counts[role] is not None and int(number) >= counts[role]:
            raise BadOption(f"virtual cluster: {where}: no node {name!r}; the last {role} is {role}{counts[role] - 1}")


class VirtualWorld(FailingNodes, World):
    """The clock, the network and the nodes of one virtual run."""

    def __init__(self, cluster: VirtualCluster, seed: int, workers: int):
        super().__init__(cluster, seed)
        self.cluster = cluster
        self.seed = seed
        self.loop = VirtualLoop()
        self.objects: dict[str, Any] = {}
        self.links = {ends: pair for link in cluster.links for ends, pair in _both_ways(link)}
        self.report: Callable[[int], None] = lambda samples: None
        self.stands_still = False
        self._connections: dict[tuple[str, str], Connection] = {}

    def site(self, node: str) -> VirtualSite:
        node = self.cluster.places.get(node, node)
        if node not in self._sites:
            self._sites[node] = VirtualSite(self, node)
        return self._sites[node]

    async def host(self, part: type, *args, node: str) -> VirtualHandle:
        site = self.site(node)
        if self.failure_schedule.dead(site.node):
            raise NodeLost(site.node)
        made = part(site, *args)
        if not self.cluster.fails:
            return VirtualHandle(self.site("master"), site, made)
        site.incarnation.parts.append(made)
        return FailingHandle(self.site("master"), site, made)

    def begin(self) -> None:
        self.failure_schedule.begin(list(self._sites))

    def connection(self, source: str, target: str) -> Connection:
        """What befalls the messages from one node to another."""
        if (source, target) not in self._connections:
            cluster = self.cluster
            self._connections[source, target] = Connection(cluster.failures, cluster.mishaps, self.seed, source, target)
        return self._connections[source, target]

    def now(self) -> float:
        return self.loop.time()

    @contextmanager
    def still(self) -> Iterator[None]:
        self.stands_still = True
        try:
            yield
        finally:
            self.stands_still = False

    def cut(self) -> dict[str, Any]:
        """Interfaces are idle and the lanes free, so beside what fails their books, the clock and the courses are all.

        A course is what its calls made it, so the calls are kept and made again.
        """
        sites = {name: {"computed": site.computed, "calls": np.array(site.calls)} for name, site in self._sites.items()}
        books = {name: [_book(queue) for queue in queues] for name, queues in self._queues().items()}
        connections = [(*ends, connection.save()) for ends, connection in self._connections.items()]
        return {**super().cut(), "sites": sites, "books": books, "connections": connections}

    async def go_on(self, state: dict[str, Any]) -> None:
        for name, kept in state["sites"].items():
            site = self.site(name)
            site.computed = kept["computed"]
            site.repeat(kept["calls"])
        for name, queues in self._queues().items():
            for queue, book in zip(queues, state["books"][name], strict=True):
                for field_, value in book.items():
                    setattr(queue, field_, value)
        for source, target, kept in state["connections"]:
            self.connection(source, target).load(kept)
        self.failure_schedule.pause()
        self.loop.set_time(state["now"])
        await super().go_on(state)

    def _queues(self) -> dict[str, list[Queue]]:
        nodes = {name: [site.interface.out, site.interface.into] for name, site in self._sites.items()}
        links = {
            " - ".join(ends): [end for each in pair for end in (each.out, each.into)]
            for ends, pair in self.links.items()
        }
        return nodes | links

    def events(self) -> int:
        return self.loop.events

    def usage(self) -> list[Usage]:
        nodes = [usage(site.node, site.interface, site.computed, site.spec.lanes) for site in self._sites.values()]
        links = [usage(" - ".join(ends), pair[0]) for ends, pair in self.links.items()]
        return [*nodes, *links]

    def run(self, main: Main, progress: Callable[[int], None] | None = None) -> Any:
        self.report = progress or self.report
        return in_thread(lambda: self._run(main), self.loop.interrupt)

    def _run(self, main: Main) -> Any:
        # One thread of torch: reductions split over threads would make the bits depend on their number.
        torch.set_num_threads(1)
        return self.loop.run_until_complete(main(self))


class VirtualHandle(Handle):
    """Arguments travel to the part's node and the result travels back, at the cost of their bytes."""

    def __init__(self, here: VirtualSite, there: VirtualSite, part: Any):
        self._here, self._there, self._part = here, there, part

    def seen_from(self, site: VirtualSite) -> VirtualHandle:
        return VirtualHandle(site, self._there, self._part)

    def _call(self, method: str, args: tuple):
        function = getattr(self._part, method)
        if self._here is self._there:
            return function(*args)
        if self._here.world.stands_still:
            return self._run(function, args)
        return self._carry(self._here.book(self._there, nbytes(args)), function, args)

    async def _carry(self, arrival: float, function: Callable, args: tuple) -> Any:
        await self._here.until(arrival)
        result = await self._run(function, args)
        await self._here.until(self._there.book(self._here, nbytes(result)))
        return result

    def _run(self, function: Callable, args: tuple) -> Awaitable[Any]:
        return function(*args)


class FailingHandle(VirtualHandle):
    """A part on a node that may die, or that is called from one."""

    def __init__(self, here: VirtualSite, there: VirtualSite, part: Any):
        super().__init__(here, there, part)
        self._incarnation = there.incarnation

    def seen_from(self, site: VirtualSite) -> FailingHandle:
        seen = FailingHandle(site, self._there, self._part)
        seen._incarnation = self._incarnation
        return seen

    def _run(self, function: Callable, args: tuple) -> Awaitable[Any]:
        return self._incarnation.call(function(*args))


def _book(queue: Queue) -> dict[str, float]:
    return {each.name: getattr(queue, each.name) for each in fields(queue) if each.name != "bandwidth"}


def _both_ways(link: Link):
    """A link as two pairs of interfaces, one pair a direction, which share nothing."""
    for ends in (link.ends, link.ends[::-1]):
        one, other = (Interface(Queue(link.bandwidth), Queue(link.bandwidth), link.latency) for _ in ends)
        yield ends, (one, other)
