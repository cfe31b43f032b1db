"""Random weather: what nobody would think of, held against the guarantees of the kit. `python -m tests.soak`.

Of runs: each is made twice, and stopped at a random moment and resumed; `tests.soak.checks` says what must hold. Of pipelines:
what their histories show besides, `tests.soak.pipelines`; of histories: the same of pipelines whose calls of the store meet on
threads, six and more at once. Of the store: several threads call one table, `tests.soak.tables`. A
case that breaks something is made as small as it gets and printed as a call that can be pasted.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from lib.progress import Progress
from tests.soak import cases, checks, pipelines, tables
from tests.soak.cases import Case
from tests.soak.checks import Finding, Refused
from tests.soak.shrink import shrink

SHRINKING = 60.0
"""Seconds that are spent on making one case smaller."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What cases are cases of."""

    draw: Callable[[int, int, str], Case]
    """Of seed, number and cluster."""
    named: Callable[[Case], str]
    """What they are counted by."""
    check: Callable[[Case], Finding | None]
    """What a case breaks; `Refused` where it is none."""
    call: Callable[[Case, Finding], str]
    """The case as a call that can be pasted."""
    tries: int = 1
    """How often one is tried before it is taken to break nothing any more; 0: cases are not made smaller."""


KINDS = {
    "runs": Kind(draw=cases.draw, named=cases.protocols_of, check=checks.check, call=checks.call),
    "pipelines": Kind(draw=pipelines.draw, named=cases.protocols_of, check=checks.check, call=pipelines.call),
    "histories": Kind(draw=pipelines.busy, named=cases.protocols_of, check=checks.check, call=pipelines.call, tries=0),
    "store": Kind(draw=tables.draw, named=tables.named, check=tables.check, call=tables.call, tries=tables.TRIES),
}


@dataclass(kw_only=True)
class Soaked:
    """What became of some cases."""

    kind: Kind
    runs: Counter[str] = field(default_factory=Counter)
    """Cases by what they are named, as by their protocol."""
    refused: Counter[str] = field(default_factory=Counter)
    """Cases that were none, by what was said of them."""
    findings: dict[str, list[tuple[int, Case, Finding]]] = field(default_factory=dict)
    """By kind: number, case and what it broke; the first of each kind made small."""

    def told(self) -> Iterator[str]:
        """The report, line by line."""
        yield from (f"{name:40}{count}" for name, count in self.runs.most_common())
        yield from (f"refused {count}: {why}" for why, count in self.refused.most_common())
        for kind, found in sorted(self.findings.items(), key=lambda item: -len(item[1])):
            yield f"\n{len(found)} x {kind}; cases {', '.join(str(number) for number, _, _ in found[:10])}"
            _, case, finding = found[0]
            yield f"{finding.detail}\n{self.kind.call(case, finding)}"
        yield f"{sum(self.runs.values())} cases, {sum(map(len, self.findings.values()))} findings"


def soak(
    seed: int, runs: int, cluster: str = "virtual", *, of: str = "runs", first: int = 0, seconds: float | None = None
) -> Soaked:
    """Check so many cases, from the first on; no more once so many seconds are over, or after Ctrl-C."""
    soaked, until = Soaked(kind=KINDS[of]), seconds and time.monotonic() + seconds
    title = f"soak {of} {cluster}"
    # Ctrl-C ends it, and what was found until then is told.
    with _somewhere(), _started(cluster), Progress(runs, title, "cases") as progress, suppress(KeyboardInterrupt):
        for number in range(first, first + runs):
            if until and time.monotonic() > until:
                break
            _take(soaked, number, soaked.kind.draw(seed, number, cluster))
            progress.advance(1)
    return soaked


def _take(soaked: Soaked, number: int, case: Case) -> None:
    kind = soaked.kind
    try:
        finding = kind.check(case)
    except Refused as error:
        soaked.refused[str(error).split("\n")[0][:100]] += 1
        return
    soaked.runs[kind.named(case)] += 1
    if finding is None:
        return
    if finding.kind not in soaked.findings:
        case, finding = shrink(case, finding, _tried(kind), SHRINKING)
    soaked.findings.setdefault(finding.kind, []).append((number, case, finding))


def _tried(kind: Kind) -> Callable[[Case], Finding | None]:
    def tried(case: Case) -> Finding | None:
        try:
            return next(filter(None, (kind.check(case) for _ in range(kind.tries))), None)
        except Refused:
            return None

    return tried


@contextmanager
def _started(cluster: str) -> Iterator[None]:
    """Ray starts once for all cases, which takes longer than each of them."""
    if cluster != "ray":
        yield
        return
    import ray

    ray.init("local", include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _somewhere() -> Iterator[None]:
    """Cuts go to a folder of their own."""
    before = os.environ.get("LOCKSTEP_REPORTS")
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        os.environ["LOCKSTEP_REPORTS"] = folder
        try:
            yield
        finally:
            os.environ.pop("LOCKSTEP_REPORTS")
            if before is not None:
                os.environ["LOCKSTEP_REPORTS"] = before
