"""What workers and a parameter server send each other, and one server's share of the parameters.

A share is a slice of the dense vector, the rows that are placed on it, or both.

Its calls may run at once, in threads. The stores say what such calls may rely on: a dense step is atomic, rows are as
`RowStore.locking` says, and a read during an update may have one table from before it and another from after it.
"""

import asyncio
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from lib.cluster.base import Site
from lib.cluster.spec import Work
from lib.drivers.plan import Plan
from lib.drivers.record import EvalPoint, ModelSnapshot
from lib.drivers.rule_checks import compensate_checked
from lib.protocols.server_rule import Apply, ServerRule
from lib.store.checkpoint import Checkpointed
from lib.store.dense import DenseStore
from lib.store.optim import SGD
from lib.store.rows import Rows, dense_slice
from lib.store.spec import Bags
from lib.store.table import Table


@dataclass(frozen=True, slots=True)
class PullReply:
    """The parameters for one step of a worker."""

    weightless: ClassVar = ("token", "waited", "lead")
    token: int
    waited: float
    """Seconds at the rule's gate."""
    dense: np.ndarray | None
    rows: dict[str, Any]
    """Table -> the rows; as their codec sends them until a client has decoded them."""
    lead: int = 0
    """Steps by which the worker was ahead of the slowest one, where its rule has a cache."""


@dataclass(slots=True)
class StepInput:
    """What a step that has started is computed from; it stays at the server."""

    token: int
    lead: int = 0
    version: int = 0
    """Updates that were in the store when it was read."""
    dense: np.ndarray | None = None
    rows: dict[str, np.ndarray] = field(default_factory=dict)
    """Dense values and rows as they were read, where the rule compensates gradients for later updates."""
    bags: dict[str, Bags] = field(default_factory=dict)
    """The sums that were asked for, of tables whose rows the server sums."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """What a worker sends after a step."""

    weightless: ClassVar = ("worker", "token", "batch", "samples", "void", "source")
    worker: int
    token: int
    batch: int
    samples: int
    dense: np.ndarray | None = None
    rows: dict[str, tuple[np.ndarray | None, Any]] = field(default_factory=dict)
    """Table -> distinct ids, and their rows' gradients as the codec sends them; no ids where the server summed the rows."""
    void: str = ""
    """Why it has no arrays, as the ledger counts it: "dropped", since the run skips batches that are not finite; "abandoned",
    since the embedding worker that held the batch's ids is dead."""
    source: StepInput | None = None
    """What it was computed from; the server adds it on arrival."""


@dataclass(slots=True, eq=False)
class Update:
    """An update that is decided and not yet in the store."""

    decision: Apply
    gradients: list[Gradient]
    step: int
    """Updates decided before it."""
    worker: int
    """The worker whose message led to it."""
    done: asyncio.Future
    version: int = 0
    """Updates that were in the store when it began; this and the rest are known once it is done."""
    norm: float = math.nan
    """L2 norm of its dense gradient; NaN where it had none."""
    decayed: int = 0
    """Rows' gradients that were given less weight than they came with."""


Wanted = dict[str, Bags | np.ndarray]
"""Table -> the sums, or the rows of distinct ids, that a worker pulls."""


