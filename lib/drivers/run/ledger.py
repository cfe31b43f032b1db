"""The gradient ledger: every gradient that was issued is applied, decayed, dropped, lost, or in flight.

At the rows' servers behind embedding workers a gradient may also be abandoned: its batch's ids were lost with an embedding
worker. Its dense part has an outcome of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from lib.drivers.run.record import PartLog
from lib.errors import LockstepError

OUTCOMES = ("applied", "decayed", "dropped", "lost", "in_flight")


def settle(records: Iterable[PartLog], undone: int = 0) -> dict[str, int]:
    """The run's ledger; an error if any part's books do not balance, or a batch's gradient was used twice.

    A gradient is a batch's. Its outcome is decided where the dense parameters are: at the first server, or on the worker
    that keeps a replica. A server counts a gradient as issued when it lets the worker start, a worker when it has computed
    it; they agree unless a worker was lost in between. `undone` were issued and lost when the run returned to a cut.

    Where there are embedding workers, `abandoned` is what the rows never got, by the server that missed most.
    """
    records = list(records)
    for record in records:
        if twice := [batch for batch, times in Counter(record.used).items() if times > 1]:
            raise LockstepError(f"{record.node} used the gradients of these batches more than once: {twice[:5]}")
    books = [
        _book(record.node, record.ledger["started"], record.ledger)
        for record in sorted(records, key=lambda record: "dense" not in record.final)
        if record.ledger["started"]
    ]
    workers = sum((record.ledger for record in records if record.ledger["issued"]), Counter())
    if workers and not any("dense" in record.final and record.ledger["started"] for record in records):
        books.insert(0, _book("the workers", workers["issued"], workers))
    for book in books:
        unheard = workers["issued"] - book["issued"]
        if not any(other["lost"] for other in books) and unheard:
            raise LockstepError(
                f"the gradient ledger does not balance: {book['issued']} started, {workers['issued']} computed"
            )
    whole = books[0] if books else _book("nobody", 0, Counter())
    held = any(record.ledger["samples held"] for record in records)
    abandoned = {"abandoned": max(record.ledger["abandoned"] for record in records)} if held else {}
    return {**whole, **abandoned, "issued": whole["issued"] + undone, "lost": whole["lost"] + undone}


def _book(whose: str, issued: int, ledger: Counter) -> dict[str, int]:
    total = sum(ledger[outcome] for outcome in (*OUTCOMES, "abandoned"))
    if total != issued:
        raise LockstepError(
            f"the gradient ledger of {whose} does not balance: issued {issued}, accounted for {total}: {dict(ledger)}"
        )
    return {"issued": issued, **{outcome: ledger[outcome] for outcome in OUTCOMES}}
