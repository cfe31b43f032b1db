"""`lib.train`: one call for every workload, protocol and cluster."""

from __future__ import annotations

import gc
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Le

from lib import paths
from lib.cluster.base import Cluster
from lib.drivers.checkpoints import CheckpointFolder
from lib.drivers.plan import Plan, split_batches
from lib.drivers.server_worker import MOST_EMBEDDING_WORKERS
from lib.errors import BadOption
from lib.options.checked import Checked, Count, Natural, NotNegative, Share, checked
from lib.progress import Progress
from lib.protocols.rule import Pair, Rule
from lib.results.key import describe, file_digests, json_default, key
from lib.results.outcome import StagedOutcome
from lib.results.provenance import machine
from lib.results.run import Run
from lib.seeds import check_not_sealed
from lib.store.spec import RowStore
from lib.tasks import prepared_datasets
from lib.tasks.workload import Workload
from lib.training.resolve import resolve
from lib.training.schedule import Choice, Phase, Schedule, StagedRun, single_phase_schedule


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """How a run is carried out and kept; nothing here belongs to the workload, the protocol or the cluster."""

    evaluations: Count | tuple[Share, ...] | Literal["daily"] = 1
    """How often the model is evaluated: after each of so many equal parts of the samples; or after these shares of them, and at
    the end; or "daily", where the stream comes to a day's end, on the next day's samples, as continual training does. It changes
    nothing of the run, and costs it no time."""
    gradients: bool = True
    """False: a timing run, for virtual time. It sends the same messages, waits as long and leaves the same throughput, staleness
    and bytes to the last digit, and computes nothing: no model, no evaluation."""
    on_nan: Literal["stop", "skip"] = "stop"
    """What to do when a loss or gradient is not finite: stop with an error, or leave that batch out."""
    trace: bool = True
    """Keep who did what when."""
    accesses: bool = False
    """Pipelines: note which batch read, computed and wrote which row in which version. `run.accesses` is then the
    history, and `lockstep check` finds in it what no serial run would have shown."""
    feed: Literal["rule", "split", "stream", "queue"] = "rule"
    """How workers share the batches: as the rule says; every N-th; a stretch each; or the next to the worker that asks."""
    partitions: tuple[NotNegative, ...] = ()
    """feed="stream": relative lengths of the workers' stretches; empty: equal ones."""
    prefetch: Natural | None = None
    """Batches that are made for a worker, in other threads or on other nodes, before it needs them. None: 1 on a wall clock or
    with readers or embedding workers; else 0, for under virtual time a batch takes no time unless a node's `reading` says so."""
    reader_nodes: Natural = 0
    """Nodes "reader0", "reader1", ... that make the batches and send them to the workers that ask (ShadowSync, Section 3.1); 0:
    each worker makes its own. Who gets which batch is the feed's affair either way."""
    embedding_workers: Annotated[Natural, Le(MOST_EMBEDDING_WORKERS)] = 0
    """Nodes "embedding0", "embedding1", ... between workers and the servers of the rows, which hold the batches' ids and look up,
    sum and update their rows by sample ID (Persia, Section 4.1); 0: each worker asks the servers itself."""
    store: RowStore = field(default_factory=RowStore)
    """How the rows of embedding tables are kept, placed and sent; one field alone is given as `store.max_rows=...`."""
    save: bool = True
    """Save the run, and return the saved one when it was already made with this configuration and this source."""
    force: bool = False
    """Train even if the run is saved already, and replace it."""
    checkpoint_every: Count | None = None
    """Samples, about, after which the run pauses and saves a checkpoint, which stays under the reports folder until the run is
    complete. Each stage of a schedule is saved when it is finished; one that ends by time has no checkpoint before."""
    keep: bool = False
    """Keep the model with the run, so that another one can start from it."""
    resume: bool = False
    """Resume from the checkpoint that a run with this configuration left when it was stopped. A checkpoint that differs only in
    the numbers of servers, reader nodes or embedding workers is an error."""

    @classmethod
    def error_label(cls) -> str:
        return "train"

    @property
    def identity(self) -> dict[str, Any]:
        """What makes a run another one: most options where they differ from the default, and some always."""
        own, usual = (
            {each.name: describe(getattr(options, each.name)) for each in fields(options)}
            for options in (self, Options())
        )
        always = ("evaluations", "on_nan", "trace", "feed", "partitions", "prefetch")
        names = sorted(own.keys() - {"save", "force", "resume"})
        return {name: own[name] for name in names if name in always or own[name] != usual[name]}

    def __post_init__(self):
        if self.resume and self.checkpoint_every is None:
            raise BadOption("train: resume needs the checkpoint_every of the run that is to be resumed")
        if self.partitions and self.feed != "stream":
            raise BadOption(f"train: partitions are for feed='stream', not for {self.feed!r}")


