"""A run that loses what it cannot do without goes back to its last cut, or to its start, and tries again.

Time goes on meanwhile, and failures that were, are over. What was trained since the cut is undone: its gradients stand in the
ledger as lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from lib.cluster.base import World
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import Finished


async def carry_through(world: World, plan: Plan, drive: Callable[..., Awaitable[Finished]], *args) -> Finished:
    """Drive the plan until it is done; `args` are what the driver takes beside the world and the plan."""
    while True:
        try:
            return await drive(world, plan, *args)
        except Exception as error:
            node = await world.died(error)
            if node is None or not await world.back(node):
                raise
        plan = replace(plan, attempt=plan.attempt.next(await world.restart()))
