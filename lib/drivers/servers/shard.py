"""One server's share of the parameters: a slice of the dense vector, the rows that are placed here, or both.

Its calls may run at once, in threads. What they may then rely on is the stores' affair: a dense step is atomic, rows are as
`RowStore.locking` says, and a reading beside an update may have one table from before it and another from after it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lib.cluster.base import Site
from lib.cluster.spec import Work
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import Mark, Snapshot
from lib.drivers.servers.decided import correction
from lib.protocols.server_rule import Apply, Push, ServerRule
from lib.store.blank import blank
from lib.store.dense import DenseStore
from lib.store.optim import SGD
from lib.store.placement import Partition
from lib.store.rows import Dump, Rows
from lib.store.table.table import Table
from lib.store.wire.bags import Bags
from lib.store.wire.codecs import Codec


@dataclass(frozen=True, slots=True)
class Read:
    """What a server remembers of the parameters that it gave away."""

    version: int
    """Updates that were in the store."""
    dense: np.ndarray | None = None
    rows: dict[str, np.ndarray] | None = None
    """The values, where the rule corrects gradients by them."""
    sums: dict[str, Bags] | None = None
    """Of the tables whose rows were summed, over what."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """What a worker sends after a step; without arrays where the batch was skipped."""

    weightless: ClassVar = ("push", "samples", "void", "abandoned", "read")
    push: Push
    samples: int
    dense: np.ndarray | None
    rows: dict[str, tuple[np.ndarray, Any]]
    """Table -> distinct ids, and their rows' gradients as their codec sends them; None and those of the sums that were asked for,
    where the server had summed its rows."""
    void: str = ""
    """As what it counts where it has no arrays: "dropped", since its batch was skipped; "abandoned", since the embedding worker
    that held the batch's ids is dead; "lost", since the server's process died that had it."""
    read: Read | None = None
    """What it was computed from; the server's own note."""

    def block(self, table: str, codec: Codec) -> tuple[np.ndarray, np.ndarray]:
        """The distinct ids of a table in it, and their rows' gradients."""
        ids, sent = self.rows[table]
        grads = codec.decode(sent)
        return self.read.sums[table].spread(grads) if ids is None else (ids, grads)


@dataclass(frozen=True, slots=True)
class Applied:
    """What an update has to say of itself."""

    version: int
    """Updates that were in the store when it began."""
    norm: float | None
    """L2 norm of its dense gradient; None where it had none."""
    decayed: int
    """Rows' gradients that were given less weight than they came with."""


