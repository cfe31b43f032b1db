"""What a part writes down while it runs: the same for every protocol, in every world."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import islice
from typing import Any, ClassVar, Literal

import numpy as np

from lib.cluster.spec import Usage
from lib.errors import LockstepError


@dataclass(frozen=True, slots=True)
class EvalPoint:
    """A place at which the model is evaluated."""

    samples: float
    """Of the plan, trained on before it."""
    day: int | None
    """The day whose samples it is evaluated on; None: the one after the pass."""


@dataclass(slots=True)
class ModelSnapshot:
    """Parameters as they were at one moment of the run, for an evaluation that costs the run no time."""

    weightless: ClassVar[tuple[str, ...]] = ("dense", "rows")
    """It travels at no cost."""
    point: EvalPoint
    time: float
    samples: int
    """Samples in the model, as far as this part knows."""
    dense: dict[int, np.ndarray] = field(default_factory=dict)
    """Shard -> its slice of the dense vector; {} where the part holds none."""
    rows: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """Table -> positions in the evaluation's ids, and their rows."""


END = -1
"""As a batch: the reading of the whole store when all are done."""
LAST = 2**63 - 1
"""Its place in the order."""


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """What a batch of a pipeline did with rows of one table, in one go."""

    kind: Literal["read", "compute", "write"]
    """From the host store; on the device; to the host store."""
    batch: int
    table: str
    ids: np.ndarray
    """int64[n], distinct."""
    versions: np.ndarray
    """int64[n], the timestamps that were found, that were computed from, or that are written; -1: never updated here."""
    stamp: int = -1
    """compute: the timestamp that the rows have afterwards."""
    safe: int = -1
    """compute: updates up to this timestamp may leave the device's cache before."""
    order: np.ndarray | None = None
    """int64[n]: of two reads or writes of a row the first has the smaller number, of two computations the first; -1: a call that
    was interrupted had not come to the row. None: they happened in the order in which they are listed."""
    values: np.ndarray | None = None
    """int64[n], fingerprints of what was found, computed from or written; None: the versions stand for them."""
    made: np.ndarray | None = None
    """compute: the fingerprints that the rows have afterwards."""
    began: int = 0
    """The store's calls number their beginnings and ends as they come: two were under way at once where neither ended before the
    other began."""
    ended: int = 0
    """-1: it was interrupted, and what it was to write may be there or not."""


@dataclass(slots=True)
class PartLog:
    """One part's notes."""

    node: str
    spans: list[tuple[str, float, float, int, float]] | None
    """(kind, start, end, batch, norm); None where no trace is wanted. `norm` is of an update: the L2 norm of its dense gradient,
    or of this server's share of it."""
    steps: list[tuple[float, int, int, float, float, float]] = field(default_factory=list)
    """(time, batch, samples, loss, summed log loss, summed labels) of each gradient, before it is applied."""
    taken: list[int] = field(default_factory=list)
    """Batches in the order in which this part computed them."""
    used: list[int] = field(default_factory=list)
    """Batches whose gradients went into an update here, also those with weight 0."""
    ledger: Counter = field(default_factory=Counter)
    """Gradients by what became of them; a replica's own also by whether it holds them (`held`) and others do (`heard`)."""
    bytes: Counter = field(default_factory=Counter)
    """Bytes by what moved."""
    unused: list[tuple[int, str]] = field(default_factory=list)
    """(batch, outcome) of each gradient that was decayed or dropped."""
    staleness: list[tuple[float, int, int]] = field(default_factory=list)
    """(time, updates that came into the store since its parameters were read, batch) of each applied gradient."""
    data_staleness: list[tuple[float, int]] = field(default_factory=list)
    """(time, steps from its token to its update) of each applied gradient, where it has a token (GBA, Section 4.1)."""
    steps_between_mixes: list[tuple[float, int]] = field(default_factory=list)
    """(time, local steps since the mix before) of each mix."""
    accesses: list[Access] | None = None
    """What a pipeline's batches did with rows; None where the run does not keep it."""
    extra: Counter = field(default_factory=Counter)
    """What only some parts count: rows that were validated away, evicted, decayed."""
    snapshots: list[ModelSnapshot] = field(default_factory=list)
    final: dict[str, Any] = field(default_factory=dict)
    """All parameters, optimiser state and timestamps that the part holds at the end."""

    def add_span(self, kind: str, start: float, end: float, batch: int, norm: float = math.nan) -> None:
        if self.spans is not None:
            self.spans.append((kind, start, end, batch, norm))

    def dump(self) -> PartLog:
        return self

    def restore(self, other: PartLog) -> None:
        """Take over another log's notes: the pieces of a part share this object."""
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))


def pop_reached(points: list[EvalPoint], samples: float) -> list[EvalPoint]:
    """Take out the points that these samples have reached; of several at once that are evaluated on one day, the last."""
    reached = {}
    while points and samples >= points[0].samples:
        point = points.pop(0)
        reached[point.day] = point
    return list(reached.values())


