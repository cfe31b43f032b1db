"""What a server rule decides, held against its contract before it is carried out: a slip would train something else, unsaid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lib.drivers.replicas.lent import lending, lent
from lib.drivers.run.plan import Plan
from lib.errors import BadOption
from lib.protocols.server_rule import Apply, Decisions, Drop, Push, ServerRule, ServerState


def received(rule: ServerRule, before: ServerState, push: Push, answer: Any) -> tuple[ServerState, Decisions]:
    """What `on_push` gave, if it took the push."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], ServerState):
        raise BadOption(
            f"{rule.name}: on_push must return the new state and a tuple of decisions; it gave {answer!r:.80}"
        )
    if answer[0].clocks[push.worker] != before.clocks[push.worker] + 1:
        raise BadOption(
            f"{rule.name}: on_push does not count the gradient of worker {push.worker}: begin with state.receive(push)"
        )
    return answer


def check(
    rule: ServerRule, before: ServerState, after: ServerState, decisions: Any, waiting: Mapping[Push, Any]
) -> None:
    """Each push once, in an update that can be made; and the state knows what was decided."""
    if not isinstance(decisions, tuple) or not all(isinstance(each, (Apply, Drop)) for each in decisions):
        raise BadOption(
            f"{rule.name}: decisions are a tuple of Apply and Drop, () where there are none; got {decisions!r:.80}"
        )
    if decisions:
        pushes = [push for decision in decisions for push in decision.pushes]
        if len({*pushes}) < len(pushes) or not waiting.keys() >= {*pushes}:
            raise BadOption(f"{rule.name}: decides twice of a push, or of one that is not there: {pushes!r:.120}")
        for decision in decisions:
            if isinstance(decision, Apply):
                _check_update(rule, decision)
    decided = sum(len(decision.pushes) for decision in decisions)
    if len(after.held) != len(waiting) - decided:
        raise BadOption(
            f"{rule.name}: the state holds {len(after.held)} pushes where {len(waiting) - decided} are not decided yet; hold a "
            "push by state.receive(push), and let go of what is applied by state.release()"
        )
    updates = sum(isinstance(decision, Apply) for decision in decisions)
    if after.step != before.step + updates:
        raise BadOption(
            f"{rule.name}: {updates} updates take the state from step {before.step} to {after.step}; state.release() counts each"
        )


def correction(
    rule: ServerRule, gradient: np.ndarray, now: np.ndarray, read: np.ndarray, memory: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """What an update takes, and what is remembered; the rule is lent what lives."""
    with lending(rule, "corrected"):
        answer = rule.corrected(lent(gradient), lent(now), lent(read), lent(memory))
    shapes = [np.shape(each) for each in answer if each is not None] if isinstance(answer, tuple) else []
    if shapes not in ([gradient.shape], [gradient.shape] * 2) or len(answer) != 2 or answer[0] is None:
        raise BadOption(
            f"{rule.name}: corrected must return two things, gradient and memory (or None), each of shape {gradient.shape}; it "
            f"gave {type(answer).__name__} of {shapes}"
        )
    return answer


def check_cache(rule: ServerRule, plan: Plan) -> None:
    """Refuse a cache where a worker's copy would not be what its gradients are computed from."""
    if not isinstance(rule.cache_steps, int) or rule.cache_steps < 0:
        raise BadOption(f"{rule.name}: cache_steps must be a number of steps, 0 or more, not {rule.cache_steps!r}")
    obstacles = {
        "compensate": rule.corrected is not None,
        "reading ahead": rule.ahead > 0,
        "embedding workers": plan.embedding_workers > 0,
        "store.pooling='server'": bool(plan.pooled),
    }
    if rule.cache_steps and any(obstacles.values()):
        first = next(name for name, stands in obstacles.items() if stands)
        raise BadOption(f"{rule.name}: its workers train on a cached copy, which does not go with {first}")


def settled(rule: ServerRule, state: ServerState, waiting: int) -> None:
    """At the end of a run: a rule that never decided of anything has trained nothing."""
    if waiting and not state.step and not state.active and waiting == sum(state.clocks):
        raise BadOption(
            f"{rule.name}: on_push never decided what becomes of a gradient, and {waiting} are held at the end: return (Apply("
            "...),) when there are enough, and what is left when the last worker leaves (on_leave)"
        )


def _check_update(rule: ServerRule, update: Apply) -> None:
    if len(update.weights) != len(update.pushes) or not all(map(math.isfinite, update.weights)):
        raise BadOption(f"{rule.name}: an update needs a finite weight for each of its pushes, not {update.weights}")
    if not (update.divisor > 0 and math.isfinite(update.divisor)):
        raise BadOption(f"{rule.name}: an update's divisor must be a positive number, not {update.divisor}")
    if not (update.rate >= 0 and math.isfinite(update.rate)):
        raise BadOption(f"{rule.name}: an update's rate is a factor of the learning rate, 0 or more, not {update.rate}")
