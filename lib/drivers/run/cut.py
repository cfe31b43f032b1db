"""Consistent cuts of a running training, and going on from one.

At a cut the run pauses: workers take no batch beyond the mark, every step, push and mix that has begun comes to its end, and
then nothing is under way. What is left is each part's state between two steps (parameters, optimisers, rule state, gradients
that wait for their update, positions in the data and in the schedule, the record with its ledger) and the world's (its clock,
its queues' books, who is dead until when, where each random stream stands). Saving it costs the run no time, the wait for the
slowest worker does.

Guaranteed under virtual time: a run that was stopped after a cut and goes on from it equals the run that paused there and was
never stopped, to the bit, in its parameters and in its records, whatever befalls its nodes and messages. A run without cuts
makes no pauses and is another run.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

from lib.cluster.base import Handle, World
from lib.drivers.membership.members import Members
from lib.drivers.membership.workers import Workers
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import Access, Finished, Mark, Record, Snapshot
from lib.drivers.servers.shard import Gradient, Read
from lib.errors import BadOption
from lib.protocols.server_rule import Push
from lib.store import checkpoint
from lib.store.rows import Dump, Rows
from lib.store.wire.bags import Bags
from lib.store.wire.codecs import Scaled

KINDS = (Gradient, Read, Bags, Scaled, Push, Members, Record, Access, Mark, Snapshot, Rows, Dump)
"""The dataclasses that a cut may hold, beside the rules' states."""


async def carry_out(
    world: World, plan: Plan, workers: Workers, others: dict[str, Handle], silent: dict[str, Handle]
) -> Finished:
    """Start the clock, let the workers run to their end, stop it, and collect what every part but the silent wrote down."""
    cuts = plan.cuts
    marks = _marks(plan)
    parts = {**others, **silent}
    attempt = plan.attempt
    if cuts and (cuts.resume or attempt.number) and cuts.newest.exists():
        start, done = await _go_on(world, plan, workers, parts)
        marks = [mark for mark in marks if mark > done]
    else:
        await workers.muster()
        start = attempt.begin(world)
        attempt.stand([])
    for mark in marks:
        await workers.run(mark)
        if mark < plan.end:
            await _cut(world, plan, mark, start, workers, parts)
    end, usage = world.now(), world.usage()
    watch = await silent["queue"].watch() if plan.watch else None
    place = plan.mark(min(plan.samples, await _taken(plan, silent) * plan.workload.batch_size))
    records = await asyncio.gather(*(part.report(place) for part in others.values()))
    return Finished(
        start,
        end,
        [*await workers.report(place), *records],
        usage,
        world.events(),
        attempt.undone,
        attempt.number,
        attempt.left_out,
        watch,
    )


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
    with world.still():
        states = await workers.save()
        states |= dict(zip(parts, await asyncio.gather(*(part.save() for part in parts.values())), strict=True))
    run = {"mark": mark, "start": start, "world": world.cut(), **plan.attempt.save()}
    checkpoint.save(plan.cuts.newest, {"run": run, **states})
    plan.attempt.own = True


async def _go_on(world: World, plan: Plan, workers: Workers, parts: dict[str, Handle]) -> tuple[float, int]:
    """Put every part where it was; when the training clock had started, and the mark that was reached."""
    rules = (*plan.protocol.sparse.states, *plan.protocol.dense.states)
    states: dict[str, Any] = checkpoint.load(plan.cuts.newest, (*KINDS, *rules))
    run = states.pop("run")
    reached = workers.whole | parts.keys()
    if not states.keys() <= reached or not parts.keys() <= states.keys():
        raise BadOption(
            f"the checkpoint {plan.cuts.newest} holds the parts {', '.join(sorted(states))}; "
            f"this run has {', '.join(sorted(reached))}"
        )
    attempt = plan.attempt
    records = [state["record"] for state in states.values() if "record" in state] + run["lost"]
    fresh = not attempt.own
    if fresh:
        await world.go_on(run["world"])
        attempt.load(run)
        attempt.own = True
    with world.still() if fresh else nullcontext():
        await _load(workers, parts, states)
    attempt.lost.extend(run["lost"])
    attempt.left_out |= run["left_out"]
    attempt.stand(records)
    return attempt.begin(world), run["mark"]


async def _load(workers: Workers, parts: dict[str, Handle], states: dict[str, Any]) -> None:
    await asyncio.gather(*(part.load(states[name]) for name, part in parts.items()))
    await workers.muster({name: states[name] for name in states.keys() - parts.keys()})
