"""The parameter servers of one rule, one on each server node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from lib.cluster.base import Handle, World
from lib.drivers.run.model_state import ModelState
from lib.drivers.run.plan import Plan
from lib.drivers.servers.parameter_server import ParameterServer
from lib.drivers.servers.returning_server import ReturningServer, returns
from lib.drivers.servers.rule_checks import check_cache
from lib.protocols.server_rule import ServerRule


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of one rule."""

    handles: tuple[Handle, ...]
    holds: frozenset[str]

    def named(self) -> dict[str, Handle]:
        """The servers by names that are unique in the run."""
        return {f"{'+'.join(sorted(self.holds))}-server{shard}": handle for shard, handle in enumerate(self.handles)}


async def open_servers(
    world: World, plan: Plan, rule: ServerRule, holds: Iterable[str], model: ModelState | None = None
) -> Servers:
    """Host one server on each server node, holding "dense", "rows" or both."""
    check_cache(rule, plan)
    holds = frozenset(holds)
    nodes = range(plan.servers)
    back = returns(plan, rule, holds)
    kind = ReturningServer if back else ParameterServer
    hosted = (world.host(kind, plan, rule, number, holds, node=f"server{number}", returns=back) for number in nodes)
    servers = Servers(tuple(await asyncio.gather(*hosted)), holds)
    if model:
        shares = (model.shard(number, plan.placement, holds) for number in nodes)
        await asyncio.gather(*(each.inherit(*share) for each, share in zip(servers.handles, shares, strict=True)))
    return servers
