"""A parameter server that comes back inside a run (Persia, Section 4.2.4): its rows are in shared memory.

Rows in shared memory outlive the server's process. At the end of each turn the server writes everything else that it needs into
a note next to its rows, and the next process continues from that note. Gradients that the dead process had taken and not brought
into its rows are lost, and counted. Callers make unanswered calls again: a step that has started keeps its token, and a gradient
that was taken is not taken twice.
"""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

from lib.cluster.base import Site
from lib.drivers.run.plan import Plan
from lib.drivers.servers.messages import Gradient, StepInput
from lib.drivers.servers.parameter_server import ParameterServer
from lib.protocols.server_rule import ServerRule


def returns(plan: Plan, rule: ServerRule, holds: frozenset[str]) -> bool:
    """Whether a server of this rule comes back: it holds nothing but rows that outlive its process."""
    kept = plan.store.shared_memory and plan.store.journal and plan.gradients
    return kept and holds == {"rows"} and not (rule.compensate or rule.cache_steps or plan.pooled)


class ReturningServer(ParameterServer):
    """A server of rows in shared memory."""

    noted = "_state", "_members", "_samples", "_dropped", "_decided"

    def __init__(self, site: Site, plan: Plan, rule: ServerRule, number: int, holds: frozenset[str]):
        tables = site.survivor("rows", plan.tables)
        super().__init__(site, plan, rule, number, holds, tables)
        self._lock = _NotingLock(self._note)
        self._notes = Notes(next(iter(tables.values())).segment.folder)
        kept = self._notes.read()
        self.attached = kept is not None and all(table.attached for table in tables.values())
        """Whether this process found the rows and the note of the one before."""
        if kept is not None:
            self._attach(*kept)
        self._note()

    async def save(self) -> dict[str, Any]:
        state = await super().save()
        self._note()
        return state

    async def load(self, state: dict[str, Any]) -> None:
        await super().load(state)
        self._note()

    def _note(self) -> None:
        log = {each.name: getattr(self.record, each.name) for each in fields(self.record)}
        step = self._state.step
        state = {name: getattr(self, name) for name in self.noted} | {
            # A step whose parameters were read since the last note read them about then.
            "started": [(key, each.token, each.lead, each.version or step) for key, each in self._started.items()],
            "waiting": [(push, gradient.samples) for push, gradient in self._waiting.items()],
            "under way": sum(len(update.gradients) for update in self._under_way),
            "counters": {name: value for name, value in log.items() if isinstance(value, Counter)},
        }
        self._notes.write(state, {name: value for name, value in log.items() if isinstance(value, list)})

    def _attach(self, state: dict[str, Any], lists: dict[str, list]) -> None:
        for name in self.noted:
            setattr(self, name, state[name])
        self._started = {step: StepInput(*numbers) for step, *numbers in state["started"]}
        for push, samples in state["waiting"]:
            self._waiting[push] = Gradient(push.worker, push.token, push.batch, samples, void="lost")
        for name, value in (state["counters"] | lists).items():
            setattr(self.record, name, value)
        self._evals.pop_reached(self._samples + self._dropped)
        self._shard.version = self._state.step
        self.record.ledger["lost"] += state["under way"]
        self.record.extra["servers attached again"] += 1
        self.record.extra["gradients lost at servers"] += state["under way"] + len(state["waiting"])


class _NotingLock(asyncio.Lock):
    """Notes what a turn came to before the next one begins; a turn that a death ends is as if it had never begun."""

    def __init__(self, note):
        super().__init__()
        self._note = note

    async def __aexit__(self, kind, *error) -> None:
        if kind is None:
            self._note()
        await super().__aexit__(kind, *error)


class Notes:
    """A state and lists that only grow, in a private folder. A process that is killed leaves the last `write` whole."""

    def __init__(self, folder: Path):
        self._state, self._log = folder / "state", open(folder / "log", "ab", buffering=0)  # noqa: SIM115
        self._lengths: dict[str, int] = {}

    def write(self, state: dict[str, Any], lists: dict[str, list]) -> None:
        grown = {name: each[self._lengths.get(name, 0) :] for name, each in lists.items()}
        if any(grown.values()):
            self._log.write(pickle.dumps(grown))
            self._lengths = {name: len(each) for name, each in lists.items()}
        new = self._state.with_name("new")
        new.write_bytes(pickle.dumps((state, self._log.tell())))
        new.replace(self._state)

    def read(self) -> tuple[dict[str, Any], dict[str, list]] | None:
        """The last state and its lists; None if nothing was written."""
        if not self._state.exists():
            return None
        state, end = pickle.loads(self._state.read_bytes())
        self._log.truncate(end)
        self._log.seek(end)
        lists: dict[str, list] = {}
        with open(self._log.name, "rb") as log:
            while log.tell() < end:
                for name, each in pickle.load(log).items():
                    lists[name] = lists.get(name, []) + each
        self._lengths = {name: len(each) for name, each in lists.items()}
        return state, lists
