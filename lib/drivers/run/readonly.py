"""Calls of a rule's hooks: arrays that a hook can neither change nor keep by mistake, and answers of the right form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from lib.errors import BadOption
from lib.protocols.rule import Rule


def readonly(array: np.ndarray) -> np.ndarray:
    """Return a read-only view."""
    view = array.view()
    view.flags.writeable = False
    return view


@contextmanager
def writes_refused(rule: Rule, method: str) -> Iterator[None]:
    """Explain the error of a hook that writes into a read-only array."""
    try:
        yield
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise BadOption(
            f"{rule.name}: {method} writes into an array that it is given; work on a copy of it (mine.copy()) and return that"
        ) from error


def checked_pair(rule: Rule, method: str, what: str, answer: Any) -> tuple[Any, np.ndarray]:
    """Refuse an answer that is no pair: an array of two numbers would unpack as silently as two arrays."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], np.ndarray):
        raise BadOption(f"{rule.name}: {method} must return two things, {what}; it gave {type(answer).__name__}")
    return answer


def without_views(memory: Any, live: np.ndarray) -> Any:
    """A rule's memory, with a copy in place of each view of the live vector, which goes on changing."""
    if isinstance(memory, np.ndarray):
        return memory.copy() if np.may_share_memory(memory, live) else memory
    if isinstance(memory, (tuple, list)) and type(memory) in (tuple, list):
        return type(memory)(without_views(each, live) for each in memory)
    if isinstance(memory, dict):
        return {name: without_views(each, live) for name, each in memory.items()}
    return memory
