"""`lib.sweep`: many training runs at once, on this machine's cores."""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from joblib import cpu_count

from lib.errors import BadOption, LockstepError
from lib.models.flat import one_thread
from lib.options.checked import Count, checked
from lib.progress import Progress
from lib.results.run import Run
from lib.training.processes import Child, ChildLost, order
from lib.training.train import Job


class SweepFailed(LockstepError, RuntimeError):
    """Jobs of a sweep failed. `runs` holds the others' results in the jobs' order, None where there is none."""

    runs: list[Run | None]


def sweep(jobs: Iterable[Mapping[str, Any]], *, processes: int | None = None) -> list[Run]:
    """Every job's run, in the order of the jobs. A job holds what `lib.train` takes, by name:
    `{"workload": "ctr-synthetic", "protocol": "gba", "cluster": cluster, "seed": 1}`.

    Runs that are saved already are loaded, the others are made in as many processes as there are usable cores (`processes`
    sets another number), this one among them, with one torch thread each. What a run comes to does not depend on where it is
    made. Runs on a wall clock are made here, one after the other, when nothing else is under way; so are runs whose
    arguments another process does not have, such as a protocol that a notebook defines. A job that fails stops no other.
    """
    processes = checked(Count | None, processes, "sweep", "processes")
    tasks, keys = _settle(list(jobs))
    missing = [task for task in tasks.values() if task.run is None]
    if missing:
        with Progress(sum(task.job.samples for task in missing), f"{len(missing)} runs", "samples") as progress:
            virtual = [task for task in missing if task.job.cluster.clock != "wall"]
            _make(virtual, min(processes or _usual(), len(virtual)), progress)
            for task in missing:
                if task.job.cluster.clock == "wall":
                    task.make(partial(task.job.run, progress.advance))
    failed = [task for task in missing if task.error is not None]
    runs = [tasks[key].run for key in keys]
    if failed:
        told = "\n".join(f"{task.name}: {task.error}" for task in failed)
        problem = SweepFailed(f"{len(failed)} of {len(tasks)} runs failed, the others are kept\n{told}")
        problem.runs = runs
        raise problem from failed[0].error
    return runs


def _usual() -> int:
    """As many as cores, unless whoever runs several programs side by side has set another number."""
    return int(os.environ.get("LOCKSTEP_PROCESSES", 0)) or cpu_count()


@dataclass(eq=False)
class _Task:
    """A run that some of the jobs ask for, and what has become of it."""

    name: str
    arguments: Mapping[str, Any]
    job: Job
    run: Run | None = None
    error: Exception | None = None

    order: dict[str, Any] | None = None
    """What a child needs to make it."""
    settled: threading.Event = field(default_factory=threading.Event)
    """Somebody has made it, or declined to."""

    @property
    def declined(self) -> bool:
        return self.run is None and self.error is None

    def make(self, way: Callable[[], Run | None]) -> None:
        """An error is kept."""
        try:
            self.run = way()
        except Exception as error:
            self.error = error
            self.run = getattr(error, "run", None)  # it is complete when only saving it failed
        self.settled.set()


def _settle(jobs: list[Mapping[str, Any]]) -> tuple[dict[str, _Task], list[str]]:
    """The runs that are asked for by the name that each is saved under, those that are saved loaded; and each job's name."""
    tasks: dict[str, _Task] = {}
    keys = []
    for index, arguments in enumerate(jobs):
        name = f"jobs[{index}]"
        if not isinstance(arguments, Mapping) or not {"workload", "protocol", "cluster"} <= arguments.keys():
            raise BadOption(
                f"sweep: {name} must map workload, protocol, cluster and further names of lib.train's arguments to their "
                f"values, not {arguments!r}"
            )
        try:
            job = Job.of(**arguments)
        except LockstepError as error:
            error.args = (f"sweep: {name}: {error}",)
            raise
        keys.append(job.key)
        found = tasks.get(job.key)
        # Of equal jobs the one that asks for most is done: a new run before a saved one, a saved one before none.
        if found is None or _asks(job) > _asks(found.job):
            tasks[job.key] = _Task(f"{name} ({job.title}, seed {job.course.plan.seed})", arguments, job)
    for task in tasks.values():
        task.run = task.job.saved()
    return tasks, keys


def _asks(job: Job) -> tuple[bool, bool]:
    return job.settings.save, job.settings.force


def _make(tasks: list[_Task], processes: int, progress: Progress) -> None:
    """Make the runs in so many processes, this one included."""
    for task in tasks if processes > 1 else ():
        task.order = order(task.arguments, task.job.key)
    travelling = deque(task for task in tasks if task.order)
    children = _start(min(processes - 1, len(travelling)))
    for child in children:
        threading.Thread(target=_serve, args=(child, travelling, progress), name="lockstep-sweep", daemon=True).start()
    try:
        with one_thread() if children else nullcontext():
            for task in chain([task for task in tasks if not task.order], _taken(travelling)):
                task.make(partial(task.job.run, progress.advance))
            for task in tasks:
                task.settled.wait()
                if task.declined:
                    task.make(partial(task.job.run, progress.advance))
    except BaseException:
        travelling.clear()
        _stop(children)
        raise


def _taken(tasks: deque[_Task]) -> Iterator[_Task]:
    """One after the other, as long as nobody else has taken them all."""
    with suppress(IndexError):
        while True:
            yield tasks.popleft()


_children: list[Child] = []
"""They live as long as this process, so that a notebook with many sweeps starts them once."""


def _start(number: int) -> list[Child]:
    while len(_children) < number:
        _children.append(Child())
    return _children[: max(number, 0)]


def _stop(children: Iterable[Child]) -> None:
    children = list(children)
    _children[:] = [child for child in _children if child not in children]
    for child in children:
        child.release()
    for child in children:
        child.stop()


atexit.register(lambda: _stop(_children))


def _serve(child: Child, travelling: deque[_Task], progress: Progress) -> None:
    """Let a child make one run after the other. Nobody waits for a child that is still starting when all is done."""
    with child.lock:
        try:
            child.wait()
        except ChildLost as error:
            if child in _children:  # nobody stopped it
                _stop([child])
                warnings.warn(f"a sweep has one process less: {error}", RuntimeWarning, stacklevel=2)
            return
        for task in _taken(travelling):
            task.make(partial(child.ask, task.order, progress.advance))
            if isinstance(task.error, ChildLost):
                return _stop([child])