@dataclass(frozen=True, slots=True)
class Finished:
    """A run as its parts left it."""

    start: float
    """When the training clock started."""
    end: float
    """When it stopped: collecting what was written down does not count."""
    records: list[PartLog]
    usage: list[Usage]
    events: int | None
    """Callbacks of the event loop, in virtual time."""
    undone: int = 0
    """Gradients whose work was taken back when the run returned to a checkpoint."""
    returns: int = 0
    """How often it did."""
    lost_worker: bool = False
    """Whether a worker was lost, and its share of the data with it."""
    watch: Any = None
    """How far the choice of a protocol has come, as in `Plan`."""
    collectives: str | None = None
    """What workers averaged with, where they were processes."""


OUTCOMES = ("applied", "decayed", "dropped", "lost", "in_flight")


def gradient_ledger(records: Iterable[PartLog], undone: int = 0) -> dict[str, int]:
    """The run's ledger, in which every gradient that was issued is applied, decayed, dropped, lost, or in flight.

    An error if any part's books do not balance, or a batch's gradient was used twice.

    A gradient is a batch's. Its outcome is decided where the dense parameters are: at the first server, or on the worker
    that keeps a replica. A server counts a gradient as issued when it lets the worker start, a worker when it has computed
    it; they agree unless a worker was lost in between. `undone` were issued and lost when the run returned to a cut.

    At the rows' servers behind embedding workers a gradient may also be abandoned: its batch's ids were lost with an embedding
    worker. `abandoned` is what the rows never got, by the server that missed most.
    """
    records = list(records)
    for record in records:
        if twice := [batch for batch, times in Counter(record.used).items() if times > 1]:
            raise LockstepError(f"{record.node} used the gradients of these batches more than once: {twice[:5]}")
    books = [
        _balanced_ledger(record.node, record.ledger["started"], record.ledger)
        for record in sorted(records, key=lambda record: "dense" not in record.final)
        if record.ledger["started"]
    ]
    workers = sum((record.ledger for record in records if record.ledger["issued"]), Counter())
    if workers and not any("dense" in record.final and record.ledger["started"] for record in records):
        books.insert(0, _balanced_ledger("the workers", workers["issued"], workers))
    for book in books:
        # Not computed are only steps whose worker was lost; not started are only those whose cached worker asked and was lost.
        if not -workers["unanswered"] <= book["issued"] - workers["issued"] <= book["lost"]:
            counts = f"{book['issued']} started, {workers['issued']} computed"
            raise LockstepError(f"the gradient ledger does not balance: {counts}")
    whole = books[0] if books else _balanced_ledger("no worker", 0, Counter())
    held = any(record.ledger["samples held"] for record in records)
    abandoned = {"abandoned": max(record.ledger["abandoned"] for record in records)} if held else {}
    return {**whole, **abandoned, "issued": whole["issued"] + undone, "lost": whole["lost"] + undone}


def _balanced_ledger(whose: str, issued: int, ledger: Counter) -> dict[str, int]:
    total = sum(ledger[outcome] for outcome in (*OUTCOMES, "abandoned"))
    if total != issued:
        counts = f"issued {issued}, accounted for {total}: {dict(ledger)}"
        raise LockstepError(f"the gradient ledger of {whose} does not balance: {counts}")
    return {"issued": issued, **{outcome: ledger[outcome] for outcome in OUTCOMES}}


def check_batches_taken(taken: Iterable[int], batches: int, complete: bool = True) -> None:
    """Every batch of a pass was trained on exactly once, or at most once where that pass is not `complete`; an error names those
    that were not."""
    counts = Counter(taken)
    wrong = {
        "never": (index for index in range(batches) if complete and not counts[index]),
        "more than once": (index for index, count in sorted(counts.items()) if count > 1),
        "though there are none": (index for index in sorted(counts) if not 0 <= index < batches),
    }
    for how, which in wrong.items():
        if some := list(islice(which, 5)):
            raise LockstepError(f"of {batches} batches, these were trained on {how}: {some} (at most five are named)")


def digest(final: dict[str, Any]) -> str:
    """sha256 over named arrays in canonical order: names sorted, each array with its type and shape."""
    result = hashlib.sha256()
    for name, array in sorted(_arrays("", final)):
        array = np.ascontiguousarray(array)
        result.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        result.update(array.tobytes())
    return result.hexdigest()


def _arrays(name: str, thing: Any):
    if isinstance(thing, dict):
        for inner, value in thing.items():
            yield from _arrays(f"{name}/{inner}", value)
    elif is_dataclass(thing):
        for field in fields(thing):
            yield from _arrays(f"{name}/{field.name}", getattr(thing, field.name))
    else:
        yield name, thing
