"""A case, run and held against what the kit guarantees."""

import _thread
import os
import re
import signal
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import lib
from lib import streams
from lib.errors import BadOption, Deadlock, NodeLost, NotFinite
from lib.results.run import Run
from lib.training.train import Job
from tests.soak import pipelines
from tests.soak.cases import Case

APART = ("workload", "protocol", "cluster")
"""What is no keyword of a case's call."""
HANG = {"virtual": 30.0, "local": 60.0, "ray": 180.0}
"""Seconds after which a run of a case is taken to hang, where no more processes want a core than there are."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A guarantee that a case broke."""

    kind: str
    """The same for cases that break it alike."""
    detail: str
    stopped: tuple[int, ...] = ()
    """The samples after which the run was stopped each time before it was resumed."""


class Refused(Exception):
    """The case is none: it asks for what the documentation says cannot be, in these words."""


class Stopped(Exception):
    """The run is to end here, as if its process had."""


class _Broken(Exception):
    """A check failed: its kind and what was found."""


def check(case: Case) -> Finding | None:
    """What the case breaks, if anything; `Refused` where it cannot be asked for."""
    stops: list[int] = []
    try:
        _check(case, stops)
    except _Broken as error:
        return Finding(kind=error.args[0], detail=error.args[1], stopped=tuple(stops))
    except Exception as error:
        _accept(error, case)
        return Finding(kind=_kind(error), detail=_told(error), stopped=tuple(stops))
    return None


def call(case: Case, finding: Finding | None = None) -> str:
    """The case as a call that can be pasted."""
    named = {name: _spelled(value) for name, value in case.items() if name not in APART}
    protocol = case["protocol"]
    protocol = repr(protocol) if isinstance(protocol, str) else f"lib.Schedule({_keywords(protocol)})"
    text = f"lib.train({case['workload']!r}, {protocol}, {case['cluster']!r}, save=False, {_keywords(named)})"
    if finding and finding.stopped:
        text += f"  # stopped after {' and '.join(map(str, finding.stopped))} samples, then with resume=True"
    return text


