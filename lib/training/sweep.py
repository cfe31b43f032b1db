"""`lib.sweep`: many training runs at once, on this machine's cores."""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from joblib import cpu_count

from lib.errors import BadOption, LockstepError
from lib.options.checked import Count, checked
from lib.progress import Progress
from lib.results.run import Run
from lib.training.processes import Child, ChildLost, Declined, order
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
                    task.make(progress)
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

    def make(self, progress: Progress, child: Child | None = None, what: dict[str, Any] | None = None) -> None:
        """Here, or by a child that is given the order; an error is kept, except that a child may decline."""
        try:
            self.run = self.job.run(progress.advance) if child is None else child.ask(what, progress.advance)
        except Declined:
            raise
        except Exception as error:
            self.error = error
            self.run = getattr(error, "run", None)  # it is complete when only saving it failed


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
    work = _Work(tasks, alone=processes < 2)
    children = _start(min(processes - 1, len(work.travelling)))
    for child in children:
        threading.Thread(target=_serve, args=(child, work, progress), name="lockstep-sweep", daemon=True).start()
    try:
        with _one_thread() if children else nullcontext():
            while (task := work.here()) is not None:
                task.make(progress)
    except BaseException:
        work.stop()
        _stop(children)
        raise


class _Work:
    """The runs that are still to be made: shared by this process's main thread and a thread for each child."""

    def __init__(self, tasks: list[_Task], alone: bool) -> None:
        self.travelling: deque[tuple[_Task, dict[str, Any]]] = deque()
        self.staying: deque[_Task] = deque()
        for task in tasks:
            what = None if alone else order(task.arguments, task.job.key)
            if what is None:
                self.staying.append(task)
            else:
                self.travelling.append((task, what))
        self.stopped = False
        self._away = 0
        self._changed = threading.Condition()

    def here(self) -> _Task | None:
        """The next run to make in this process; None when all are made."""
        with self._changed:
            while True:
                if self.staying:
                    return self.staying.popleft()
                if self.travelling:
                    return self.travelling.popleft()[0]
                if not self._away:
                    return None
                self._changed.wait(0.2)

    def elsewhere(self) -> tuple[_Task, dict[str, Any]] | None:
        """The next run to make in a child."""
        with self._changed:
            if self.stopped or not self.travelling:
                return None
            self._away += 1
            return self.travelling.popleft()

    def back(self, declined: _Task | None = None) -> None:
        """A child is done with its run, or does not take it."""
        with self._changed:
            self._away -= 1
            if declined is not None:
                self.staying.append(declined)
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self.stopped = True


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


def _serve(child: Child, work: _Work, progress: Progress) -> None:
    """Let a child make one run after the other. Nobody waits for a child that is still starting when all is done."""
    with child.lock:
        try:
            child.wait()
        except ChildLost as error:
            if child in _children:  # nobody stopped it
                _stop([child])
                warnings.warn(f"a sweep has one process less: {error}", RuntimeWarning, stacklevel=2)
            return
        while (taken := work.elsewhere()) is not None:
            task, what = taken
            try:
                task.make(progress, child, what)
            except Declined:
                work.back(declined=task)
                continue
            if isinstance(task.error, ChildLost):
                _stop([child])
                work.back()
                return
            work.back()


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