class Shard:
    """The parameters, and the arithmetic of updates."""

    def __init__(self, site: Site, plan: Plan, rule: ServerRule, number: int, holds: frozenset[str]):
        self._rule, self._number, self._gradients, self._store = rule, number, plan.gradients, plan.store
        start = plan.start(site) if "dense" in holds else np.empty(0, np.float32)
        partition = Partition(start.size, plan.placement)
        self._dense = plan.dense_store(start[partition.slice(number)]) if "dense" in holds else None
        self._tables = plan.tables() if "rows" in holds else {}
        self._evaluated = {
            day: {
                table: (here := partition.split(table, ids[table])[number], ids[table][here]) for table in self._tables
            }
            for day, ids in plan.evaluated.items()
        }
        """Day -> table -> positions among the evaluation's ids, and the ids that are here."""
        self._version, self._lock = 0, threading.Lock()
        self._memory = None
        if rule.corrected and self._gradients:
            self._memory = _Memory(plan, self._dense, self._tables)

    def inherit(self, dense: dict[str, np.ndarray], rows: dict[str, Rows]) -> None:
        if self._dense is not None:
            self._dense.load(dense)
        for name, table in self._tables.items():
            table.load(rows[name])

    @property
    def rows(self) -> int:
        """Rows that are here."""
        return sum(map(len, self._tables.values()))

    @property
    def evicted(self) -> int:
        """Rows that went for want of room so far."""
        return sum(table.evicted for table in self._tables.values())

    @property
    def nbytes(self) -> int:
        """What they take, with their index."""
        return sum(table.nbytes for table in self._tables.values())

    def asked(self, message: dict[str, Any]) -> dict[str, Asked]:
        """Table -> what a worker's message asks for."""
        return {table: self._store.asked(ids) for table, ids in message.items()}

    def reading(self, asked: dict[str, Asked], whole: bool) -> Work:
        """What `read` costs."""
        dense = 0 if self._dense is None or not whole else 4 * len(self._dense)  # nobody reads the optimiser's state
        return Work(
            bytes=2 * (dense + sum(4 * self._tables[name].dim * _looked_up(asked[name]) for name in self._tables))
        )

    def read(self, asked: dict[str, Asked], whole: bool) -> tuple[Read, np.ndarray | None, dict[str, Any]]:
        """What is to be remembered, the dense slice if `whole`, and these rows, or their sums, as they travel."""
        with self._lock:
            version = self._version
        dense = self._dense.pull() if self._dense is not None and whole else None
        rows, sent, sums = {}, {}, {}
        for name, table in self._tables.items():
            if isinstance(each := asked[name], Bags):
                ids, positions = each.distinct()
                rows[name], sums[name] = table.pull(ids), each
                sent[name] = each.sums(rows[name], positions) if self._gradients else blank(each.bags.size, table.dim)
            else:
                rows[name] = sent[name] = table.pull(each)
        read = Read(version, dense, rows, sums) if self._rule.corrected else Read(version, sums=sums)
        return read, dense, {name: self._store.rows.encode(block) for name, block in sent.items()}

    def updating(self, gradients: Sequence[Gradient]) -> Work:
        """What `update` costs: to read, to sum, and to write where it belongs."""
        dense = sum(gradient.dense.nbytes for gradient in gradients if gradient.dense is not None)
        rows = (
            4 * self._tables[name].dim * _looked_up(gradient.read.sums[name] if ids is None else ids)
            for gradient in gradients
            for name, (ids, _) in gradient.rows.items()
        )
        return Work(bytes=3 * (dense + sum(rows)))

    def update(self, decision: Apply, gradients: Sequence[Gradient], step: int) -> Applied:
        """One step of the optimisers, after `step` others.

        Sums run in the order of the batches: the set of gradients decides the bits, not the order of their arrival.
        """
        pairs = sorted(zip(gradients, decision.weights, strict=True), key=lambda pair: pair[0].push.batch)
        pairs = [(gradient, weight) for gradient, weight in pairs if not gradient.void]
        with self._lock:
            version = self._version
        norm, decayed = self._step(pairs, decision, step) if self._gradients else self._pretend(pairs)
        with self._lock:
            self._version += 1
        return Applied(version, norm, decayed)

    def save(self) -> dict[str, Any]:
        return {
            "dense": self._dense.export() if self._dense is not None else None,
            "tables": {name: table.dump() for name, table in self._tables.items()},
            "memory": self._memory and self._memory.save(),
        }

    def load(self, state: dict[str, Any], version: int) -> None:
        self._version = version
        if self._dense is not None:
            self._dense.load(state["dense"])
        for name, table in self._tables.items():
            _put(table, state["tables"][name])
        if self._memory:
            self._memory.load(state["memory"])

    def final(self) -> dict[str, Any]:
        """All that it holds, as a record keeps it."""
        dense = {"dense": {self._number: self._dense.export()}} if self._dense is not None else {}
        return {**dense, "rows": {name: table.export() for name, table in self._tables.items()}}

    def snapshot(self, mark: Mark, time: float, samples: int) -> Snapshot:
        dense = {self._number: self._dense.pull()} if self._dense is not None else {}
        ids = self._evaluated[mark.day]
        rows = {table: (here, self._tables[table].peek(wanted)) for table, (here, wanted) in ids.items()}
        return Snapshot(mark, time, samples, dense, rows)

    def _step(self, pairs: list[Weighted], decision: Apply, step: int) -> tuple[float | None, int]:
        norm, decayed = None, 0
        if self._dense is not None and any(weight for _, weight in pairs):
            norm = self._update_dense(pairs, decision)
        for name in self._tables:
            if met := [(gradient, weight) for gradient, weight in pairs if name in gradient.rows]:
                decayed += self._update_rows(name, met, decision, step)
        return norm, decayed

    def _pretend(self, pairs: list[Weighted]) -> tuple[None, int]:
        """A timing run's step: the optimiser has a state from here on."""
        if self._dense is not None and pairs:
            self._dense.apply(pairs[0][0].dense)
        return None, 0

    def _update_dense(self, pairs: list[Weighted], decision: Apply) -> float:
        """The L2 norm of the gradient that was applied."""
        grads = [gradient.dense for gradient, _ in pairs]
        if self._memory:
            now = self._dense.pull()
            grads = [
                self._memory.dense_of(self._rule, gradient.dense, now, gradient.read.dense) for gradient, _ in pairs
            ]
        mean = _mean(grads, [weight for _, weight in pairs], decision.divisor)
        self._dense.apply(mean, decision.rate)
        return float(np.linalg.norm(mean))

    def _update_rows(self, name: str, pairs: list[Weighted], decision: Apply, step: int) -> int:
        """How many rows' gradients were decayed."""
        table, rule, divisor = self._tables[name], self._rule, decision.divisor
        blocks = [gradient.block(name, self._store.gradients) for gradient, _ in pairs]
        if self._memory:
            read = [gradient.read.rows[name] for gradient, _ in pairs]
            blocks = [
                (ids, self._memory.rows_of(rule, name, ids, grads, table.peek(ids), old))
                for (ids, grads), old in zip(blocks, read, strict=True)
            ]
        if len(pairs) == 1 and pairs[0][1] == divisor and not rule.row_weights:
            table.push(*blocks[0], step + 1, distinct=True, rate=decision.rate)
            return 0
        sizes = [ids.size for ids, _ in blocks]

        def by_stamp(stamps: np.ndarray) -> np.ndarray:
            parts = zip(pairs, np.split(stamps, np.cumsum(sizes)[:-1]), strict=True)
            return np.concatenate([rule.row_weights(gradient.push.token, part) for (gradient, _), part in parts])

        weights = by_stamp if rule.row_weights else np.repeat([weight for _, weight in pairs], sizes).astype(np.float32)
        ids, grads = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        over = None if rule.rows_divided_by == "met" else divisor
        return table.update(ids, grads, step + 1, weights=weights, divisor=over, rate=decision.rate)


