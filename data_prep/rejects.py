"""Rows that are set aside: each with its file, line, column and reason; over a limit the run stops."""

import json
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lib.errors import LockstepError
from lib.paths import write_text_atomic

SHOWN = 500
"""Characters of a rejected row that are kept."""


class TooManyRejects(LockstepError, ValueError):
    """More rows were bad than the run allows."""


def reject(file: str, line: int | str, reason: str, text: bytes | str, column: str | None = None) -> dict[str, Any]:
    """One row that is set aside, as it stands in the rejects file. A line counts from 1; in JSON it is a path."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    return {"file": file, "line": line, "column": column, "reason": reason, "text": text[:SHOWN]}


class Limit:
    """Counts the rejects of all threads. `check` stops the run at the first one too many."""

    def __init__(self, limit: int, before: int = 0):
        self.limit, self.count = limit, before
        self._lock = threading.Lock()

    def check(self, rejects: Iterable[dict[str, Any]]) -> None:
        with self._lock:
            for row in rejects:
                self.count += 1
                if self.count > self.limit:
                    column = f", column {row['column']}" if row["column"] else ""
                    raise TooManyRejects(
                        f"more than {self.limit} bad rows; the last one: {row['file']}, line {row['line']}{column}: "
                        f"{row['reason']}: {row['text'][:80]!r}. If that is expected, raise --max-rejects"
                    )


def reasons(rejects: Iterable[dict[str, Any]]) -> dict[str, int]:
    return dict(sorted(Counter(row["reason"] for row in rejects).items()))


def write(path: Path, rejects: Iterable[dict[str, Any]]) -> None:
    """One JSON object a line, in the order of file and line."""
    write_text_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rejects))
