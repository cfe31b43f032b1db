"""What a page would cost at a profile: it is executed with short runs in the place of its runs.

A run that trains costs a fixed time and a time a batch. Both are measured on the page's own first run of each kind, cut to a few
batches; where a batch needs more than `HEAVY` operations, a small model of the same class stands in for it, and the operations of
the real one are added at this machine's measured rate. Parameters are counted on torch's meta device, so nothing large is made.
Where a page cannot go on with the short runs' results, the estimate is a lower bound.
"""

import json
import math
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lib import paths, workloads
from lib.errors import LockstepError
from lib.options import yaml_source
from lib.results.run import Run
from lib.tasks.flat_model import one_thread
from lib.tasks.workload import Workload, dense_parameters
from lib.training.schedule import Phase
from lib.training.train import STAND_IN, Job, evaluation_places
from reports import runner
from reports.runner.execution import environment

FOUND = "LOCKSTEP_ESTIMATE"
"""The environment variable that names the file with a line for each run."""
HEAVY = 1e9
"""Operations of a batch from which on a small model stands in."""
SHORT = 4
"""Batches of each worker in the place of a pass."""
WHOLE = 1_000
"""Samples up to which a pass is made whole and once: it is an example in a notebook, whose result may be checked."""
LONGER = 32
"""Times that, where it is too short for a rule."""
LENGTHENED = 6
"""Times as long as the last is each further short run, until two differ by enough."""
ENOUGH = 0.5
"""Processor seconds. The first batches are slower than the others, since all their rows are new."""
SMALL = (
    *("network", "hidden", "dim", "depth", "width", "side", "layers", "heads", "length", "topics", "per_topic"),
    *("negatives", "kinds", "slots", "distractors", "entities", "relations", "triples", "vocabulary"),
    "evaluation_triples",
)
"""Options that a small model takes from the smoke profile."""


def stand_in(job: Job) -> Run:
    """Make a short run in the place of a job's, and note what the job would cost."""
    plan, phases = job.staged_run.plan, job.staged_run.schedule.phases
    real = plan.workload
    batch = max(phase.batch_size or real.batch_size for phase in phases)
    heavy = plan.gradients and _operations(replace(real, batch_size=batch)) > HEAVY
    own = _small(real) if heavy else real
    example = real.samples <= WHOLE
    kind = "" if example else f"{job.title}, {plan.workers}, {batch}, {plan.gradients}, {job.cluster.clock}, {heavy}"
    with one_thread():
        length = 1
        try:
            run, seconds, batches = _seconds(job, own, batch, length)
        except LockstepError:  # a few batches may be too few: a rule that never mixes is refused
            length = LONGER
            run, seconds, batches = _seconds(job, own, batch, length)
        own_costs = (0.0, seconds / max(batches, 1.0)) if example else None
        costs = own_costs or _noted_costs(kind) or _costs(job, own, batch, length)  # the first run compiled
    ends = min(real.samples, phases[-1].end_sample(real, plan.first, plan.workers))
    _note(job, kind, batch, max(ends - plan.first, 0), *costs, heavy)
    return replace(run, kept=run.model and replace(run.model, next_sample=ends))


def _noted_costs(kind: str) -> tuple[float, float] | None:
    """The costs of a kind of runs that was measured before, also by another process of the sweep."""
    with open(os.environ[FOUND], encoding="utf-8") as file:
        rows = (json.loads(line) for line in file)
        return next(((row["fixed"], row["each"]) for row in rows if row["kind"] == kind), None)


def _costs(job: Job, own: Workload, batch: int, length: int) -> tuple[float, float]:
    """A run's fixed processor seconds and those of a batch, by two lengths that are far enough apart to tell. Where there are
    more evaluations than batches, several are one."""
    _, less, few = _seconds(job, own, batch, length)
    while True:
        length *= LENGTHENED
        run, more, many = _seconds(job, own, batch, length)
        if many < 2 * few:  # a whole pass is as short
            return 0.0, more / many
        each = max((more - less) / (many - few), 0.0)
        if more - less > ENOUGH and few > 4 * run.history["step"].isna().sum():
            return max(less - few * each, 0.0), each
        less, few = more, many


def _seconds(job: Job, own: Workload, batch: int, share: int) -> tuple[Run, float, float]:
    """Run a job for `share` times a few batches; return it, its processor seconds and its batches."""
    staged, plan = job.staged_run, job.staged_run.plan
    size = batch if own is plan.workload else min(batch, 8)
    days = max(getattr(own, "days", 0), 1)
    least = max(SHORT * share * plan.workers * size, 2 * days, 64, WHOLE if plan.workload.samples <= WHOLE else 0)
    samples = min(least, plan.workload.samples)
    scale = samples / plan.workload.samples
    short = replace(own, samples=samples, batch_size=_less(own.batch_size, size, batch))
    first = min(round(plan.first * scale), samples - 1)
    phases = tuple(_phase(phase, scale, size, batch) for phase in staged.schedule.phases)
    places = tuple(evaluation_places(short, first, job.settings.evaluations)) if plan.gradients else ()
    cut = replace(plan, workload=short, first=first, eval_at=places)
    schedule = replace(staged.schedule, phases=phases)
    settings = replace(job.settings, save=False, checkpoint_every=None, resume=False)
    small = replace(job, staged_run=replace(staged, plan=cut, schedule=schedule), settings=settings)
    begun = time.process_time()
    run = small._train(lambda samples: None)
    return run, time.process_time() - begun, float(run.summary["issued"])