def _check(case: Case, stops: list[int]) -> None:
    """Run it twice, then stop it once or twice and resume it."""
    whole = _run(case)
    _sound(case, whole)
    if case["cluster"] == "virtual":
        _same("again", _run(case), whole)
    if "checkpoint_every" not in case:
        return
    draw = streams.stream(case["seed"], "stop", case["samples"])
    for _ in range(draw.integers(1, 3)):
        stops.append(int(draw.integers(1, max(2, 1 + case["samples"] - sum(stops)))))
        _run(case, stop=stops[-1], resume=len(stops) > 1)
    resumed = _run(case, resume=True)
    _sound(case, resumed)
    if case["cluster"] == "virtual":
        _same("resumed", resumed, whole)
        return
    # A gradient that is skipped has no staleness, and on threads other ones are skipped each time.
    for name in {"staleness_mean", "sync_gap"} & set(whole.history if case.get("on_nan") != "skip" else ()):
        there, before = (run.history[name].notna().sum() for run in (resumed, whole))
        _hold(there >= before // 3, "resumed: rows without a number", f"{name}: {there} of {before}")


def _run(case: Case, *, stop: int | None = None, resume: bool = False) -> Run | None:
    """The case's run; None where it is stopped before."""
    seen = 0

    def progress(samples: int) -> None:
        nonlocal seen
        before, seen = seen, seen + samples
        if stop is not None and before < stop <= seen:
            raise Stopped

    job = _job(case, resume=resume)
    try:
        with warnings.catch_warnings(), _awake(HANG[case["cluster"]]), pipelines.stirred(case):
            warnings.simplefilter("ignore", UserWarning)  # it may have been stopped before its first checkpoint
            return job.run(progress)
    except Stopped:
        return None


def _job(case: Case, **options: Any) -> Job:
    given = {**case, "save": False, **options}
    for name in ("detour", "hesitation", "wide"):  # none of the run's own
        given.pop(name, None)
    if not isinstance(given["protocol"], str):
        given["protocol"] = lib.Schedule(**given["protocol"])
    try:
        return Job.of(given.pop("workload"), given.pop("protocol"), given.pop("cluster"), **given)
    except (BadOption, TypeError, KeyError) as error:
        raise Refused(str(error)) from error


def _accept(error: Exception, case: Case) -> None:
    """Raise what is no finding: an error that says what is wrong with the case itself."""
    for_ever = [each for each in case.get("failures", ()) if each["kind"] == "dies" and "lasts" not in each]
    accepted: dict[type[Exception], Callable[[], bool]] = {
        # A composition that a driver refuses before its first step.
        BadOption: lambda: True,
        # Nodes that die for ever, and nobody is left.
        NodeLost: lambda: bool(for_ever),
        # Huge steps, unless such batches are to be left out.
        NotFinite: lambda: case.get("on_nan") != "skip",
        Refused: lambda: True,
    }
    for kind, because in accepted.items():
        if isinstance(error, kind) and because():
            raise Refused(str(error)) from error


def _sound(case: Case, run: Run) -> None:
    """What holds of every run, on any cluster."""
    for stage in run.summary.get("stages", [run.summary]):
        sums = sum(stage[each] for each in ("applied", "decayed", "dropped", "lost", "in_flight"))
        _hold(stage["issued"] == sums, "ledger", f"{stage['issued']} issued, {sums} accounted for")
        for each in ("decayed", "dropped"):  # those of a worker that was lost are nobody's
            known = sum(worker[each] for worker in stage["by_worker"].values())
            exact = known == stage[each] or (case.get("failures") and known < stage[each])
            _hold(bool(exact), "gradients by worker", f"{each}: {known} of {stage[each]}")
    computed = Counter(run.trace.loc[run.trace["kind"] == "compute", "batch"])
    twice = sorted(batch for batch, times in computed.items() if times > 1)
    _hold(not twice, "batches computed twice", str(twice[:5]))
    _hold(run.summary["samples"] <= case["samples"], "more samples than there are", str(run.summary["samples"]))
    if not any(each["kind"] != "slows" for each in case.get("failures", ())) and case.get("on_nan") != "skip":
        _hold(run.summary["samples"] == case["samples"], "samples left out", str(run.summary["samples"]))
    if "accesses" in case:
        for kind, detail in pipelines.wrong(_job(case).staged_run.plan, run):
            raise _Broken(kind, detail)
        if (calls := pipelines.calls_at_once(run)) < (least := case.get("wide", 0)):
            raise Refused(f"at most {calls} calls of a table met, and not {least}")
    seconds = run.summary[f"{run.summary['clock']}_seconds"]
    times = run.history["time"].to_numpy() if len(run.history) else np.empty(0)
    _hold(np.isfinite(times).all(), "history without a time", str(times))
    _hold(
        times.size == 0 or -1e-9 <= times.min() <= times.max() <= seconds + 1e-9, "history beyond the run", str(times)
    )


def _same(how: str, one: Run, other: Run) -> None:
    """Two runs are the same to the bit."""
    for name in ("history", "trace", "usage"):
        try:
            pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name), check_exact=True)
        except AssertionError as error:
            raise _Broken(f"{how}: another {name}", " ".join(str(error).split())) from None
    _hold(one.digest == other.digest, f"{how}: another digest", f"{one.digest[:12]} and {other.digest[:12]}")
    for name in {*one.summary, *other.summary}:
        try:
            np.testing.assert_equal(one.summary.get(name), other.summary.get(name))
        except AssertionError as error:
            raise _Broken(f"{how}: another summary", f"{name}: {' '.join(str(error).split())}") from None


def _hold(holds: bool, kind: str, detail: str) -> None:
    if not holds:
        raise _Broken(kind, detail)


@contextmanager
def _awake(limit: float) -> Iterator[None]:
    """A hang ends in an error, as if somebody had pressed Ctrl-C, which jobs in the background ignore."""
    start, late, over = time.monotonic(), threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            if time.monotonic() - start > limit * max(1.0, os.getloadavg()[0] / os.cpu_count()):
                late.set()
                _thread.interrupt_main(signal.SIGUSR1)
                return

    watching = threading.Thread(target=watch, daemon=True)
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    watching.start()
    try:
        yield
    except KeyboardInterrupt:
        if late.is_set():
            raise _Broken("hang", f"not done after {time.monotonic() - start:.0f} s") from None
        raise
    finally:
        over.set()
        watching.join()
        signal.signal(signal.SIGUSR1, before)


def _kind(error: Exception) -> str:
    """The error's class, and where in the kit it came from or what it says."""
    said = re.sub(r"[\d.]+", "#", str(error).split("\n")[0])
    if isinstance(error, Deadlock):
        return "Deadlock"
    ours = [f for f in traceback.extract_tb(error.__traceback__) if "lib" in Path(f.filename).parts[-4:-1]]
    place = f"{Path(ours[-1].filename).stem}.{ours[-1].name}" if ours else ""
    return f"{type(error).__name__} in {place}: {said[:60]}"


def _told(error: Exception) -> str:
    return "".join(traceback.format_exception(error))[-3000:]


def _spelled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _keywords(named: Case) -> str:
    """As keywords; what is no name, as `worker.flops`, in a mapping."""
    plain = ", ".join(f"{name}={value!r}" for name, value in named.items() if "." not in name)
    dotted = {name: value for name, value in named.items() if "." in name}
    return f"{plain}, **{dotted!r}" if dotted else plain
