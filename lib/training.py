"""`lib.train`: one call for every workload, protocol and cluster."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lib import cluster as clusters
from lib import paths, protocols, workloads
from lib.cluster.base import Cluster
from lib.data import source
from lib.data.feed import KINDS, stretches
from lib.drivers import pipeline, replica, server
from lib.drivers.attempts import carry_through
from lib.drivers.cut import Cuts
from lib.drivers.plan import Plan
from lib.errors import BadOption, UnknownOption, unknown_option
from lib.outcome import Outcome
from lib.progress import Progress
from lib.protocols.rules import Pair, Rule
from lib.provenance import machine
from lib.run import Run, describe, key
from lib.workloads import Workload

DRIVERS = {"server": server.drive, "replica": replica.drive, "pipeline": pipeline.drive}


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a run is carried out and kept; nothing here belongs to the workload, the protocol or the cluster."""

    evaluations: int = 1
    """How often the model is evaluated: after each of so many equal parts of the samples. It costs the run no time."""
    on_nan: Literal["stop", "skip"] = "stop"
    """What to do when a loss or gradient is not finite: stop with an error, or leave that batch out."""
    trace: bool = True
    """Keep who did what when."""
    feed: Literal["rule", "split", "stream", "queue"] = "rule"
    """How workers share the batches: as the rule says; every N-th; a stretch each; or the next to whoever asks."""
    partitions: tuple[float, ...] = ()
    """feed="stream": relative lengths of the workers' stretches; empty: equal ones."""
    prefetch: int | None = None
    """Batches that a worker makes in other threads before it needs them. None: 1 on a wall clock; under virtual time, where
    making a batch takes no time, 0."""
    save: bool = True
    """Save the run, and return the saved one when it was already made with this configuration and this source."""
    force: bool = False
    """Train even if the run is saved already, and replace it."""
    checkpoint_every: int | None = None
    """Pause after about so many samples and save a consistent cut, under the reports folder until the run is complete."""
    resume: bool = False
    """Go on from the cut that a run with this configuration left when it was stopped, if there is one."""

    def __post_init__(self):
        if self.evaluations < 1:
            raise BadOption(f"train: evaluations must be at least 1, not {self.evaluations}")
        if self.checkpoint_every is not None and self.checkpoint_every < 1:
            raise BadOption(f"train: checkpoint_every must be at least 1, not {self.checkpoint_every}")
        if self.resume and self.checkpoint_every is None:
            raise BadOption("train: resume needs the checkpoint_every of the run that is to go on")
        if self.feed not in ("rule", *KINDS):
            raise BadOption(f"train: feed must be rule, {', '.join(KINDS)}, not {self.feed!r}")
        if not isinstance(self.partitions, (tuple, list)) or not all(
            isinstance(p, (int, float)) for p in self.partitions
        ):
            raise BadOption(f"train: partitions must be numbers such as (1, 2, 1), not {self.partitions!r}")
        object.__setattr__(self, "partitions", tuple(self.partitions))
        if self.partitions and self.feed != "stream":
            raise BadOption(f"train: partitions are for feed='stream', not for {self.feed!r}")
        if self.prefetch is not None and self.prefetch < 0:
            raise BadOption(f"train: prefetch must be 0 or more, not {self.prefetch}")
        if self.on_nan not in ("stop", "skip"):
            raise BadOption(f"train: on_nan must be 'stop' or 'skip', not {self.on_nan!r}")


def train(
    workload: Workload | str,
    protocol: Rule | Pair | str,
    cluster: Cluster | str,
    *,
    seed: int = 0,
    samples: int | None = None,
    **options,
) -> Run:
    """Train a workload under a protocol on a cluster, each an object or a registered name.

    `samples` is the length of the pass (default: the workload's). Further options belong to whatever was given by name
    (`workers=32`, `iota=4`, `batch_size=256`) or are those of `lib.training.Options`. The run is saved under the reports folder
    and found there the next time, unless `force=True`; `save=False` neither looks nor saves. `lib.sweep` makes many at once.
    """
    job = Job.of(workload, protocol, cluster, seed=seed, samples=samples, **options)
    if (found := job.saved()) is not None:
        return found
    with Progress(job.plan.samples, job.title, "samples") as progress:
        return job.run(progress.advance)