def train(
    workload: Workload | str,
    protocol: Rule | Pair | Schedule | Choice | str,
    cluster: Cluster | str,
    *,
    seed: int = 0,
    samples: int | None = None,
    start: Run | None = None,
    **options,
) -> Run:
    """Train a workload under a protocol on a cluster, each an object or a registered name; under several, by a `Schedule` or
    as a controller chooses, by a `Choice`. "gba+all-reduce" is a pair: rows under GBA, dense parameters under all-reduce;
    "mine.py:Mine" is a class or an object of a file of yours; "machine.yaml" a virtual cluster, as `calibrate` writes one.

    `samples` is the length of the pass (default: the workload's). `start` is a run of that workload with `keep=True`: this one
    continues with its model, at its place in the stream. Further options belong to what was given by name
    (`workers=32`, `iota=4`, `batch_size=256`, `lr=0.01`) or are those of `lib.Options`; "store.max_rows" is a part of one. The
    run is saved under the reports folder and found there the next time, unless `force=True`; `save=False` neither looks nor
    saves. `lib.sweep` makes many at once.
    """
    job = Job.of(workload, protocol, cluster, seed=seed, samples=samples, start=start, **options)
    if (found := job.load_saved()) is not None:
        return found
    if job.settings.resume:
        _check_resumable(job)
    with Progress(job.samples, job.title, "samples") as progress:
        return job.run(progress.advance)


SHARED = ("gradients", "on_nan", "trace", "accesses", "store", "feed", "partitions", "embedding_workers")
"""Options that a plan has by the same name."""


STAND_IN = "LOCKSTEP_STAND_IN"
"""The environment variable that names a function, "module:function", which gets each job in place of its training."""
DEVICE = "LOCKSTEP_DEVICE"
"""The environment variable that names the device of runs in simulated time whose cluster names none; a page sets it."""


