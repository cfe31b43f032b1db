"""Notebooks side by side, and after them, one by one, those that measure this machine.

At smoke a notebook spends its time on imports, a kernel's start and short runs, which keep one core busy: as many run at once
as there are cores, each with one process and one thread; and kernels are forked (`warm_kernel.py`). At longer profiles a
notebook's sweeps use all cores themselves.
"""

import faulthandler
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any

from joblib import Parallel, cpu_count, delayed

from lib import paths
from lib.errors import LockstepError
from lib.progress import UNEVEN, Progress
from reports.runner.execution import KernelDied, environment, run
from reports.runner.notebook_files import Experiment

WARM = {"JUPYTER_DEFAULT_PROVISIONER_NAME": "lockstep-warm"}
"""What a notebook's kernel inherits at smoke; pyproject.toml names the provisioner, which is in `warm_kernel.py`."""
ONE_CORE = {"LOCKSTEP_PROCESSES": "1", "OMP_NUM_THREADS": "1"}
"""And where other notebooks run at the same time."""
LIMIT = 1800.0
"""Seconds that a notebook may take at smoke, three times what `warm_kernel.LIMIT` gives each of its two kernels."""


def run_together(
    experiments: Sequence[Experiment],
    profile: str,
    parameters: Mapping[str, Any] | None = None,
    resume: bool = False,
    after: Callable[[Experiment], Any] = lambda experiment: None,
) -> list[str]:
    """Run notebooks, call `after` with each that succeeded as soon as it did, and return the failures' messages."""
    failures: list[str] = []
    with Progress(len(experiments), profile, "notebooks", line=UNEVEN) as progress:
        for alone in (False, True):
            jobs = 1 if alone or profile != "smoke" else cpu_count()
            own = (WARM if profile == "smoke" else {}) | (ONE_CORE if jobs > 1 else {})
            variables = {**os.environ, **paths.environment(), **own}
            group = {each.name: each for each in experiments if each.alone == alone}
            tasks = (delayed(_run)(variables, name, profile, parameters, resume) for name in group)
            workers = Parallel(n_jobs=jobs, batch_size=1, pre_dispatch="all", return_as="generator_unordered")
            try:
                for name, error, log in workers(tasks):
                    try:
                        if error:
                            raise error
                        print(log, end="", file=sys.stderr)
                        after(group[name])
                    except LockstepError as failure:
                        failures.append(str(failure))
                    progress.advance(1)
            except KeyboardInterrupt:
                with paths.temporary_folder(paths.reports(), "stage"):  # removes what the killed processes had begun
                    raise
    return failures


def _run(variables: Mapping[str, str], name: str, *options: Any) -> tuple[str, LockstepError | None, str]:
    """Run one notebook, once more if its kernel died; its name, its error, and what it printed for the terminal."""
    log = io.StringIO()
    try:
        with environment(variables), redirect_stderr(log), _watched(variables):
            try:
                run(name, *options)
            except KernelDied as death:
                print(f"{death}\n  it runs once more", file=log)
                run(name, *options)
    except LockstepError as error:
        return name, LockstepError(str(error)), log.getvalue()
    return name, None, log.getvalue()


@contextmanager
def _watched(variables: Mapping[str, str]) -> Iterator[None]:
    """Where kernels are warm, print where this process stands and end it if a notebook takes longer than `LIMIT`."""
    if not WARM.items() <= variables.items():
        yield
        return
    faulthandler.dump_traceback_later(LIMIT, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
