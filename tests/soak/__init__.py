"""Random cases, each checked against what the kit guarantees: `python -m tests.soak`.

Of runs: each is made twice, and stopped at a random moment and resumed; `tests.soak.checks` says what must hold. Of pipelines:
also what their histories show, `tests.soak.pipelines`; of histories: the same of pipelines whose calls of the store overlap on
threads, four and more at once. Hypothesis draws the cases; one
that breaks something is made as small as it gets and printed as a call that can be pasted.
"""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.strategies import SearchStrategy

from lib.progress import Progress
from tests.soak import cases, checks, pipelines
from tests.soak.cases import Case
from tests.soak.checks import Finding, Refused


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a case is a case of."""

    cases: Callable[[str], SearchStrategy[Case]]
    """Those on a cluster."""
    named: Callable[[Case], str]
    """The name that a case is counted under."""
    check: Callable[[Case], Finding | None]
    """What a case breaks; `Refused` where it asks for what cannot be."""
    call: Callable[[Case, Finding], str]
    """The case as a call that can be pasted."""


KINDS = {
    "runs": Kind(cases=cases.cases, named=cases.protocols_of, check=checks.check, call=checks.call),
    "pipelines": Kind(cases=pipelines.cases, named=cases.protocols_of, check=checks.check, call=pipelines.call),
    "histories": Kind(cases=pipelines.busy, named=cases.protocols_of, check=checks.check, call=pipelines.call),
}


class Found(AssertionError):
    """A case broke a guarantee."""

    def __init__(self, finding: Finding, call: str):
        super().__init__(f"{finding.kind}\n{finding.detail}\n{call}")
        self.finding = finding


def soak(
    seed: int,
    runs: int,
    cluster: str = "virtual",
    *,
    of: str = "runs",
    seconds: float | None = None,
    shrink: bool = True,
) -> Counter[str]:
    """Check so many cases, and begin none after so many seconds; how many there were of each name, `refused` among them. `Found`
    has the first that breaks something, as small as it gets."""
    kind, counts, until = KINDS[of], Counter(), seconds and time.monotonic() + seconds
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)

    shown = {"database": None, "deadline": None, "report_multiple_bugs": False, "print_blob": False}

    @hypothesis.seed(seed)
    @settings(max_examples=runs, phases=phases, suppress_health_check=[*HealthCheck], **shown)
    @hypothesis.given(kind.cases(cluster))
    def holds(case: Case) -> None:
        if until and time.monotonic() > until:
            return
        try:
            finding = kind.check(case)
        except Refused as error:
            counts[f"refused: {str(error).splitlines()[0][:100]}"] += 1
            hypothesis.reject()
        counts[kind.named(case)] += 1
        progress.advance(1)
        if finding is not None:
            raise Found(finding, kind.call(case, finding))

    with _own_folder(), _started(cluster), Progress(runs, f"soak {of} {cluster}", "cases") as progress:
        holds()
    return counts


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
def _own_folder() -> Iterator[None]:
    """Checkpoints go to a folder of their own."""
    before = os.environ.get("LOCKSTEP_REPORTS")
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        os.environ["LOCKSTEP_REPORTS"] = folder
        try:
            yield
        finally:
            os.environ.pop("LOCKSTEP_REPORTS")
            if before is not None:
                os.environ["LOCKSTEP_REPORTS"] = before
