"""Reference traces: what each protocol does in twenty steps of three unequal workers on a quadratic with two parameters.

`lockstep traces` trains anew and compares with the files in `notebooks/conformance/traces`; `--write` stores them. The
folder's README says what a file holds, and how to read it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lib import VirtualCluster, paths, protocols
from lib.cluster.base import Site
from lib.cluster.spec import Node
from lib.drivers.plan import Plan
from lib.errors import BadOption
from lib.options.checked import to_plain
from lib.protocols.rule import Rule
from lib.store.dense import DenseStore
from lib.store.optim import SGD, Optimizer
from lib.tasks.flat_model import Batch
from lib.tasks.quadratic import QuadraticBowl
from lib.tasks.workload import draw_batch
from lib.training.schedule import DRIVERS

WORKERS, STEPS, SPEEDS = 3, 20, (1.0, 0.7, 0.45)
PROBLEM = QuadraticBowl(
    dim=2, condition=4.0, noise=0.5, batch_size=1, samples=WORKERS * STEPS, dense_optimizer=SGD(lr=0.1)
)
CLUSTER = {"worker": Node(flops=1e4), "speeds": SPEEDS}
"""Computing takes much longer than a message."""
NEAR = 1e-5
"""Values may differ by this share of their size: processors add in orders of their own."""


def folder() -> Path:
    return paths.notebooks() / "conformance" / "traces"


def read(name: str) -> dict[str, Any]:
    """The stored trace of a protocol."""
    path = folder() / f"{name}.json"
    if not path.exists():
        raise BadOption(f"there is no reference trace of {name!r}; `lockstep traces --write {name}` makes it")
    return json.loads(path.read_text(encoding="utf-8"))


def write(name: str, trace: dict[str, Any]) -> None:
    """Store a trace, an event a line."""
    head = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in trace.items() if key != "events")
    events = ",\n".join(f"  {json.dumps(event)}" for event in trace["events"])
    folder().mkdir(exist_ok=True)
    folder().joinpath(f"{name}.json").write_text(f'{{\n{head} "events": [\n{events}\n ]\n}}\n', encoding="utf-8")


def record(name: str) -> dict[str, Any]:
    """Train by a protocol with its default options, and return what a file holds."""
    events: list[dict[str, Any]] = []
    rule = _logging(protocols.get(name), events)
    workers = 1 if rule.family == "pipeline" else WORKERS
    plan = _Logging(
        workload=PROBLEM, protocol=rule, workers=workers, servers=1, seed=0, on_nan="stop", trace=False, events=events
    )
    options = CLUSTER if workers > 1 else {"worker": CLUSTER["worker"]}
    cluster = VirtualCluster(workers=workers, **options)
    cluster.open(0, workers).run(lambda world: DRIVERS[rule.family](world, plan))
    return {
        "protocol": {"name": name, **{each.name: to_plain(getattr(rule, each.name)) for each in fields(rule)}},
        "workers": workers,
        "speeds": list(SPEEDS[:workers]),
        "problem": problem(),
        "events": events,
    }


def problem() -> dict[str, Any]:
    """The gradient of batch b at w is matrix (w - optimum) + noise[b]; training begins at `start`."""
    model = PROBLEM.model(0)
    batches = (draw_batch(PROBLEM, 0, first, 1, first) for first in range(PROBLEM.samples))
    return {
        "matrix": [_numbers(row) for row in model.matrix],
        "optimum": _numbers(model.optimum),
        "start": _numbers(model.weights.detach()),
        "rate": PROBLEM.dense_optimizer.lr,
        "noise": [_numbers(batch.features["noise"].mean(0)) for batch in batches],
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs between two traces, the first five places."""
    return list(_differ("", before, now))[:5]


@dataclass(frozen=True, kw_only=True)
class _Logging(Plan):
    """A plan whose dense parameters log what becomes of them."""

    events: list[dict[str, Any]]
    nodes: list[str] = field(default_factory=list)
    """The node of the part that asked last for the start, with which it makes its store."""

    def initial_parameters(self, site: Site) -> np.ndarray:
        self.nodes.append(site.node)
        return super().initial_parameters(site)

    def make_batch(self, site: Site, index: int) -> Awaitable[Batch]:
        self.events.append({"event": "batch", "node": site.node, "batch": index})
        return super().make_batch(site, index)

    def dense_store(
        self, start: np.ndarray, device: Any = "cpu", trained: int | None = None, optimizer: Optimizer | None = None
    ) -> DenseStore:
        optimizer = optimizer or self.workload.dense_optimizer
        return _LoggingStore(self.nodes[-1], self.events, start, optimizer, trained)


class _LoggingStore(DenseStore):
    def __init__(self, node: str, events: list, start: np.ndarray, optimizer: Optimizer, trained: int | None):
        super().__init__(start, optimizer, trained=trained)
        self._node, self._events = node, events

    def apply(self, grad: Any, rate: float = 1.0, *, sound: torch.Tensor | None = None) -> None:
        super().apply(grad, rate, sound=sound)
        self._log("step", gradient=_numbers(grad))

    def merge_and_count_others(self, before: np.ndarray, writes: int, after: np.ndarray) -> int:
        since = super().merge_and_count_others(before, writes, after)
        self._log("mix")
        return since

    def _log(self, what: str, **more: Any) -> None:
        self._events.append({"event": what, "node": self._node, **more, "values": _numbers(self.values)})


def _logging(rule: Rule, events: list[dict[str, Any]]) -> Rule:
    """The same rule, which logs the gradients that it is asked about, its decisions, and the mixes that it merges."""

    def decided(answer: tuple) -> tuple:
        for each in answer[1]:
            batches = [push.batch for push in each.pushes]
            if hasattr(each, "weights"):
                numbers = {"weights": list(each.weights), "divisor": each.divisor, "rate": each.rate}
                events.append({"event": "update", "batches": batches, **numbers})
            else:
                events.append({"event": "drop", "batches": batches})
        return answer

    class Logging(type(rule)):
        def on_push(self, state, push):
            read = {"batch": push.batch, "read": push.read, "token": push.token}
            events.append({"event": "gradient", "worker": push.worker, **read})
            return decided(super().on_push(state, push))

        def on_leave(self, state, worker):
            return decided(super().on_leave(state, worker))

        def merge(self, memory, mine, mix):
            events.append(
                {
                    "event": "merge",
                    "round": mix.round,
                    "members": list(mix.members),
                    "sent": _numbers(mix.sent),
                    "theirs": _numbers(mix.theirs),
                }
            )
            return super().merge(memory, mine, mix)

        def on_read(self, state, batch):
            state, admission = super().on_read(state, batch)
            events.append({"event": "read", "batch": batch, "read": admission.seen})
            return state, admission

    return Logging(**{each.name: getattr(rule, each.name) for each in fields(rule)})


def _numbers(array: Any) -> list[float]:
    """A float32 vector, in seven digits."""
    return [float(f"{number:.7g}") for number in np.asarray(array, np.float32).ravel().tolist()]


def _differ(where: str, before: Any, now: Any) -> Iterable[str]:
    if isinstance(before, dict) and isinstance(now, dict) and before.keys() == now.keys():
        for key in before:
            yield from _differ(f"{where}.{key}" if where else key, before[key], now[key])
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for place, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from _differ(f"{where}[{place}]", one, other)
    else:
        near = isinstance(before, float) and isinstance(now, float) and np.isclose(before, now, rtol=NEAR, atol=NEAR)
        if before != now and not near:
            yield f"{where}: {before!s:.80} stored, {now!s:.80} now"