class Shard(Checkpointed):
    """The parameters, and the arithmetic of updates."""

    in_checkpoint = "version", "dense", "tables", "_memory"

    def __init__(
        self, site: Site, plan: Plan, rule: ServerRule, number: int, holds: frozenset[str], tables: dict | None = None
    ):
        self._rule, self._number, self._gradients, self._store = rule, number, plan.gradients, plan.store
        start = plan.initial_parameters(site) if "dense" in holds else np.empty(0, np.float32)
        mine = dense_slice(start.size, plan.placement.shards, number)
        self.dense = plan.dense_store(start[mine], site.device) if "dense" in holds else None
        self._size = mine.stop - mine.start
        self.tables = tables or (plan.tables(device=plan.row_device(site.device)) if "rows" in holds else {})
        self._evaluated: dict[int | None, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
        """Day -> table -> positions among the evaluation's ids, and the ids that are on this server."""
        for day, ids in plan.evaluation_ids_by_day.items():
            own = {table: plan.placement.split(table, ids[table])[number] for table in self.tables}
            self._evaluated[day] = {table: (part, ids[table][part]) for table, part in own.items()}
        self.version, self._lock = 0, threading.Lock()
        self._memory = None
        if rule.compensate and self._gradients:
            self._memory = _Memory(site, plan, rule, self.dense, self.tables)

    def warm_start(self, dense: dict[str, np.ndarray], rows: dict[str, Rows]) -> None:
        if self.dense is not None:
            self.dense.load(dense)
        for name, table in self.tables.items():
            table.load(rows[name])

    def decode_requests(self, requests: dict[str, Any], with_dense: bool) -> tuple[Wanted, Work]:
        """What these requests ask for, and the cost to read it."""
        wanted = {}
        numbers = self._size if with_dense else 0  # the optimiser's state is not read
        for name, table in self.tables.items():
            wanted[name] = self._store.decode_request(requests[name])
            numbers += table.dim * _rows_in(wanted[name])
        return wanted, Work(bytes=2 * 4 * numbers)

    def read(self, source: StepInput, wanted: Wanted, with_dense: bool) -> tuple[np.ndarray | None, dict[str, Any]]:
        """The dense slice if `with_dense`, and the wanted rows or sums as they travel; `source` notes what is read."""
        with self._lock:
            source.version = self.version
        dense = self.dense.pull() if with_dense and self.dense is not None else None
        rows, sent = {}, {}
        for name, table in self.tables.items():
            if isinstance(each := wanted[name], Bags):
                ids, positions = each.distinct()
                rows[name], source.bags[name] = table.pull(ids), each
                block = each.sums(rows[name], positions)
            else:
                rows[name] = block = table.pull(each)
            sent[name] = self._store.rows.encode(block)
        if self._rule.compensate:
            source.dense, source.rows = dense, rows
        return dense, sent

    def update_cost(self, update: Update) -> Work:
        """The cost to read, to sum, and to write where it belongs."""
        numbers = 0
        for gradient in update.gradients:
            if gradient.dense is not None:
                numbers += gradient.dense.size
            for name, (ids, _) in gradient.rows.items():
                numbers += self.tables[name].dim * _rows_in(gradient.source.bags[name] if ids is None else ids)
        return Work(bytes=3 * 4 * numbers)

    def update(self, update: Update) -> None:
        """Make one step of the optimisers and note in the update what came of it.

        Sums run in the order of the batches: the set of gradients decides the bits, not the order of their arrival.
        """
        pairs = [pair for pair in zip(update.gradients, update.decision.weights, strict=True) if not pair[0].void]
        pairs.sort(key=lambda pair: pair[0].batch)
        with self._lock:
            update.version = self.version
        if self._gradients:
            self._step(pairs, update)
        elif self.dense is not None and pairs:
            self.dense.apply(pairs[0][0].dense)  # a timing run's optimiser has a state from now on
        with self._lock:
            self.version += 1

    def final_model(self) -> dict[str, Any]:
        """All parameters, as a record keeps them."""
        dense = {"dense": {self._number: self.dense.export()}} if self.dense is not None else {}
        return {**dense, "rows": {name: table.export() for name, table in self.tables.items()}}

    def snapshot(self, point: EvalPoint, time: float, samples: int) -> ModelSnapshot:
        dense = {self._number: np.asarray(self.dense.pull())} if self.dense is not None else {}
        evaluated = self._evaluated[point.day]
        rows = {table: (part, np.asarray(self.tables[table].peek(ids))) for table, (part, ids) in evaluated.items()}
        return ModelSnapshot(point, time, samples, dense, rows)

    def _step(self, pairs: list[tuple[Gradient, float]], update: Update) -> None:
        if self.dense is not None and any(weight for _, weight in pairs):
            grads = [gradient.dense for gradient, _ in pairs]
            if self._memory:
                now = self.dense.pull()
                grads = [self._memory.compensate(grad.dense, now, grad.source.dense) for grad, _ in pairs]
            mean = _mean(grads, [weight for _, weight in pairs], update.decision.divisor)
            self.dense.apply(mean, update.decision.rate)
            update.norm = np.linalg.norm(mean)
        for name in self.tables:
            if met := [pair for pair in pairs if name in pair[0].rows]:
                update.decayed += self._step_rows(name, met, update.decision, update.step + 1)

    def _step_rows(self, name: str, pairs: list[tuple[Gradient, float]], decision: Apply, stamp: int) -> int:
        """Update a table and count the rows' gradients that were decayed."""
        table, divisor, weighted = self.tables[name], decision.divisor, self._rule.row_weights
        blocks, weights = [], []
        for gradient, weight in pairs:
            ids, sent = gradient.rows[name]
            grads = self._store.gradients.decode(sent)
            if ids is None:
                ids, grads = gradient.source.bags[name].spread(grads)
            if self._memory:
                grads = self._memory.compensate(grads, table.peek(ids), gradient.source.rows[name], name, ids)
            blocks.append((ids, grads))
            of_rows = weighted and weighted(gradient.token, table.stamps(ids))
            weights.append(of_rows if weighted else np.full(ids.size, weight, np.float32))
        if len(pairs) == 1 and pairs[0][1] == divisor and not weighted:
            table.push(*blocks[0], stamp, distinct=True, rate=decision.rate)
            return 0
        ids, grads = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        over = None if self._rule.rows_divided_by == "met" else divisor
        each = np.concatenate(weights)
        table.push_weighted(ids, grads, stamp, weights=each, divisor=over, rate=decision.rate)
        return int((each < 1).sum())


class _Memory(Checkpointed):
    """What a rule that compensates gradients remembers, an array of the shape of each parameter: zeros at first."""

    in_checkpoint = "_dense", "_rows"

    def __init__(self, site: Site, plan: Plan, rule: ServerRule, dense: DenseStore | None, tables: Mapping[str, Table]):
        self._rule, self._lock = rule, threading.Lock()
        """One gradient at a time: it takes what the last one left."""
        self._dense = np.empty(0, np.float32) if dense is None else np.zeros_like(dense.pull())
        still = SGD(lr=1.0)
        device = plan.row_device(site.device)
        self._rows = {
            name: plan.store.table(f"{name}-memory", table.dim, still, seed=plan.seed, scale=0.0, device=device)
            for name, table in tables.items()
        }

    def compensate(
        self, gradient: np.ndarray, now: np.ndarray, read: np.ndarray, table: str | None = None, ids: Any = None
    ) -> np.ndarray:
        """What the update takes instead of a gradient of the dense parameters, or of a table's rows."""
        with self._lock:
            before = self._dense if table is None else self._rows[table].peek(ids)
            taken, memory = compensate_checked(self._rule, gradient, now, read, before)
            if memory is not None and table is None:
                self._dense = memory
            elif memory is not None:
                self._rows[table].assign(ids, memory)
        return taken


def _rows_in(wanted: Bags | np.ndarray) -> int:
    """Rows that are read, or written."""
    return wanted.entries.size if isinstance(wanted, Bags) else wanted.size


def _mean(grads: list[np.ndarray], weights: list[float], divisor: float) -> np.ndarray:
    if weights == [divisor]:
        return grads[0]
    total = np.zeros_like(grads[0])
    for dense, weight in zip(grads, weights, strict=True):
        if weight:
            total += dense if weight == 1 else np.float32(weight) * dense
    total /= np.float32(divisor)
    return total
