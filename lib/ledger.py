"""The gradient ledger: every gradient that was issued is applied, decayed, dropped, lost, or in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from lib.drivers.record import Record
from lib.errors import LockstepError

OUTCOMES = ("applied", "decayed", "dropped", "lost", "in_flight")


def settle(records: Iterable[Record]) -> dict[str, int]:
    """The run's ledger; an error if any part's books do not balance.

    A gradient is a batch's. Its outcome is decided where the dense parameters are: at the first server, or on the worker
    that keeps a replica. Every other server that got a share of each gradient must come to the same total.
    """
    records = list(records)
    issued = sum(record.ledger["issued"] for record in records)
    servers = [
        record for record in records if record.ledger and not record.ledger["issued"] and "dense" in record.final
    ]
    workers = Counter()
    for record in records:
        if record.ledger["issued"]:
            workers.update({outcome: record.ledger[outcome] for outcome in OUTCOMES})
    books = [Counter(server.ledger) for server in servers] or [workers]
    for server in records:
        if "rows" in server.final and "dense" not in server.final and any(server.ledger[o] for o in OUTCOMES[:3]):
            books.append(Counter(server.ledger))
    for book in books:
        total = sum(book[outcome] for outcome in OUTCOMES)
        if total != issued:
            raise LockstepError(
                f"the gradient ledger does not balance: issued {issued}, accounted for {total}: {dict(book)}"
            )
    return {"issued": issued, **{outcome: books[0][outcome] for outcome in OUTCOMES}}