@dataclass(frozen=True, eq=False)
class Job:
    """A run that is settled and checked, and that is still to be found or made."""

    plan: Plan
    cluster: Cluster
    settings: Options
    configuration: dict[str, Any]
    key: str
    """The name under which the run is saved."""

    @classmethod
    def of(
        cls,
        workload: Workload | str,
        protocol: Rule | Pair | str,
        cluster: Cluster | str,
        *,
        seed: int = 0,
        samples: int | None = None,
        **options,
    ) -> Job:
        """What `train` takes."""
        workload, protocol, cluster, settings = _resolve(workload, protocol, cluster, options)
        if samples is not None:
            if samples < 1:
                raise BadOption(f"train: samples must be at least 1, not {samples}")
            workload = replace(workload, samples=samples)
        plan = _plan(workload, protocol, cluster, seed, settings)
        configuration = {
            **{
                name: describe(thing)
                for name, thing in (("workload", workload), ("protocol", protocol), ("cluster", cluster))
            },
            # A folder that is prepared anew under the same name is other data.
            **({"data": source.digest(data)} if (data := getattr(workload, "data", None)) else {}),
            "seed": seed,
            "evaluations": settings.evaluations,
            "on_nan": settings.on_nan,
            "trace": settings.trace,
            "feed": settings.feed,
            "partitions": settings.partitions,
            "prefetch": settings.prefetch,
            **({"checkpoint_every": settings.checkpoint_every} if settings.checkpoint_every else {}),
        }
        return cls(plan, cluster, settings, configuration, key(configuration))

    @property
    def title(self) -> str:
        return f"{self.plan.workload.name} {self.plan.protocol.name} {self.cluster.name}"

    @property
    def folder(self) -> Path:
        return paths.runs() / self.key

    def saved(self) -> Run | None:
        """The run that was saved before, unless the settings ask for a new one."""
        if self.settings.save and not self.settings.force and self.folder.is_dir():
            return Run.load(self.folder)
        return None

    def run(self, progress: Callable[[int], None]) -> Run:
        """Train, and save the run if the settings say so; `progress` hears of samples."""
        plan, settings = self.plan, self.settings
        cuts = paths.reports() / "cuts" / self.key
        if settings.checkpoint_every:
            every = max(1, settings.checkpoint_every // plan.workload.batch_size)
            plan = replace(plan, cuts=Cuts(every=every, folder=cuts, resume=settings.resume))
        if settings.save:
            paths.check_writable(paths.runs())
        outcome = _carry_out(plan, self.cluster, progress)
        run = Run(
            outcome.history(),
            outcome.summary(self.cluster.clock),
            outcome.trace(),
            outcome.usage(),
            {**self.configuration, **machine(), "clock": self.cluster.clock, "events": outcome.events},
            outcome.digest(),
        )
        if settings.save:
            run.save(self.folder)
        if plan.cuts:
            shutil.rmtree(cuts, ignore_errors=True)
        return run


def _carry_out(plan: Plan, cluster: Cluster, progress: Callable[[int], None]) -> Outcome:
    drive = DRIVERS[plan.protocol.dense.family]
    return Outcome(
        plan, cluster.open(plan.seed, plan.workers).run(lambda world: carry_through(world, plan, drive), progress)
    )


def _plan(workload: Workload, protocol: Rule | Pair, cluster: Cluster, seed: int, settings: Options) -> Plan:
    workers = cluster.workers or 4
    if settings.partitions:
        stretches(1, workers, settings.partitions)
    if protocol.dense.family == "pipeline":
        if (cluster.workers or 1) > 1:
            raise BadOption(
                f"{protocol.name} drives one device, not {cluster.workers} workers; leave workers out, "
                "and set readers, writers and in_flight for its parallelism"
            )
        if settings.feed != "rule" or settings.prefetch:
            raise BadOption(
                f"{protocol.name} drives one device, whose readers take the batches in order; leave feed and prefetch out, "
                "and set readers for how many it reads at once"
            )
        if not workload.tables():
            raise BadOption(
                f"{protocol.name} moves rows between host and device, and {workload.name!r} has no tables; "
                "choose another workload, or a protocol of another family"
            )
        workers = 1
    return Plan(
        workload=workload,
        protocol=protocol,
        workers=workers,
        servers=cluster.servers,
        seed=seed,
        evaluations=settings.evaluations,
        on_nan=settings.on_nan,
        trace=settings.trace,
        feed=settings.feed,
        partitions=settings.partitions,
        ahead=(1 if cluster.clock == "wall" else 0) if settings.prefetch is None else settings.prefetch,
    )


def _resolve(workload, protocol, cluster, options: Mapping[str, Any]):
    """Give each option to the thing that has it; an option that nothing has is an error that names the nearest."""
    given = [(workload, workloads), (protocol, protocols), (cluster, clusters)]
    owners = [(thing, registry, _options(registry, thing)) for thing, registry in given if isinstance(thing, str)]
    valid = {field.name for field in fields(Options)} | {"seed", "samples"}
    for option in options:
        if option not in valid and not any(option in known for _, _, known in owners):
            for thing, _ in given:
                if is_dataclass(thing) and option in {field.name for field in fields(thing)}:
                    raise UnknownOption(
                        f"{option!r} is an option of {thing.name!r}, which was given as an object: set it there, as in "
                        f"{type(thing).__name__}({option}={options[option]!r})"
                    )
            raise unknown_option("this run", option, valid.union(*(known for _, _, known in owners)))
    made = [
        registry.get(thing, **{name: value for name, value in options.items() if name in _options(registry, thing)})
        if isinstance(thing, str)
        else thing
        for thing, registry in given
    ]
    for thing, kind, what in zip(
        made, (Workload, Rule | Pair, Cluster), ("workload", "protocol", "cluster"), strict=True
    ):
        if not isinstance(thing, kind):
            raise BadOption(f"train: {thing!r} is no {what}; give a registered name or an object")
    return *made, Options(**{field.name: options[field.name] for field in fields(Options) if field.name in options})


def _options(registry, name: str) -> set[str]:
    if name not in registry.ALL:
        registry.get(name)
    if registry is workloads:
        return workloads.options(name)
    return {field.name for field in fields(registry.ALL[name])}
