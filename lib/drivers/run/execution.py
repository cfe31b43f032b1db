"""Carrying a plan out: in as many tries as it takes, with pauses at which it is cut, and going on from a cut.

At a cut the run pauses: workers take no batch beyond the mark, every step, push and mix that has begun comes to its end, and
then nothing is under way. What is left is each part's state between two steps (parameters, optimisers, rule state, gradients
that wait for their update, positions in the data and in the schedule, the record with its ledger) and the world's (its clock,
its queues' books, who is dead until when, where each random stream stands). Saving it costs the run no time, the wait for the
slowest worker does. Each part writes itself where it stands, all side by side, and recalls itself.

Guaranteed under virtual time: a run that was stopped after a cut and goes on from it equals the run that paused there and was
never stopped, to the bit, in its parameters and in its records, whatever befalls its nodes and messages. A run without cuts
makes no pauses and is another run. With another number of servers, readers or embedding workers it goes on with the parameters,
rows, optimisers' state and books of the cut, and is another run from there.

A run that loses what it cannot do without goes back to its last cut, or to its start, and tries again. Time goes on
meanwhile, and failures that were, are over. What was trained since the cut is undone: its gradients stand in the ledger as lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace

from lib.cluster.base import Handle, World
from lib.drivers.membership.members import Members
from lib.drivers.membership.workers import Workers
from lib.drivers.run.cuts import Cut, issued
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import Access, Finished, Mark, Record, Snapshot
from lib.drivers.servers.messages import Gradient, StepInput
from lib.protocols.server_rule import Push
from lib.store.rows import Dump, Rows
from lib.store.wire.bags import Bags
from lib.store.wire.codecs import Scaled

KINDS = (Gradient, StepInput, Bags, Scaled, Push, Members, Record, Access, Mark, Snapshot, Rows, Dump)
"""The dataclasses that a cut may hold, beside the rules' states."""


async def carry_through(world: World, plan: Plan, drive: Callable[..., Awaitable[Finished]], *args) -> Finished:
    """Drive the plan until it is done; `args` are what the driver takes beside the world and the plan."""
    while True:
        try:
            return await drive(world, plan, *args)
        except Exception as error:
            node = await world.dead_node_in(error)
            if node is None or not await world.wait_until_up(node):
                raise
        plan = replace(plan, attempt=plan.attempt.next(await world.restart()))


async def carry_out(
    world: World, plan: Plan, workers: Workers, others: dict[str, Handle], silent: dict[str, Handle]
) -> Finished:
    """Start the clock, let the workers run to their end, stop it, and collect what every part but the silent wrote down."""
    cuts = plan.cuts
    marks = _marks(plan)
    parts = {**others, **silent}
    attempt = plan.attempt
    rules = (*plan.protocol.sparse.states, *plan.protocol.dense.states)
    if cuts and (cuts.resume or attempt.number) and (cut := cuts.find((*KINDS, *rules))):
        start = await _go_on(world, plan, cut, workers, parts)
        marks = [mark for mark in marks if mark > cut.run["mark"]]
    else:
        await workers.muster()
        start = attempt.begin(world)
        attempt.stand()
    for mark in marks:
        await workers.run(mark)
        if mark < plan.end:
            await _cut(world, plan, mark, start, workers, parts)
    end, usage = world.now(), world.usage()
    watch = await silent["queue"].watch() if plan.watch else None
    place = plan.mark(min(plan.samples, await _taken(plan, silent) * plan.workload.batch_size))
    records = await asyncio.gather(*(part.report(place) for part in others.values()))
    records = [*await workers.report(place), *records]
    tries = attempt.undone, attempt.number, attempt.left_out
    return Finished(start, end, records, usage, world.events(), *tries, watch)


async def _taken(plan: Plan, silent: dict[str, Handle]) -> int:
    """How many batches were trained on, as far as their queue knows where it may have ended early."""
    return (await silent["queue"].save())["next"] if plan.open else plan.batches


def _marks(plan: Plan) -> list[int]:
    """The batches before which the run pauses; the last is its end. What may end at any batch is not cut on the way."""
    if plan.cuts is None or plan.open:
        return [plan.end]
    every = plan.cuts.every
    by_rank = plan.data != "queue" and plan.protocol.dense.family != "pipeline"
    step = -(-every // plan.workers) * plan.workers if by_rank else every
    return [*range(step, plan.end, step), plan.end]


async def _cut(world: World, plan: Plan, mark: int, start: float, workers: Workers, parts: dict[str, Handle]) -> None:
    await workers.rest()
    cuts, attempt = plan.cuts, plan.attempt
    with world.paused_clock():
        ledgers = await workers.keep(lambda name: cuts.place(mark, name))
        kept = (part.keep(cuts.place(mark, name)) for name, part in parts.items())
        ledgers |= dict(zip(parts, await asyncio.gather(*kept), strict=True))
    written = {name: ledger for name, ledger in ledgers.items() if ledger is not None}
    so_far = issued(attempt.lost) + sum(ledger.get("issued", 0) for ledger in written.values())
    run = {"mark": mark, "start": start, "issued": so_far, "world": world.state(), **attempt.save()}
    cuts.commit(run, written, workers.whole | parts.keys())
    attempt.own = True


async def _go_on(world: World, plan: Plan, cut: Cut, workers: Workers, parts: dict[str, Handle]) -> float:
    """Put every part where it was; when the training clock had started."""
    attempt, run = plan.attempt, cut.run
    if fresh := not attempt.own:
        await world.restore(run["world"])
        attempt.load(run)
        attempt.own = True
    cut = replace(cut, travels=not fresh)
    with world.paused_clock() if fresh else nullcontext():
        await asyncio.gather(*(cut.give(name, part) for name, part in parts.items()))
        await workers.muster(cut)
    attempt.lost.extend(run["lost"])
    attempt.left_out |= run["left_out"]
    attempt.stand(run["issued"])
    return attempt.begin(world)