@dataclass(frozen=True, eq=False)
class Job:
    """A checked run that is still to be loaded or made."""

    title: str
    staged_run: StagedRun
    cluster: Cluster
    settings: Options
    configuration: dict[str, Any]
    named: Callable[[dict[str, Any]], str]
    """The name under which a run with some configuration is saved, with this one's code."""

    @classmethod
    def of(cls, workload, protocol, cluster, *, seed=0, samples=None, start=None, **options) -> Job:
        """Make a job from the arguments of `train`."""
        workload, protocol, cluster, settings = resolve(Options, workload, protocol, cluster, options)
        if (
            (device := os.environ.get(DEVICE))
            and settings.gradients
            and (cluster.clock, cluster.device) == ("virtual", "cpu")
        ):
            cluster = replace(cluster, device=device)
        seed = check_not_sealed(checked(Natural, seed, "train", "seed"))
        if samples is not None:
            workload = replace(workload, samples=checked(Count, samples, "train", "samples"))
        staged_run = _check_and_plan(workload, protocol, cluster, seed, settings, start)
        configuration = {
            "workload": describe(workload),
            "protocol": describe(protocol),
            "cluster": describe(cluster),
            **({"files": read} if (read := file_digests(workload)) else {}),
            "seed": seed,
            **settings.identity,
            **({"start": {"digest": start.digest, "place": staged_run.plan.first}} if start else {}),
        }
        title = f"{workload.name} {protocol.name} {cluster.name}"
        named = partial(key, things=(workload, protocol, cluster, settings.store))
        return cls(title, staged_run, cluster, settings, configuration, named)

    @cached_property
    def key(self) -> str:
        """The name under which the run is saved."""
        return self.named(self.configuration)

    @property
    def samples(self) -> int:
        """How many it trains on, unless a phase's seconds end it before."""
        return sum(samples for samples, _ in self.staged_run.samples_and_batch_sizes())

    @property
    def folder(self) -> Path:
        return paths.runs() / self.key

    @property
    def checkpoints(self) -> Path:
        return paths.reports() / "checkpoints" / self.key

    def load_saved(self) -> Run | None:
        """The run that was saved before, unless the settings ask for a new one."""
        if self.settings.save and not self.settings.force and self.folder.is_dir():
            return Run.load(self.folder)
        return None

    def run(self, progress: Callable[[int], None]) -> Run:
        """Train, and save the run if the settings say so; call `progress` with the samples of each batch. Wait for another
        process that makes the same run, or writes its checkpoints."""
        if named := os.environ.get(STAND_IN):
            module, _, function = named.partition(":")
            return getattr(import_module(module), function)(self)
        if not (self.settings.save or self.settings.checkpoint_every):
            return self._train(progress)
        paths.check_writable(paths.runs() if self.settings.save else paths.reports())
        with paths.exclusive_lock(self.key):
            return self.load_saved() or self._train(progress)

    def _train(self, progress: Callable[[int], None]) -> Run:
        staged_run, settings = self.staged_run, self.settings
        if settings.checkpoint_every:
            every = max(1, settings.checkpoint_every // staged_run.plan.workload.batch_size)
            folder = CheckpointFolder(every=every, folder=self.checkpoints, resume=settings.resume)
            if not settings.resume:
                shutil.rmtree(self.checkpoints, ignore_errors=True)
            paths.write_text_atomic(self.checkpoints / WHOSE, json.dumps(self.configuration, default=json_default))
            staged_run = replace(staged_run, plan=replace(staged_run.plan, checkpoints=folder))
        with _rare_garbage_collection():
            plan = staged_run.plan  # the world has no name, which would keep it
            try:
                stages, model = self.cluster.open(plan.seed, plan.workers).run(staged_run.run, progress)
            except torch.OutOfMemoryError as error:
                raise BadOption(
                    f"train: {self.title} needs more memory than the device has: {error}; fewer workers, "
                    "a smaller batch_size or store.max_rows need less"
                ) from error
        outcome = StagedOutcome(stages, self.cluster.evaluation_device)
        provenance = {**self.configuration, **machine(), "clock": self.cluster.clock, "events": outcome.events}
        plan, cluster = stages[-1].plan, self.cluster
        on_servers = plan.protocol.sparse.family != "replica"
        provenance["collectives"] = stages[-1].finished.collectives
        provenance["rows"] = str(plan.row_device(cluster.evaluation_device if on_servers else cluster.device))
        summary = self._with_epoch_count(outcome.summary(cluster.clock))
        tables = outcome.history(), summary, outcome.trace(), outcome.resource_usage()
        run = Run(*tables, provenance, outcome.final_digest(), model, outcome.accesses())
        if settings.save:
            run.save(self.folder)
        if settings.checkpoint_every:
            shutil.rmtree(self.checkpoints, ignore_errors=True)
        return run

    def _with_epoch_count(self, summary: dict[str, Any]) -> dict[str, Any]:
        """Add to the summary how many times the run went through real data."""
        data = getattr(self.staged_run.plan.workload, "data", None)
        if not (data and prepared_datasets.manifest_digest(data)):  # a user's class may mean something else by `data`
            return summary
        return {"epochs": round(summary["samples"] / prepared_datasets.training_samples(data), 3), **summary}


WHOSE = "run.json"
"""The file with a run's configuration among its checkpoints."""


def _check_resumable(job: Job) -> None:
    """Refuse a run whose only checkpoint has other numbers of nodes, and warn where there is no checkpoint."""
    if _has_checkpoint(job.checkpoints):
        return
    here, rest = _split_node_counts(job.configuration)
    for folder in filter(_has_checkpoint, sorted(job.checkpoints.parent.glob("*"))):
        there, others = _split_node_counts(json.loads((folder / WHOSE).read_text()))
        if others == rest and there != here:
            other = [name for name in here if there[name] != here[name]]
            differ = "; ".join(f"{name}: {there[name]} there, {here[name]} here" for name in other)
            raise BadOption(
                f"train: resume=True needs the numbers of nodes with which the checkpoint was made; {folder} has {differ}. "
                "Resume with its numbers, or leave resume out to train from the start"
            )
    warnings.warn(
        f"train: resume=True finds no checkpoint of this run in {job.checkpoints.parent}, and the run begins at its start",
        stacklevel=3,
    )


def _has_checkpoint(folder: Path) -> bool:
    return (folder / WHOSE).is_file() and any(folder.glob("*.pt"))


def _split_node_counts(configuration: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, Any]]:
    """The numbers of nodes that hold parts of the model or of the data, and the rest of the configuration."""
    rest = json.loads(json.dumps(configuration, default=json_default))
    numbers = {"servers": rest["cluster"].pop("servers", 1)}
    return numbers | {name: rest.pop(name, 0) for name in ("reader_nodes", "embedding_workers")}, rest


