"""A few threads that wait for work: half of a kernel's work each. Numba's own threads would not let two tables work at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_helpers: list[SimpleQueue] = []
_born = 0
_growing = threading.Lock()


def together(work: Callable[[int], Any], parts: int) -> list[Any]:
    """work(0), ..., work(parts - 1), each in a thread of its own, the first in the caller's; the first error is raised."""
    if parts == 1:
        return [work(0)]
    done: SimpleQueue = SimpleQueue()
    for part, helper in enumerate(_at_least(parts - 1), 1):
        helper.put((work, part, done))
    results: list[Any] = [None] * parts
    errors = []
    try:
        results[0] = work(0)
    except BaseException as error:
        errors.append(error)
    for _ in range(parts - 1):
        part, result, error = done.get()
        results[part] = result
        if error is not None:
            errors.append(error)
    if errors:
        raise errors[0]
    return results


def _at_least(number: int) -> list[SimpleQueue]:
    global _born, _helpers
    if len(_helpers) < number or _born != os.getpid():
        with _growing:
            if _born != os.getpid():  # a forked child has no threads but its own
                _born, _helpers = os.getpid(), []
            while len(_helpers) < number:
                queue: SimpleQueue = SimpleQueue()
                threading.Thread(target=_serve, args=(queue,), name="store", daemon=True).start()
                _helpers.append(queue)
    return _helpers[:number]


def _serve(queue: SimpleQueue) -> None:
    while True:
        work, part, done = queue.get()
        try:
            done.put((part, work(part), None))
        except BaseException as error:
            done.put((part, None, error))
        del work, done  # nothing stays alive while this thread waits
