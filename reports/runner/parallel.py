"""Notebooks side by side, each in a process of its own; those that measure this machine after the others, alone.

At smoke a notebook spends its time on imports, a kernel's start and short runs, which keep one core busy: so many are under way
as there are cores, each with one process and one thread. Longer profiles spend it in sweeps, which use all cores themselves.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from joblib import cpu_count

from lib import paths
from lib.errors import LockstepError
from lib.progress import Progress
from reports.runner import execution as running
from reports.runner.notebook_files import Experiment

CHILD = "from reports.runner import parallel; parallel.child()"
ONE = {"LOCKSTEP_PROCESSES": "1", "OMP_NUM_THREADS": "1"}


def run_together(
    chosen: Sequence[Experiment],
    profile: str,
    parameters: Mapping[str, Any] | None = None,
    resume: bool = False,
    finished: Callable[[Experiment], Any] = lambda experiment: None,
) -> list[str]:
    """Run notebooks; what failed, in words. Who is `finished` is said as soon as it is, of one after another."""
    lanes = cpu_count() if profile == "smoke" else 1
    failures: list[str] = []
    under_way: set[subprocess.Popen] = set()
    stopped = threading.Event()

    def one(experiment: Experiment, more: Mapping[str, str]) -> tuple[Experiment, int, str]:
        """A notebook in a process of its own: how that ended, and what it said."""
        if stopped.is_set():
            return experiment, 0, ""
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", CHILD, json.dumps([experiment.name, profile, parameters, resume])],
            env={**os.environ, **paths.environment(), **more},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        under_way.add(process)
        if stopped.is_set():
            process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
        under_way.discard(process)
        return experiment, process.returncode, said.strip()

    def tell(experiment: Experiment, code: int, said: str) -> None:
        if code:
            failures.append((said.partition("error: ")[2] or said).strip())
        else:
            if said:
                print(said, file=sys.stderr)
            try:
                finished(experiment)
            except LockstepError as error:
                failures.append(str(error))
        progress.advance(1)

    with Progress(len(chosen), f"{len(chosen)} notebooks", "notebooks") as progress:
        pool = ThreadPoolExecutor(lanes)
        try:
            more = ONE if lanes > 1 else {}
            for future in as_completed([pool.submit(one, each, more) for each in chosen if not each.alone]):
                tell(*future.result())
            for each in chosen:
                if each.alone:
                    tell(*pool.submit(one, each, {}).result())
        except BaseException:
            stopped.set()
            for process in list(under_way):
                process.send_signal(signal.SIGINT)
            raise
        finally:
            pool.shutdown(cancel_futures=True)
    return failures


def child() -> None:
    """What a process does that was started for one notebook; its page is made where all are."""
    try:
        running.run(*json.loads(sys.argv[1]))
    except LockstepError as error:
        sys.exit(f"error: {error}")
