"""`lib.sweep`: many training runs at once, on this machine's cores."""

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import lru_cache, partial
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import psutil
import torch
from joblib import cpu_count
from joblib.externals.loky import ProcessPoolExecutor
from joblib.externals.loky.process_executor import BrokenProcessPool

from lib import paths
from lib.errors import BadOption, LockstepError
from lib.options.checked import Count, checked
from lib.progress import SHARE, Progress
from lib.results.run import Run
from lib.tasks.flat_model import one_thread
from lib.training.schedule import BATCH
from lib.training.train import Job

NEEDED = {"workload", "protocol", "cluster"}
LOOK = 1.0
"""Seconds between two looks at how far the runs of other processes are."""
BLOCK, GOLDEN = 4, (5**0.5 - 1) / 2
"""Jobs that stay together when a sweep's are spread, and the stride by which blocks are, as a share of all."""


class SweepFailed(LockstepError, RuntimeError):
    """Jobs of a sweep failed. `runs` holds the others' results in the jobs' order, None where there is none."""

    runs: list[Run | None]


def sweep(jobs: Iterable[Mapping[str, Any]], *, processes: int | None = None, label: str = "") -> list[Run]:
    """Every job's run, in the order of the jobs. A job holds what `lib.train` takes, by name. Saved runs are loaded, the others
    are made in as many processes as there are cores, with one torch thread each; runs on a wall clock are made here, one after
    the other, when nothing else is under way. A job that fails stops no other. The progress line begins with the label."""
    prepared = [_prepare_job(number, each) for number, each in enumerate(jobs)]
    wanted: dict[str, tuple[Job, Mapping[str, Any]]] = {}
    for job, arguments in sorted(prepared, key=lambda each: (each[0].settings.save, each[0].settings.force)):
        wanted[job.key] = job, arguments  # of equal jobs, one that saves or trains anew counts
    runs = {key: job.load_saved() for key, (job, _) in wanted.items()}
    missing = [key for key, run in runs.items() if run is None]
    errors: dict[str, Exception] = {}

    def take(key: str, result: Callable[[], Run | None]) -> None:
        try:
            runs[key] = result()
        except BrokenProcessPool:  # a process was killed: what it had under way is made here
            pass
        except Exception as error:
            errors[key], runs[key] = error, getattr(error, "run", None)

    if missing:
        label = f"{label}, " * bool(label) + "{} of " + f"{len(missing)} runs"
        with Progress(sum(wanted[key][0].staged_run.work for key in missing), label.format(0), line=SHARE) as progress:

            def count() -> None:
                done = [key for key in missing if runs[key] is not None]
                progress.set_description_str(label.format(len(done)), refresh=False)
                progress.reach(sum(wanted[key][0].staged_run.work for key in done))

            apart = _spread([key for key in missing if wanted[key][0].cluster.clock != "wall"])
            most = _default_process_count() if processes is None else checked(Count, processes, "sweep", "processes")
            lanes = min(most, len(apart))
            for future, key in _runs_in_processes(apart, wanted, lanes, progress.reach):
                take(key, future.result)
                count()
            for key in missing:
                if runs[key] is None and key not in errors:
                    with one_thread():
                        take(key, partial(wanted[key][0].run, lambda samples: progress.advance(samples + BATCH)))
                    count()
    found = [runs[job.key] for job, _ in prepared]
    if errors:
        jobs = {key: f"{job.title}, seed {job.configuration['seed']}" for key, (job, _) in wanted.items()}
        lines = "\n".join(f"{jobs[key]}: {error}" for key, error in errors.items())
        problem = SweepFailed(f"{len(errors)} of {len(wanted)} runs failed, the others are kept\n{lines}")
        problem.runs = found
        raise problem from next(iter(errors.values()))
    return found


