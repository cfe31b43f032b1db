"""A modelled cluster in virtual time: real gradients, modelled seconds, the same bits every time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import yaml

from lib.cluster.base import Cluster, Main, in_thread, nbytes
from lib.cluster.faults.failures import Connection
from lib.cluster.faults.nodes import NodeContext
from lib.cluster.one_process import ProcessHandle, ProcessWorld
from lib.cluster.spec import Link, Node, Uplink, Usage
from lib.cluster.virtual.collectives import ALGORITHMS
from lib.cluster.virtual.loop import VirtualLoop
from lib.cluster.virtual.network import Network, usage
from lib.cluster.virtual.site import VirtualSite
from lib.errors import BadOption, unknown
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
    uplinks: tuple[Uplink, ...] = ()
    """What several nodes share on their way to the others: of a machine of several GPUs, or of a rack."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Roles that share another's node: {"sync0": "server0"}. A worker has a node of its own, which others may share."""
    collective: str = "ring"
    """How groups average: ring or tree, in chunks; whole-ring or whole-tree, hop by hop as DS-Sync counts; hierarchical, in
    chunks, those behind one uplink first, then between uplinks."""

    def __post_init__(self):
        super().__post_init__()
        if self.collective not in ALGORITHMS:
            raise unknown("collective", self.collective, ALGORITHMS)
        for where, names in (
            ("nodes", self.nodes),
            ("places", [*self.places, *self.places.values()]),
            ("links.ends", [end for link in self.links for end in link.ends]),
            ("uplinks.nodes", behind := [node for uplink in self.uplinks for node in uplink.nodes]),
        ):
            for name in names:
                self._check_node(where, name)
        if twice := [node for node in behind if behind.count(node) > 1]:
            raise BadOption(f"virtual cluster: uplinks: {twice[0]} is behind one uplink, and not behind two")
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


class VirtualHandle(ProcessHandle):
    """Arguments travel to the part's node and the result travels back, at the cost of their bytes."""

    def _ask(self, method: str, args: tuple):
        function, context = getattr(self._stand.part, method), self._stand.context
        if self._here is self._there:
            return function(*args)
        if self._here.world.clock_paused:
            return self._run(context, function, args)
        return self._carry(self._here.book(self._there, nbytes(args)), context, function, args)

    async def _carry(self, arrival: float, context: NodeContext, function: Callable, args: tuple) -> Any:
        await self._here.until(arrival)
        result = await self._run(context, function, args)
        await self._here.until(self._there.book(self._here, nbytes(result)))
        return result

    def _run(self, context: NodeContext, function: Callable, args: tuple) -> Awaitable[Any]:
        call = function(*args)
        return context.call(call) if self._there.fails else call


class VirtualWorld(ProcessWorld):
    """The clock, the network and the nodes of one virtual run."""

    handle = VirtualHandle

    def __init__(self, cluster: VirtualCluster, seed: int, workers: int):
        super().__init__(cluster, seed)
        self.loop = VirtualLoop()
        befalls = partial(Connection, cluster.failures, cluster.mishaps, seed) if cluster.fails else None
        self.network = Network(cluster.links, cluster.uplinks, befalls)
        self.clock_paused = False
        self._objects: dict[str, Any] = {}

    def site(self, node: str) -> VirtualSite:
        node = self.cluster.places.get(node, node)
        if node not in self._sites:
            average = ALGORITHMS[self.cluster.collective]
            spec = self.cluster.node(node)
            self._sites[node] = VirtualSite(self, node, spec, self.loop, self.network, average, self._objects)
        return self._sites[node]

    def now(self) -> float:
        return self.loop.time()

    @contextmanager
    def paused_clock(self) -> Iterator[None]:
        self.clock_paused = True
        try:
            yield
        finally:
            self.clock_paused = False

    def state(self) -> dict[str, Any]:
        """Interfaces are idle and the lanes free, so beside what fails their books, the clock and the slowdowns are all.

        A slowdown is what its calls made it, so the calls are kept and made again.
        """
        sites = {name: {"computed": site.computed, "calls": np.array(site.calls)} for name, site in self._sites.items()}
        return {**super().state(), "sites": sites, "network": self.network.save()}

    async def restore(self, state: dict[str, Any]) -> None:
        for name, kept in state["sites"].items():
            site = self.site(name)
            site.computed = kept["computed"]
            site.repeat(kept["calls"])
        self.network.load(state["network"])
        self.failure_schedule.pause()
        self.loop.set_time(state["now"])
        await super().restore(state)

    def events(self) -> int:
        return self.loop.events

    def usage(self) -> list[Usage]:
        nodes = [usage(site.node, site.interface, site.computed, site.spec.lanes) for site in self._sites.values()]
        links = [usage(" - ".join(ends), pair[0]) for ends, pair in self.network.links.items()]
        uplinks = [usage(name, each) for name, each in self.network.uplinks.items()]
        return [*nodes, *links, *uplinks]

    def run(self, main: Main, progress: Callable[[int], None] | None = None) -> Any:
        self.report = progress or self.report
        return in_thread(lambda: self._run(main), self.loop.interrupt)

    def _run(self, main: Main) -> Any:
        # One thread of torch: reductions split over threads would make the bits depend on their number.
        torch.set_num_threads(1)
        return self.loop.run_until_complete(main(self))
