"""From a case that breaks something to the smallest that still breaks it alike: fewer options, smaller numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.soak.cases import WORKLOADS, Case
from tests.soak.checks import Finding

KEPT = frozenset({"workload", "protocol", "cluster", "samples", "name", "phases", "kind", "node", "rounds", "accesses"})
"""What a case cannot be without."""


def shrink(
    case: Case, finding: Finding, check: Callable[[Case], Finding | None], seconds: float
) -> tuple[Case, Finding]:
    """Greedily, for so long."""
    until = time.monotonic() + seconds
    smaller = _smaller(case)
    while time.monotonic() < until and (candidate := next(smaller, None)) is not None:
        found = check(candidate)
        if found and found.kind == finding.kind:
            case, finding, smaller = candidate, found, _smaller(candidate)
    return case, finding


def _smaller(case: Case) -> Iterator[Case]:
    small = {name: case[name] for name in (*WORKLOADS.get(case.get("workload"), ()), "worker.flops") if name in case}
    for less in _less({name: value for name, value in case.items() if name not in small}):
        yield {**less, **small}


def _less(value: Any) -> Iterator[Any]:
    """Values that are simpler, the simplest first."""
    if isinstance(value, dict):
        for name in [name for name in value if name not in KEPT]:
            yield {key: each for key, each in value.items() if key != name}
        for name, each in value.items():
            for less in _less(each):
                yield {**value, name: less}
    elif isinstance(value, list):
        for place in range(len(value)) if len(value) > 1 else ():
            yield value[:place] + value[place + 1 :]
        for place, each in enumerate(value):
            for less in _less(each):
                yield [*value[:place], less, *value[place + 1 :]]
    elif isinstance(value, bool):
        return
    elif isinstance(value, int):
        yield from sorted({number for number in (0, 1, value // 2, value - 1) if 0 <= number < value})
    elif isinstance(value, float):
        rounded = float(f"{value:.1g}")
        yield from (
            number for number in (0.0, 1.0, rounded) if number != value and len(repr(number)) < len(repr(value))
        )