def _less(size: int, most: int, largest: int) -> int:
    return max(1, size * most // largest)


def _phase(phase: Phase, scale: float, size: int, batch: int) -> Phase:
    return replace(
        phase,
        batch_size=phase.batch_size and _less(phase.batch_size, size, batch),
        until_samples=phase.until_samples and max(1, round(phase.until_samples * scale)),
        steps=phase.steps and min(phase.steps, SHORT),
    )


def _small(real: Workload) -> Workload:
    """The same workload with a small model and small synthetic data."""
    if real.name not in workloads.ALL:
        return real
    smoke = workloads.get(real.name)
    present = {each.name for each in fields(real)} - (real.synthetic_only if getattr(real, "data", None) else set())
    own = {name: getattr(smoke, name) for name in SMALL if name in present}
    if "evaluation_samples" in present:
        own["evaluation_samples"] = min(real.evaluation_samples, 500)
    return replace(real, **own)


def _operations(workload: Workload) -> float:
    """Floating-point operations of a batch; of a graph by formula, since its own count draws the graph."""
    if hasattr(workload, "relations"):
        return 12.0 * workload.batch_size * workload.negatives * workload.dim
    return workload.work().flops


def _note(job: Job, kind: str, batch: int, samples: int, fixed: float, each: float, heavy: bool) -> None:
    plan = job.staged_run.plan
    real = replace(plan.workload, batch_size=batch)
    tables = real.tables()
    row = {"kind": kind, "workload": real.name, "protocol": plan.protocol.name, "workers": plan.workers, "batch": batch}
    row |= {"samples": samples, "gradients": plan.gradients, "fixed": fixed, "each": each, "heavy": heavy}
    row |= {
        "parameters": dense_parameters(real) if plan.gradients else 0,
        "row numbers": sum(spec.dim + real.row_optimizer.columns(spec.dim) for spec in tables.values()),
        "ids": _ids(real) if tables else 0,
        "replicas": plan.workers if plan.protocol.dense.family == "replica" else 1,
        "operations": _operations(real) if plan.gradients else 0.0,
    }
    with open(os.environ[FOUND], "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _ids(workload: Workload) -> int:
    """Rows that a pass can meet at most."""

    def product(*names: str) -> int:
        return math.prod(getattr(workload, name, 0) for name in names)

    drawn = product("fields", "vocabulary") * getattr(workload, "copies", 1)
    return int(drawn or product("entities") or 2 * product("topics", "per_topic"))


def estimate(name: str, profile: str, parameters: Mapping[str, Any]) -> str:
    """Execute a page with short runs, and say what it would cost."""
    with tempfile.TemporaryDirectory() as folder:
        found, stopped = Path(folder) / "runs.jsonl", ""
        found.touch()
        own = {FOUND: str(found), STAND_IN: f"{__name__}:stand_in", "LOCKSTEP_REPORTS": folder}
        with environment({**os.environ, **own}):
            try:
                runner.run(name, profile, parameters)
            except LockstepError as error:
                stopped = str(error).splitlines()[0]
        rows = [json.loads(line) for line in found.read_text(encoding="utf-8").splitlines()]
    return summary_of(name, profile, rows, stopped)


def summary_of(name: str, profile: str, rows: list[dict[str, Any]], stopped: str = "") -> str:
    """The estimate as text: a line for each kind of run, then the sums."""
    card = yaml_source.load(paths.reference() / "gpu" / "calibration.yaml")["worker"]["device"]
    rate = core_rate() if any(row["heavy"] for row in rows) else 1.0
    sums: dict[tuple, np.ndarray] = {}
    for row in rows:
        batches = row["samples"] / row["batch"]
        here = row["fixed"] + batches * row["each"] + (batches * row["operations"] / rate if row["heavy"] else 0.0)
        there = batches * (card["launch"] + row["operations"] / card["flops"]) if row["gradients"] else here
        kind = (row["workload"], row["parameters"], row["batch"], row["workers"])
        sums[kind] = sums.get(kind, 0.0) + np.array([1, row["samples"], here / 3600, there / 3600])
    form = "{:20} {:>11} {:>7} {:>7} {:>5} {:>16} {:>9} {:>9}"
    lines = [form.format("workload", "parameters", "batch", "workers", "runs", "samples", "hours", "on H100")]
    for (workload, size, batch, workers), (runs, samples, here, there) in sums.items():
        texts = (f"{size:,}" if size else "timing", f"{batch:,}", workers, f"{runs:.0f}", f"{samples:,.0f}")
        lines.append(form.format(workload, *texts, f"{here:.3g}", f"{there:.3g}"))
    _, samples, here, there = sum(sums.values(), np.zeros(4))
    device = max(
        (16.0 * row["parameters"] * row["replicas"] for row in rows), default=0.0
    )  # with gradient, two moments
    host = max((4.0 * row["row numbers"] * row["ids"] for row in rows), default=0.0)
    lines.append(
        f"{name} at {profile}: {'at least ' if stopped else ''}{len(rows)} runs, {samples:,.0f} samples, {here:.3g} core hours "
        f"on this machine, {there:.3g} hours on one H100 by its published calibration"
    )
    lines.append(
        f"memory of one run: {device / 1e9:.3g} GB of dense parameters with gradients and state on the device, "
        f"{host / 1e9:.3g} GB of rows on the host at most; activations come on top"
    )
    if stopped:
        lines.append(f"lower bound: the page could not go on without real results: {stopped}")
    return "\n".join(lines)


def core_rate() -> float:
    """Operations a second of one core of this machine, by a product of matrices of a layer's size."""
    with one_thread():
        left, right = torch.rand(512, 1024), torch.rand(1024, 1024)
        torch.mm(left, right)
        begun, turns = time.process_time(), 10
        for _ in range(turns):
            torch.mm(left, right)
        return turns * 2 * 512 * 1024 * 1024 / max(time.process_time() - begun, 1e-6)
