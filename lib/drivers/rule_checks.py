"""Checks of a rule's answers against its contract: a slip would train something else in silence.

Hooks are given arrays that they can neither change nor keep by mistake."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from lib.device_array import DeviceArray
from lib.errors import BadOption
from lib.protocols.rule import Rule
from lib.protocols.server_rule import ServerRule


def compensate_checked(
    rule: ServerRule, gradient: np.ndarray, now: np.ndarray, read: np.ndarray, memory: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the rule's compensated gradient and its new memory; the rule gets read-only views."""
    with explain_refused_writes(rule, "compensate"):
        answer = rule.compensate(readonly(gradient), readonly(now), readonly(read), readonly(memory))
    shapes = [np.shape(each) for each in answer if each is not None] if isinstance(answer, tuple) else []
    if shapes not in ([gradient.shape], [gradient.shape] * 2) or len(answer) != 2 or answer[0] is None:
        raise BadOption(
            f"{rule.name}: compensate must return two things, gradient and memory (or None), each of shape {gradient.shape}; it "
            f"gave {type(answer).__name__} of {shapes}"
        )
    return answer


def readonly(array: np.ndarray) -> np.ndarray:
    """Return a read-only view; of an array on a device itself, which has no such views."""
    if isinstance(array, DeviceArray):
        return array
    view = array.view()
    view.flags.writeable = False
    return view


@contextmanager
def explain_refused_writes(rule: Rule, method: str) -> Iterator[None]:
    """Explain the error of a hook that writes into a read-only array."""
    try:
        yield
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise BadOption(
            f"{rule.name}: {method} writes into an array that it is given; work on a copy of it (mine.copy()) and return that"
        ) from error


def check_pair(rule: Rule, method: str, what: str, answer: Any) -> tuple[Any, np.ndarray]:
    """Refuse an answer that is no pair: an array of two numbers would unpack as silently as two arrays."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], (np.ndarray, DeviceArray)):
        raise BadOption(f"{rule.name}: {method} must return two things, {what}; it gave {type(answer).__name__}")
    return answer


def without_views(memory: Any, live: np.ndarray) -> Any:
    """A rule's memory, with a copy instead of each view of the live vector, which goes on changing."""
    if isinstance(memory, DeviceArray):
        return memory.copy()
    if isinstance(memory, np.ndarray):
        return memory.copy() if np.may_share_memory(memory, live) else memory
    if isinstance(memory, (tuple, list)) and type(memory) in (tuple, list):
        return type(memory)(without_views(each, live) for each in memory)
    if isinstance(memory, dict):
        return {name: without_views(each, live) for name, each in memory.items()}
    return memory