class _Memory:
    """What a rule that corrects gradients remembers, beside the parameters: zeros at first."""

    def __init__(self, plan: Plan, dense: DenseStore | None, tables: Mapping[str, Table]):
        self._lock = threading.Lock()
        """One correction at a time: it takes what the last one left."""
        self.dense = np.zeros(0 if dense is None else len(dense), np.float32)
        still = SGD(lr=1.0)
        self._rows = {
            name: plan.store.table(f"{name}-memory", table.dim, still, seed=plan.seed, scale=0.0)
            for name, table in tables.items()
        }

    def dense_of(self, rule: ServerRule, grad: np.ndarray, now: np.ndarray, read: np.ndarray) -> np.ndarray:
        with self._lock:
            taken, memory = correction(rule, grad, now, read, self.dense)
            self.dense = self.dense if memory is None else memory
        return taken

    def rows_of(
        self, rule: ServerRule, name: str, ids: np.ndarray, grads: np.ndarray, now: np.ndarray, read: np.ndarray
    ):
        with self._lock:
            taken, memory = correction(rule, grads, now, read, self._rows[name].peek(ids))
            if memory is not None:
                self._rows[name].assign(ids, memory)
        return taken

    def save(self) -> dict[str, Any]:
        return {"dense": self.dense, "rows": {name: table.dump() for name, table in self._rows.items()}}

    def load(self, state: dict[str, Any]) -> None:
        self.dense = state["dense"]
        for name, table in self._rows.items():
            _put(table, state["rows"][name])


def _put(table: Table, kept: Dump | Rows) -> None:
    """What it dumped, or rows that others did."""
    (table.load if isinstance(kept, Rows) else table.restore)(kept)


Weighted = tuple[Gradient, float]
Asked = Bags | np.ndarray
"""What is asked of a table: sums, or the rows of distinct ids."""


def _looked_up(asked: Asked) -> int:
    """Rows that are read, or written."""
    return asked.entries.size if isinstance(asked, Bags) else asked.size


def _mean(grads: list[np.ndarray], weights: list[float], divisor: float) -> np.ndarray:
    if weights == [divisor]:
        return grads[0]
    total = np.zeros_like(grads[0])
    for dense, weight in zip(grads, weights, strict=True):
        if weight:
            total += dense if weight == 1 else np.float32(weight) * dense
    total /= np.float32(divisor)
    return total