def _check_and_plan(
    workload: Workload,
    protocol: Rule | Pair | Schedule | Choice,
    cluster: Cluster,
    seed: int,
    settings: Options,
    start: Run | None,
) -> StagedRun:
    if not settings.gradients:
        _check_timing_run(cluster, settings, start)
    schedule = protocol if isinstance(protocol, Schedule | Choice) else single_phase_schedule(protocol)
    workers = cluster.workers or max(phase.workers or 4 for phase in schedule.phases)
    if settings.accesses and all(phase.protocol.dense.family != "pipeline" for phase in schedule.phases):
        raise BadOption("train: accesses to rows are noted by pipelines, and no protocol is one; leave accesses out")
    if settings.partitions:
        split_batches(1, workers, settings.partitions)
    for phase in schedule.phases:
        _check_phase(phase, workload, cluster, workers, settings)
    if isinstance(schedule, Choice) and settings.feed not in ("rule", "queue"):
        raise BadOption(f"choice: its workers take their batches from a queue, not from feed={settings.feed!r}")
    if all(phase.protocol.dense.family == "pipeline" for phase in schedule.phases):
        workers = 1
    first = _first_sample(start, workload) if start else 0
    plan = Plan(
        workload=workload,
        protocol=schedule.phases[0].protocol,
        workers=workers,
        servers=cluster.servers,
        captured=cluster.captured,
        seed=seed,
        **{name: getattr(settings, name) for name in SHARED},
        ahead=int(cluster.clock == "wall" or settings.reader_nodes + settings.embedding_workers > 0)
        if settings.prefetch is None
        else settings.prefetch,
        readers=settings.reader_nodes,
        first=first,
        eval_at=tuple(evaluation_places(workload, first, settings.evaluations)),
        daily=settings.evaluations == "daily",
    )
    return StagedRun(schedule=schedule, plan=plan, model=start and start.model, keep=settings.keep)


def evaluation_places(
    workload: Workload, first: int, evaluations: int | tuple[float, ...] | Literal["daily"]
) -> Iterator[float]:
    """The places of the stream at which the model is evaluated between `first` and the end of the pass."""
    if evaluations == "daily":
        for day in count(workload.day(first) + 1):
            if (begins := workload.day_begins(day)) >= workload.samples:
                return
            yield begins
    if isinstance(evaluations, int):
        evaluations = tuple(mark / evaluations for mark in range(1, evaluations))
    for share in sorted({*evaluations} - {0.0, 1.0}):
        yield round(first + (workload.samples - first) * share, 6)  # a share of 0.07 is no more than 7 of 100 samples


