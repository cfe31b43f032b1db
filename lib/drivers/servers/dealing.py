"""Servers that go on from a cut of another number of them: each takes its share of what all of those held, as placement says.

Dealt anew are dense slices and rows, with their optimisers' state, stamps and what a correction remembers, and gradients that
wait for their update. All go on with one state of the rule, at the step of the server that had come furthest. The first one
takes what had been kept for evaluations. Books go on: a server that is new has the first one's, and one that is no more leaves
its record.

What cannot be dealt, since some part of the parameters would be without it or have it twice, is an error: buffers that hold
gradients of unlike batches, gradients that wait to be corrected by what their workers read, optimisers that have made unlike
numbers of steps, and what else a rule remembers that is not the same on all. Which row goes for want of room begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from lib.drivers.run.plan import Plan
from lib.drivers.run.record import Record, Snapshot
from lib.drivers.servers.shard import Gradient, Read
from lib.errors import BadOption
from lib.protocols.server_rule import ServerRule, ServerState
from lib.store.placement import Partition, Uniform, place_dense, place_rows
from lib.store.rows import Rows
from lib.store.table.records import content

State = dict[str, Any]
"""What a server has saved."""


def share(plan: Plan, rule: ServerRule, number: int, node: str, states: Sequence[State]) -> tuple[State, list[Record]]:
    """What the server of that number begins with, where these are the states of those before it, in their order; and with the
    first one, the records of those that are no more."""
    first, tables = states[0], plan.workload.tables()
    buffers = [{_batch(gradient): gradient for gradient in state["waiting"]} for state in states]
    _check(rule, plan.servers, states, buffers)
    columns = {name: plan.workload.row_optimizer.columns(spec.dim) for name, spec in tables.items()}

    def dense(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        return place_dense(parts, plan.servers)[number]

    def rows(name: str, dumps: Iterable[Any], columns: int) -> Rows:
        parts = (place_rows([content(each, tables[name].dim, columns)], name, plan.placement)[number] for each in dumps)
        return place_rows(list(parts), name, Uniform(shards=1))[0]

    state = {
        **{count: max(each[count] for each in states) for count in ("samples", "dropped", "decided")},
        "rule": _rule([each["rule"] for each in states]),
        "members": first["members"],
        "waiting": [_gradient(plan, number, [buffer[batch] for buffer in buffers]) for batch in buffers[0]],
        "dense": first["dense"] and dense([each["dense"] for each in states]),
        "tables": {
            name: rows(name, [each["tables"][name] for each in states], columns[name]) for name in first["tables"]
        },
        "memory": None,
    }
    if first["memory"]:
        memories = [each["memory"] for each in states]
        state["memory"] = {
            "dense": dense([{"values": each["dense"]} for each in memories])["values"],
            "rows": {name: rows(name, [each["rows"][name] for each in memories], 0) for name in first["tables"]},
        }
    books = [each["record"] for each in states]
    state["record"] = _record(number, node, books)
    return state, [] if number else [_left(book) for book in books[plan.servers :]]


def _check(rule: ServerRule, servers: int, states: Sequence[State], buffers: Sequence[dict]) -> None:
    """An error for what cannot be dealt."""
    alike = {field.name for field in fields(states[0]["rule"])} - {"clocks", "step", "issued", "held", "holders"}
    seen = {
        "hold gradients of unlike batches": [sorted(buffer) for buffer in buffers],
        "have optimisers that made unlike numbers of steps": [
            {name: array.tolist() if array.ndim == 0 else 0 for name, array in (state["dense"] or {}).items()}
            for state in states
        ],
        **{f"know of unlike {name}": [getattr(state["rule"], name) for state in states] for name in sorted(alike)},
    }
    seen["have heard unlike things of workers"] = [state["members"].standing for state in states]
    unlike = [
        f"{what}, such as {each[0]!r:.80} and {other!r:.80}"
        for what, each in seen.items()
        for other in each
        if other != each[0]
    ]
    if rule.corrected and buffers[0]:
        unlike.append("hold gradients that are to be corrected by what their workers read")
    if unlike:
        raise BadOption(
            f"{rule.name}: a cut of {len(states)} servers cannot be dealt out to {servers}: they {unlike[0]}; resume with "
            f"servers={len(states)}"
        )


def _batch(gradient: Gradient) -> tuple:
    push = gradient.push
    return push.batch, push.worker, push.token, gradient.void


def _rule(states: Sequence[ServerState]) -> ServerState:
    """Tokens are those of the first server."""
    clocks = tuple(max(of_one) for of_one in zip(*(state.clocks for state in states), strict=True))
    return replace(states[0], clocks=clocks, step=max(state.step for state in states))


def _gradient(plan: Plan, number: int, parts: Sequence[Gradient]) -> Gradient:
    """One server's share of a gradient that waits for its update."""
    first, store, dense, rows = parts[0], plan.store, None, {}
    if first.dense is not None:
        whole = np.concatenate([part.dense for part in parts])
        dense = whole[Partition(whole.size, plan.placement).slice(number)]
    for name in first.rows:
        blocks = [part.block(name, store.gradients) for part in parts]
        ids, grads = (np.concatenate(each) for each in zip(*blocks, strict=True))
        mine = plan.placement.split(name, ids)[number]
        rows[name] = ids[mine], store.gradients.encode(grads[mine])
    return replace(first, dense=dense, rows=rows, read=Read(first.read.version))


def _record(number: int, node: str, before: Sequence[Record]) -> Record:
    """Each goes on with its own; a server that is new has the first one's books."""
    first, shots = before[0], [{shot.mark: shot for shot in record.snapshots} for record in before]
    new = Record(node, None if first.spans is None else [], ledger=first.ledger, used=first.used)
    record = before[number] if number < len(before) else new
    marks = [mark for mark in shots[0] if all(mark in each for each in shots)]
    record.snapshots = [_snapshot(number, [each[mark] for each in shots]) for mark in marks]
    return record


def _left(record: Record) -> Record:
    """Of a server that is no more: what it did, without books, which the others go on with."""
    return Record(record.node, record.spans, norms=record.norms, bytes=record.bytes, extra=record.extra)


def _snapshot(number: int, parts: Sequence[Snapshot]) -> Snapshot:
    """The first server has it whole."""
    first, rows = parts[0], [part.rows for part in parts if part.rows]
    dense = {shard: values for part in parts for shard, values in part.dense.items()}
    joined = first.rows
    if len(rows) > 1:
        joined = {
            name: tuple(map(np.concatenate, zip(*(each[name] for each in rows), strict=True))) for name in first.rows
        }
    return replace(first, dense={} if number else dense, rows={} if number else joined)
