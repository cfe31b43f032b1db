"""Executes a plan: in as many attempts as that takes, with pauses for checkpoints, from the start or from a checkpoint.

At a checkpoint the run pauses: workers take no batch beyond it, and every step, push and mix that has begun comes to its end.
Then nothing is under way, and what is left is each part's state between two steps and the world's: its clock, its queues' books,
which nodes are dead until when, and the state of each random stream. Saving takes no time of the run; waiting for the slowest
worker does. All parts write their own states at once, on their nodes.

Guaranteed in virtual time: a run that is stopped after a checkpoint and goes on from it equals, to the bit, the run that paused
there and was never stopped, whatever befalls its nodes and messages. A run without checkpoints makes no pauses and is
another run.

A run that loses what it cannot do without goes back to its last checkpoint, or to its start. Time goes on meanwhile, and past
failures stay past. The gradients since the checkpoint stand in the ledger as lost.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace

from lib.cluster.base import Handle, World
from lib.drivers.checkpoints import Checkpoint, count_issued
from lib.drivers.plan import Plan
from lib.drivers.record import Finished
from lib.drivers.workers import Workers


async def run_with_restarts(world: World, plan: Plan, drive: Callable[..., Awaitable[Finished]], *args) -> Finished:
    """Drive the plan in as many attempts as it takes; `args` are the driver's further arguments."""
    while True:
        try:
            return await drive(world, plan, *args)
        except Exception as error:
            node = await world.dead_node_in(error)
            if node is None or not await world.wait_until_up(node):
                raise
        plan = replace(plan, attempt=plan.attempt.next_attempt(await world.restart_all_nodes()))


async def run_attempt(
    world: World, plan: Plan, workers: Workers, others: dict[str, Handle], logless: dict[str, Handle]
) -> Finished:
    """Make one attempt: train to the end and collect the logs of all parts but the logless, which have none."""
    parts, attempt, pauses = {**others, **logless}, plan.attempt, _pause_batches(plan)
    folder, states = plan.checkpoints, (*plan.protocol.sparse.states, *plan.protocol.dense.states)
    if folder and (folder.resume or attempt.number) and (found := folder.find(states)):
        await _resume(world, plan, found, workers, parts)
        pauses = [batch for batch in pauses if batch > found.run["batch"]]
    else:
        await workers.start()
        attempt.resume_from()
    start = attempt.start_clock(world)
    for batch in pauses:
        await workers.run(batch)
        if batch < plan.end_batch:
            await _checkpoint(world, plan, batch, start, workers, parts)
    end, usage = world.now(), world.usage()
    watch = await logless["queue"].next_stage_state() if plan.watch else None
    # A queue knows how many batches were trained on, where the run may end early.
    taken = (await logless["queue"].save())["next"] if plan.may_end_early else plan.batches
    point = plan.eval_point(min(plan.samples, taken * plan.workload.batch_size))
    logs = await asyncio.gather(*(part.report(point) for part in others.values()))
    logs = [*await workers.report(point), *logs]
    returns = attempt.undone, attempt.number, attempt.left_out
    return Finished(start, end, logs, usage, world.events(), *returns, watch, world.collective_backend)


def _pause_batches(plan: Plan) -> list[int]:
    """The batches before which the run pauses; the last is its end. A run that may end at any batch has no other pause."""
    if plan.checkpoints is None or plan.may_end_early:
        return [plan.end_batch]
    every = plan.checkpoints.every
    by_rank = plan.effective_feed != "queue" and plan.protocol.dense.family != "pipeline"
    step = -(-every // plan.workers) * plan.workers if by_rank else every
    return [*range(step, plan.end_batch, step), plan.end_batch]


async def _checkpoint(
    world: World, plan: Plan, batch: int, start: float, workers: Workers, parts: dict[str, Handle]
) -> None:
    await workers.drain()
    folder, attempt = plan.checkpoints, plan.attempt
    with world.paused_clock():
        ledgers = await workers.write_checkpoint(lambda name: folder.part_path(batch, name))
        writing = (part.write_checkpoint(folder.part_path(batch, name)) for name, part in parts.items())
        ledgers |= dict(zip(parts, await asyncio.gather(*writing), strict=True))
    written = {name: ledger for name, ledger in ledgers.items() if ledger is not None}
    so_far = count_issued(attempt.lost) + sum(ledger.get("issued", 0) for ledger in written.values())
    folder.commit({"batch": batch, "start": start, "issued": so_far, "world": world.state(), **attempt.save()}, written)
    attempt.current = True


async def _resume(world: World, plan: Plan, found: Checkpoint, workers: Workers, parts: dict[str, Handle]) -> None:
    """Give every part its state of the checkpoint."""
    attempt, run = plan.attempt, found.run
    if fresh := not attempt.current:
        await world.restore(run["world"])
        attempt.load_counters(run)
    found = replace(found, travels=not fresh)
    with world.paused_clock() if fresh else nullcontext():
        await asyncio.gather(*(found.restore(name, part) for name, part in parts.items()))
        await workers.start(found)
    attempt.lost.extend(run["lost"])
    attempt.left_out |= run["left_out"]
    attempt.resume_from(run["issued"])