def _check_timing_run(cluster: Cluster, settings: Options, start: Run | None) -> None:
    if cluster.clock == "wall":
        raise BadOption(
            f"train: gradients=False is for virtual time; the {cluster.name} cluster's seconds are those of the computing itself"
        )
    for option, given in (
        ("evaluations", settings.evaluations != 1),
        ("keep", settings.keep),
        ("accesses", settings.accesses),
        ("start", start is not None),
    ):
        if given:
            none = "a timing run (gradients=False) has none; leave one of them out"
            raise BadOption(f"train: {option} needs a model, and {none}")


def _first_sample(start: Run, workload: Workload) -> int:
    """The sample at which a run begins that starts from another run's model."""
    if not isinstance(start, Run):
        raise BadOption(f"train: start must be a Run, not {start!r}")
    if start.model is None:
        raise BadOption("train: the run to start from has no model; train it with keep=True")
    if start.provenance["workload"]["name"] != workload.name:
        raise BadOption(f"train: start is a run of {start.provenance['workload']['name']!r}, not of {workload.name!r}")
    if start.model.next_sample >= workload.samples:
        there = f"has come to sample {start.model.next_sample}, where this pass of {workload.samples} ends"
        raise BadOption(f"train: the run to start from {there}")
    return start.model.next_sample


def _check_phase(phase: Phase, workload: Workload, cluster: Cluster, workers: int, settings: Options) -> None:
    protocol, bounds = phase.protocol, ("max_rows", "shared_memory", "mapped", "journal")
    if not workload.tables():
        settings.store.allow_only((), f"{workload.name!r} has no tables")
    elif protocol.dense.family == "pipeline":
        settings.store.allow_only(bounds, f"{protocol.name} has one host store, and sends rows with their state")
    elif protocol.sparse.family == "replica":
        settings.store.allow_only(bounds, f"{protocol.name} keeps rows with each worker, and none travel")
    elif settings.store.pooling == "server" and not workload.bags():
        raise BadOption(f"store.pooling would change nothing: no field of {workload.name!r} has several ids")
    if settings.embedding_workers and not (workload.tables() and protocol.sparse.family == "server"):
        kept = (
            f"{protocol.name} keeps rows with the workers that train on them"
            if workload.tables()
            else f"{workload.name!r} has no tables"
        )
        raise BadOption(f"train: embedding_workers would have nothing to ask servers for: {kept}; leave it out")
    if (phase.workers or 0) > workers:
        raise BadOption(f"phase {phase.name!r}: {phase.workers} workers, of {workers} in the cluster")
    if phase.seconds is not None and settings.feed not in ("rule", "queue"):
        raise BadOption(f"phase {phase.name!r}: seconds needs feed='queue', not {settings.feed!r}")
    if protocol.dense.family == "pipeline":
        if phase.seconds is not None:
            raise BadOption(
                f"phase {phase.name!r}: it drives one device, whose readers take the batches in order and have no queue "
                "that could end with its seconds; give it steps, until_samples or until_day"
            )
        if (cluster.workers or 1) > 1:
            raise BadOption(
                f"{protocol.name} drives one device, not {cluster.workers} workers; leave workers out, "
                "and set readers, writers and in_flight for its parallelism"
            )
        if settings.feed != "rule" or settings.prefetch or settings.reader_nodes:
            raise BadOption(
                f"{protocol.name} drives one device, whose readers take the batches in order; leave feed, prefetch and "
                "reader_nodes out, and set readers for how many it reads at once"
            )
        if not workload.tables():
            raise BadOption(
                f"{protocol.name} moves rows between host and device, and {workload.name!r} has no tables; "
                "choose another workload, or a protocol of another family"
            )


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Inside, Python's collector comes seldom, and passes over all that was there before. A run makes many objects that live long
    and few circles; to look for those as often as ever, torch's hundred thousands of objects included, takes a quarter of it."""
    often = gc.get_threshold()
    gc.set_threshold(100_000, *often[1:])
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()  # the run's world, which is full of circles; quick, as long as the rest is set aside
        gc.unfreeze()
        gc.set_threshold(*often)
