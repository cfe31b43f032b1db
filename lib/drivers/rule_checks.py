"""Checks of a rule's answers against its contract: a slip would train something else in silence.

Hooks are given arrays that they can neither change nor keep by mistake."""

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from lib.device_array import DeviceArray
from lib.drivers.plan import Plan
from lib.errors import BadOption
from lib.protocols.rule import Rule
from lib.protocols.server_rule import Apply, Decisions, Drop, Push, ServerRule, ServerState


def check_push(rule: ServerRule, before: ServerState, push: Push, answer: Any) -> tuple[ServerState, Decisions]:
    """Return the answer of `on_push` if it took the push."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], ServerState):
        raise BadOption(
            f"{rule.name}: on_push must return the new state and a tuple of decisions; it gave {answer!r:.80}"
        )
    if answer[0].clocks[push.worker] != before.clocks[push.worker] + 1:
        raise BadOption(
            f"{rule.name}: on_push does not count the gradient of worker {push.worker}: begin with "
            "state.receive(push), or with state.drop(push) if it is dropped on arrival"
        )
    return answer


def check_decisions(
    rule: ServerRule, before: ServerState, after: ServerState, decisions: Any, waiting: Collection[Push]
) -> None:
    """Check that each push is decided once, in an update that can be made, and that the state counts the decisions."""
    kinds = {*map(type, decisions)} if isinstance(decisions, tuple) else {None}
    if not kinds <= {Apply, Drop}:
        raise BadOption(
            f"{rule.name}: decisions are a tuple of Apply and Drop, () where there are none; got {decisions!r:.80}"
        )
    decided, updates = [], 0
    for decision in decisions:
        decided += decision.pushes
        if isinstance(decision, Apply):
            _check_update(rule, decision)
            updates += 1
    if decided and (len({*decided}) < len(decided) or not {*decided} <= {*waiting}):
        raise BadOption(f"{rule.name}: decides twice of a push, or of one that is not there: {decided!r:.120}")
    left = len(waiting) - len(decided)
    if len(after.pending) != left:
        raise BadOption(
            f"{rule.name}: the state holds {len(after.pending)} pushes where {left} are not decided yet; hold a "
            "push by state.receive(push), and let go of what is applied by state.release()"
        )
    if after.step != before.step + updates:
        raise BadOption(
            f"{rule.name}: {updates} updates take the state from step {before.step} to {after.step}; state.release() counts each"
        )


def check_end(rule: ServerRule, state: ServerState, waiting: int) -> None:
    """Refuse a rule that decided nothing in a whole run: it has trained nothing."""
    if waiting and not state.step and not state.active and waiting == sum(state.clocks):
        raise BadOption(
            f"{rule.name}: on_push never decided what becomes of a gradient, and {waiting} are held at the end: return (Apply("
            "...),) when there are enough, and what is left when the last worker leaves (on_leave)"
        )


def check_cache(rule: ServerRule, plan: Plan) -> None:
    """Refuse a cache where a worker's copy would not be what its gradients are computed from."""
    if not isinstance(rule.cache_steps, int) or rule.cache_steps < 0:
        raise BadOption(f"{rule.name}: cache_steps must be a number of steps, 0 or more, not {rule.cache_steps!r}")
    if rule.cache_steps and (rule.compensate or rule.pull_ahead or plan.embedding_workers or plan.bags_of_servers):
        raise BadOption(
            f"{rule.name}: its workers train on a cached copy, which goes with none of compensate, pull_ahead, "
            "embedding_workers and store.pooling='server'"
        )


def compensated(
    rule: ServerRule, gradient: np.ndarray, now: np.ndarray, read: np.ndarray, memory: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the rule's compensated gradient and its new memory; the rule gets read-only views."""
    with writes_refused(rule, "compensate"):
        answer = rule.compensate(readonly(gradient), readonly(now), readonly(read), readonly(memory))
    shapes = [np.shape(each) for each in answer if each is not None] if isinstance(answer, tuple) else []
    if shapes not in ([gradient.shape], [gradient.shape] * 2) or len(answer) != 2 or answer[0] is None:
        raise BadOption(
            f"{rule.name}: compensate must return two things, gradient and memory (or None), each of shape {gradient.shape}; it "
            f"gave {type(answer).__name__} of {shapes}"
        )
    return answer


def _check_update(rule: ServerRule, update: Apply) -> None:
    if len(update.weights) != len(update.pushes) or not all(map(math.isfinite, update.weights)):
        raise BadOption(f"{rule.name}: an update needs a finite weight for each of its pushes, not {update.weights}")
    if not (update.divisor > 0 and math.isfinite(update.divisor)):
        raise BadOption(f"{rule.name}: an update's divisor must be a positive number, not {update.divisor}")
    if not (update.rate >= 0 and math.isfinite(update.rate)):
        raise BadOption(f"{rule.name}: an update's rate is a factor of the learning rate, 0 or more, not {update.rate}")


def readonly(array: np.ndarray) -> np.ndarray:
    """Return a read-only view; of an array on a device itself, which has no such views."""
    if isinstance(array, DeviceArray):
        return array
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
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], (np.ndarray, DeviceArray)):
        raise BadOption(f"{rule.name}: {method} must return two things, {what}; it gave {type(answer).__name__}")
    return answer


def without_views(memory: Any, live: np.ndarray) -> Any:
    """A rule's memory, with a copy in place of each view of the live vector, which goes on changing."""
    if isinstance(memory, DeviceArray):
        return memory.copy()
    if isinstance(memory, np.ndarray):
        return memory.copy() if np.may_share_memory(memory, live) else memory
    if isinstance(memory, (tuple, list)) and type(memory) in (tuple, list):
        return type(memory)(without_views(each, live) for each in memory)
    if isinstance(memory, dict):
        return {name: without_views(each, live) for name, each in memory.items()}
    return memory