def _spread(keys: list[str]) -> list[str]:
    """The keys in an order in which those that are done stand for the rest, so that the time left is true though a sweep begins
    with its shortest runs: from all over the list, in blocks, since neighbours often share the data that they draw."""
    blocks = [keys[first : first + BLOCK] for first in range(0, len(keys), BLOCK)]
    order = sorted(range(len(blocks)), key=lambda place: place * GOLDEN % 1)
    return [key for place in order for key in blocks[place]]


def _runs_in_processes(
    keys: list[str], wanted: Mapping[str, Any], lanes: int, reach: Callable[[int], None]
) -> Iterable[tuple[Future, str]]:
    """The runs under way in other processes, as they end; none where one process is enough. `reach` is called each second with
    the work of all of them, also of those that have not ended."""
    if lanes < 2:
        return
    there = {name: value for name, value in os.environ.items() if name.startswith("LOCKSTEP_")} | paths.environment()
    pool = _pool(lanes, tuple(sorted(there.items())))
    try:
        pool.submit(int).result()
    except BrokenProcessPool:  # one of its processes was killed since
        _pool.cache_clear()
        pool = _pool(lanes, tuple(sorted(there.items())))
    try:
        with NamedTemporaryFile() as counts:
            counts.truncate(8 * len(keys))
            places = ((counts.name, place) for place in range(len(keys)))
            futures = {
                pool.submit(_make_run_if_same_key, dict(wanted[key][1]), key, *at): key
                for key, at in zip(keys, places, strict=True)
            }
            pending = {*futures}
            while pending:
                ended, pending = wait(pending, timeout=LOOK, return_when=FIRST_COMPLETED)
                yield from ((future, futures[future]) for future in ended)
                reach(int(np.fromfile(counts.name, np.int64).sum()))
    except BaseException:  # as Ctrl-C: a process that trains would not hear of it before its run ends
        pool.shutdown(kill_workers=True)
        _pool.cache_clear()
        raise


@lru_cache(1)
def _pool(lanes: int, there: tuple[tuple[str, str], ...]) -> ProcessPoolExecutor:
    """The processes of the last sweep, if they are as many and know the same; not loky's own, which is joblib's as well."""
    # loky ends a process that has grown by 300 MB and starts another, which changes no result.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
    return ProcessPoolExecutor(lanes, timeout=300, initializer=_init_process, initargs=(os.getpid(),), env=dict(there))


def _init_process(parent: int) -> None:
    torch.set_num_threads(1)
    threading.Thread(target=exit_with_parent, args=(parent,), daemon=True).start()


def exit_with_parent(process: int) -> None:
    """End this process once that one is gone: one that was killed can tell nothing to those that work for it."""
    while psutil.pid_exists(process):
        time.sleep(1.0)
    os._exit(1)


def _make_run_if_same_key(arguments: dict[str, Any], key: str, progress_file: str, progress_index: int) -> Run | None:
    """Make a run, and count its work at an index of a file; None where this process comes to another key, so that its
    code is not the caller's."""
    job = Job.of(**arguments)
    count = np.memmap(progress_file, np.int64, "r+")[progress_index : progress_index + 1]
    return job.run(lambda samples: np.add(count, samples + BATCH, out=count)) if job.key == key else None


def _default_process_count() -> int:
    """As many as cores, unless LOCKSTEP_PROCESSES says otherwise, since several programs run at once."""
    return int(os.environ.get("LOCKSTEP_PROCESSES", 0)) or cpu_count()


def _prepare_job(number: int, arguments: Mapping[str, Any]) -> tuple[Job, Mapping[str, Any]]:
    if not isinstance(arguments, Mapping) or not arguments.keys() >= NEEDED:
        needed = ", ".join(sorted(NEEDED))
        raise BadOption(f"sweep: jobs[{number}] must map {needed} to their values, not {arguments!r}")
    try:
        return Job.of(**arguments), arguments
    except LockstepError as error:
        error.args = (f"sweep: jobs[{number}]: {error}",)
        raise
