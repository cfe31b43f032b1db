"""What a replica rule is lent: arrays that it can neither change nor keep by mistake; and answers in the form that was asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from lib.errors import BadOption
from lib.protocols.rule import Rule


def lent(array: np.ndarray) -> np.ndarray:
    """The same values, read-only."""
    view = array.view()
    view.flags.writeable = False
    return view


@contextmanager
def lending(rule: Rule, method: str) -> Iterator[None]:
    """An attempt to write into what is lent is told as what it is."""
    try:
        yield
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise BadOption(
            f"{rule.name}: {method} writes into an array that it is given; work on a copy of it (mine.copy()) and return that"
        ) from error


def pair(rule: Rule, method: str, what: str, answer: Any) -> tuple[Any, np.ndarray]:
    """An array of two numbers would come apart as silently as two arrays."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], np.ndarray):
        raise BadOption(f"{rule.name}: {method} must return two things, {what}; it gave {type(answer).__name__}")
    return answer


def kept(memory: Any, live: np.ndarray) -> Any:
    """What a rule remembers, with a copy in the place of each view of the live vector, which goes on changing."""
    if isinstance(memory, np.ndarray):
        return memory.copy() if np.may_share_memory(memory, live) else memory
    if isinstance(memory, (tuple, list)) and type(memory) in (tuple, list):
        return type(memory)(kept(each, live) for each in memory)
    if isinstance(memory, dict):
        return {name: kept(each, live) for name, each in memory.items()}
    return memory
