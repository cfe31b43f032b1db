"""From what the parts of a run wrote down to what it leaves: each stage's outcome, and all stages as one."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from itertools import chain, product
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd

from lib.cluster.spec import Usage
from lib.drivers.plan import Plan, Stage
from lib.drivers.record import Access, EvalPoint, Finished, ModelSnapshot, check_batches_taken, digest, gradient_ledger
from lib.protocols.statistics import pool_statistics
from lib.tasks.flat_model import FlatModel
from lib.tasks.metrics import entropy
from lib.tasks.workload import evaluate

STALENESS = ("staleness", "data_staleness")
"""By updates of the store, and by steps since the token."""
SUMS = (
    *("samples", "issued", "applied", "decayed", "dropped", "lost", "abandoned", "in_flight", "returns_to_a_cut"),
    *("bytes", "not_finite", "row_gradients_decayed", "rows_read", "rows_validated_away", "rows_evicted"),
    *("mixes_repeated", "batches_abandoned", "servers_attached_again", "gradients_lost_at_servers", "steps_captured"),
)
"""Figures of a summary that add up over stages."""
WORKERS_COLUMNS = ("gradients", "decayed", "dropped")
"""Of a worker's gradients: all, and what became of some."""
ACCESS_ARRAYS = {"id": "ids", "version": "versions", "order": "order", "value": "values", "made": "made"}
"""Column of the accesses' table -> the access's array."""
ACCESS_CALLS = ("kind", "batch", "table", "stamp", "safe", "began", "ended")
"""Columns that are the same for all rows of a call."""


class Outcome:
    """All records of one stage, on a clock that starts with it."""

    def __init__(self, plan: Plan, finished: Finished, device: str):
        """`device`: where the model is evaluated."""
        self.plan, self._device, self.seconds = plan, device, finished.end - finished.start
        self._start, self._records = finished.start, finished.records
        self._undone, self._returns, self._lost_worker = finished.undone, finished.returns, finished.lost_worker

    @cached_property
    def _evaluation_model(self) -> FlatModel:
        model = FlatModel(self.plan.workload.model(self.plan.seed), self._device)
        model.module.eval()
        return model

    def final_digest(self) -> str:
        if not self.plan.gradients:  # all that such a run has
            return digest({"steps": self._steps.drop(columns="node").to_numpy()})
        finals = [record for record in self._records if record.final]
        return digest({f"{record.node}/{'+'.join(record.final)}": record.final for record in finals})

    @property
    def accesses(self) -> list[Access]:
        """To rows, if they were noted."""
        return [access for record in self._records for access in record.accesses or ()]

    def trace(self) -> pd.DataFrame:
        """`norm` is the L2 norm of a server's update of its share of the dense parameters, whose number is in `batch`."""
        spans = [(record.node, *span) for record in self._records for span in record.spans or ()]
        table = pd.DataFrame(spans, columns=["node", "kind", "start", "end", "batch", "norm"])
        table[["start", "end"]] -= self._start
        table["norm"] = [*map(float, table["norm"])]
        return table.sort_values(["start", "node"], kind="stable", ignore_index=True)

    def history(self) -> pd.DataFrame:
        """One row for each twentieth of the samples, and one for each evaluation, with the `day` tested on if it is daily."""
        steps = self._steps
        shots = zip(self._snapshots, self._evaluations, strict=True)
        evaluated = []
        for shot, metrics in shots:
            day = {} if shot.point.day is None else {"day": shot.point.day}
            evaluated.append({"time": shot.time, "samples": shot.samples, **day, **metrics})
        if evaluated:
            evaluated[-1]["time"] = self.seconds
        marks = sorted({*np.linspace(0, len(steps), 21)[1:].round().astype(int)} - {0})
        staleness, gaps = {name: self._ages(name) for name in STALENESS}, self._steps_between_mixes()
        rows, done, start = [], 0, 0.0
        for mark in marks:
            part = steps.iloc[done:mark]
            time = part["time"].iloc[-1]
            samples = int(steps["samples"].iloc[:mark].sum())
            row = {"time": time, "step": mark, "samples": samples, **_loss_metrics(part)}
            row |= {f"{name}_mean": _mean_within(ages, start, time) for name, ages in staleness.items() if ages}
            rows.append(row | {"sync_gap": _mean_within(gaps, start, time)})
            done, start = mark, time
        if not rows:  # every batch was left out
            return pd.DataFrame(evaluated)
        history = pd.DataFrame(rows)
        samples, seconds = (history[name].diff().fillna(history[name]) for name in ("samples", "time"))
        history["qps"] = samples / seconds
        history = pd.concat([history, pd.DataFrame(evaluated)], ignore_index=True)
        return history.sort_values("time", kind="stable", ignore_index=True)

    def summary(self, clock: str) -> dict[str, Any]:
        taken = chain.from_iterable(record.taken for record in self._records)
        check_batches_taken(taken, self.plan.batches, complete=not self._lost_worker)
        steps, pipeline = self._steps, self.plan.protocol.dense.family == "pipeline"
        gaps = [gap for _, gap in self._steps_between_mixes()]
        moved, extra = sum((record.bytes for record in self._records), Counter()), Counter()
        for record in self._records:
            extra.update(record.extra)
        by_worker = steps.groupby("node")["samples"].sum() / self.seconds if self.seconds else pd.Series(dtype=float)
        return {
            "clock": clock,
            **(self._evaluations[-1] if self.plan.gradients else {}),
            **self._alternative_models(),
            **_loss_metrics(steps),
            "samples": int(steps["samples"].sum()),
            "qps": float(steps["samples"].sum() / self.seconds) if self.seconds else float("nan"),
            "qps_worker_mean": float(by_worker.mean()),
            "qps_worker_std": float(by_worker.std(ddof=0)),
            **staleness_statistics({name: Counter(map(itemgetter(1), self._ages(name))) for name in STALENESS}),
            "sync_gap": float(np.mean(gaps)) if gaps else float("nan"),
            **gradient_ledger(self._records, self._undone),
            "by_worker": self._gradients_by_worker(),
            "returns_to_a_cut": self._returns,
            "bytes": int(moved.total()),
            "bytes_by_kind": dict(sorted(moved.items())),
            "virtual_seconds": self.seconds if clock == "virtual" else None,
            "wall_seconds": self.seconds if clock == "wall" else None,
            "busy": self._time_shares_by_activity(),
            **{name.replace(" ", "_"): count for name, count in extra.items()},
            "order": next((each.taken for each in self._records if each.taken), None) if pipeline else None,
        }

    @cached_property
    def _steps(self) -> pd.DataFrame:
        """Every gradient that was computed, in the order of time."""
        steps = [(record.node, *step) for record in self._records for step in record.steps]
        columns = ["node", "time", "batch", "samples", "loss", "logloss", "positives"]
        table = pd.DataFrame(steps, columns=columns)
        table["time"] -= self._start
        return table.sort_values(["time", "batch"], ignore_index=True)

    @cached_property
    def _snapshots_by_model(self) -> dict[str, list[list[ModelSnapshot]]]:
        """Whose dense parameters can be the model -> the snapshots of each; "" where there is one model alone."""
        ended = [record for record in self._records if record.final]
        replicas = [record for record in ended if "replica" in record.final]
        if not replicas:
            return {"": [record.snapshots for record in ended if record.snapshots]}
        models = {"first": replicas[:1], "average": replicas}
        if not replicas[0].snapshots[-1].rows:  # sync servers have no rows to go with their copy
            models["centre"] = [record for record in ended if "centre" in record.final]
        return {whose: [record.snapshots for record in records] for whose, records in models.items() if records}

    def _model_snapshots(self, model: str) -> list[ModelSnapshot]:
        """The model's snapshots; a mark that some part never came to is left out, as a replica's is out of their average."""
        parts = self._snapshots_by_model[model]
        if model == "average":
            # Only a rule that pools needs to know where the statistics begin.
            statistics_from = self._evaluation_model.size if self.plan.protocol.dense.statistics == "pooled" else None
            parts = [_average_replicas(parts, statistics_from)]
        if model:
            parts = [*parts, *(each.snapshots for each in self._records if "rows" in each.final)]
        at = [{shot.point: shot for shot in part[:-1]} for part in parts]
        marks = [tuple(shots[mark] for shots in at) for mark in at[0] if all(mark in shots for shots in at)]
        return [self._join_snapshots(pieces) for pieces in [*marks, tuple(part[-1] for part in parts)]]

    @property
    def _model(self) -> str:
        """Whose parameters are the model."""
        return "" if "" in self._snapshots_by_model else self.plan.protocol.dense.model

    @cached_property
    def _snapshots(self) -> list[ModelSnapshot]:
        return self._model_snapshots(self._model) if self.plan.gradients else []

    @property
    def day(self) -> int | None:
        """The day on which the model was evaluated at the end; None: the one after the pass."""
        return self._snapshots[-1].point.day if self._snapshots else None

    def _join_snapshots(self, pieces: tuple[ModelSnapshot, ...]) -> ModelSnapshot:
        mark = pieces[0].point
        shards = {shard: values for piece in pieces for shard, values in piece.dense.items()}
        ids = self.plan.workload.evaluation_ids(self.plan.seed, mark.day)
        rows = {name: np.empty((ids[name].size, dim), np.float32) for name, dim in self.plan.dims.items()}
        for piece in pieces:
            for name, (positions, values) in piece.rows.items():
                rows[name][positions] = values
        time, samples = max(piece.time for piece in pieces), max(piece.samples for piece in pieces)
        dense = np.concatenate([shards[shard] for shard in sorted(shards)])
        return ModelSnapshot(mark, time - self._start, min(samples, self.plan.samples), {0: dense}, rows)

    @cached_property
    def _evaluations(self) -> list[dict[str, float]]:
        return [self._evaluate(shot) for shot in self._snapshots]

    def _evaluate(self, shot: ModelSnapshot) -> dict[str, float]:
        self._evaluation_model.load(shot.dense[0])
        return evaluate(self.plan.workload, self._evaluation_model.module, shot.rows, self.plan.seed, shot.point.day)

    def _alternative_models(self) -> dict[str, float]:
        """The metrics at the end of what the model might have been besides: the first worker's replica, the average of all
        replicas, the sync servers' copy."""
        if not self.plan.gradients or self._model == "":
            return {}
        models = self._snapshots_by_model
        others = models.keys() - {self._model, *(["average"] if len(models["average"]) < 2 else [])}
        ends = {whose: self._model_snapshots(whose)[-1] for whose in sorted(others)}
        metrics = {whose: self._evaluate(end) for whose, end in ends.items()}
        return {f"{metric}_of_{whose}": value for whose, each in metrics.items() for metric, value in each.items()}

    def _gradients_by_worker(self) -> dict[str, dict[str, float]]:
        """Worker -> gradients that it computed, those of them that were decayed and dropped, and its mean staleness."""
        nodes = {batch: record.node for record in self._records for batch in record.taken}
        workers = {node: dict.fromkeys(WORKERS_COLUMNS, 0) for node in sorted(set(nodes.values()))}
        for node in nodes.values():
            workers[node]["gradients"] += 1
        computing = [record for record in self._records if record.ledger["issued"]]
        deciding = [record for record in self._records if record.ledger["started"] and "dense" in record.final][:1]
        for batch, outcome in chain.from_iterable(record.unused for record in deciding or computing):
            if batch in nodes:  # others were lost with their worker
                workers[nodes[batch]][outcome] += 1
        ages: defaultdict[str, list[int]] = defaultdict(list)
        for _, age, batch in chain.from_iterable(self._deciding_staleness("staleness")):
            if batch in nodes:
                ages[nodes[batch]].append(age)
        return {
            node: counts | ({"staleness": _mean(ages[node])} if node in ages else {})
            for node, counts in workers.items()
        }

    def _deciding_staleness(self, measure: str) -> list[list[tuple]]:
        """Notes on staleness, from the first server; replicas without servers have their own."""
        notes = [(record.ledger["issued"], getattr(record, measure)) for record in self._records]
        return [ages for issued, ages in notes if ages and not issued][:1] or [ages for _, ages in notes]

    def _ages(self, name: str) -> list[tuple[float, int]]:
        """Staleness with its times."""
        return self._since_start(self._deciding_staleness(name))

    def _steps_between_mixes(self) -> list[tuple[float, int]]:
        return self._since_start([record.steps_between_mixes for record in self._records])

    def _since_start(self, notes: list[list[tuple]]) -> list[tuple[float, int]]:
        return [(time - self._start, value) for note in notes for time, value, *_ in note]

    def _time_shares_by_activity(self) -> dict[str, float]:
        """Share of the workers' time by what they did. Stages of a pipeline and a shadow's mixing overlap with compute."""
        trace = self.trace()
        trace = trace[trace["node"].str.startswith("worker") & (trace["kind"] != "push")]
        total = self.seconds * max(1, trace["node"].nunique())
        if not total:
            return {}
        spent = (trace["end"] - trace["start"]).groupby(trace["kind"]).sum() / total
        return {str(kind): float(share) for kind, share in spent.items()}


class StagedOutcome:
    """A run with one stage is that stage's outcome; more, or those that were chosen, are put one after another."""

    def __init__(self, stages: Sequence[Stage], device: str = "cpu"):
        self._stages = stages
        self._outcomes = [Outcome(stage.plan, stage.finished, device) for stage in stages]
        self._joined = len(stages) > 1 or stages[0].plan.watch is not None
        self._start = stages[0].finished.start
        self.seconds = stages[-1].finished.end - self._start
        self.events = stages[-1].finished.events

    def final_digest(self) -> str:
        return self._outcomes[-1].final_digest()

    def history(self) -> pd.DataFrame:
        """The stages' histories; where stages are joined, `stage` and `protocol`."""
        parts, samples, step = [], 0, 0
        for number, (stage, outcome) in enumerate(zip(self._stages, self._outcomes, strict=True)):
            part = outcome.history()
            steps = part["step"].max() if "step" in part else 0
            for column, before in (("time", self._seconds_before(stage)), ("samples", samples), ("step", step)):
                if column in part:
                    part[column] += before
            place = {"stage": number, "protocol": stage.plan.protocol.name} if self._joined else {}
            parts.append(part.assign(**place))
            samples, step = samples + stage.plan.samples, step + steps
        return pd.concat(parts, ignore_index=True)

    def trace(self) -> pd.DataFrame:
        """The stages' traces; batches are counted on."""
        parts, batches = [], 0
        for stage, outcome in zip(self._stages, self._outcomes, strict=True):
            part = outcome.trace()
            part[["start", "end"]] += self._seconds_before(stage)
            part["batch"] += batches
            parts.append(part)
            batches += stage.plan.batches
        return pd.concat(parts, ignore_index=True)

    def accesses(self) -> pd.DataFrame | None:
        """Of all stages, where they were noted."""
        return row_access_table([each.accesses for each in self._outcomes]) if self._stages[0].plan.accesses else None

    def resource_usage(self) -> pd.DataFrame:
        """A row for each node and link: shares of the run's time, queueing and bytes. Empty on a wall clock."""
        books = self._stages[-1].finished.usage  # a world counts over all stages
        table = pd.DataFrame(books, columns=[field.name for field in fields(Usage)])
        for share in ("sent", "received"):
            table[share] /= self.seconds or 1.0
        table["computed"] /= table["lanes"].clip(lower=1) * (self.seconds or 1.0)
        return table

    def summary(self, clock: str) -> dict[str, Any]:
        """The last stage's metrics; sums, means over samples or gradients, and maxima of what belongs to the whole; and where
        stages are joined each one's summary, under `stages`. A choice leaves its `decisions` too."""
        summaries = [outcome.summary(clock) for outcome in self._outcomes]
        if not self._joined:
            return summaries[0]
        whole = summaries[-1] | {name: sum(each.get(name, 0) for each in summaries) for name in SUMS}
        whole = {name: value for name, value in whole.items() if value or name in summaries[-1]}
        ages = {name: Counter() for name in STALENESS}
        for name, each in product(STALENESS, summaries):
            ages[name].update({int(age): count for age, count in each.get(name, {}).items()})
        trained = [each for each in summaries if each["samples"]]  # all workers may be dead throughout a stage
        for name in ("train_loss", "train_ne", "sync_gap", "qps_worker_mean", "qps_worker_std"):
            total = sum(each[name] * each["samples"] for each in trained)
            whole[name] = total / whole["samples"] if trained else float("nan")
        moved = sum((Counter(each["bytes_by_kind"]) for each in summaries), Counter())
        whole |= {
            "qps": whole["samples"] / self.seconds if self.seconds else float("nan"),
            **staleness_statistics(ages),
            "bytes_by_kind": dict(sorted(moved.items())),
            "by_worker": _sum_over_stages([each["by_worker"] for each in summaries]),
            f"{clock}_seconds": self.seconds,
            "busy": self._time_shares_by_activity(summaries, clock),
        }
        if decisions := self._decisions():
            whole["decisions"] = decisions
        stages = zip(self._stages, self._outcomes, summaries, strict=True)
        return whole | {"stages": [self._stage(*each) for each in stages]}

    def _decisions(self) -> list[dict[str, Any]]:
        """When the controller decided, for which phase, and the samples per second that it predicted for each."""
        watches = [stage.finished.watch for stage in self._stages if stage.finished.watch]
        made = [decision for watch in watches for decision in watch.decisions]
        return [
            {"time": each.time - self._start, "phase": each.phase, "predicted": list(each.predicted)} for each in made
        ]

    def _seconds_before(self, stage: Stage) -> float:
        """Seconds of the run before a stage."""
        return stage.finished.start - self._start

    def _time_shares_by_activity(self, stage_summaries: Sequence[dict[str, Any]], clock: str) -> dict[str, float]:
        total: Counter = Counter()
        for each in stage_summaries:
            total.update({kind: share * each[f"{clock}_seconds"] for kind, share in each["busy"].items()})
        return {kind: seconds / self.seconds for kind, seconds in total.items()} if self.seconds else {}

    def _stage(self, stage: Stage, outcome: Outcome, summary: dict[str, Any]) -> dict[str, Any]:
        plan = stage.plan
        place = {"protocol": plan.protocol.name, "workers": plan.workers, "batch_size": plan.workload.batch_size}
        return place | {"first": plan.first, "start": self._seconds_before(stage), "day": outcome.day} | summary


def row_access_table(stages: Sequence[Sequence[Access]]) -> pd.DataFrame:
    """The accesses that pipelines noted, a row for each row of a table that a call came to."""
    accesses = [access for stage in stages for access in stage]
    sizes = [access.ids.size for access in accesses]
    columns: dict[str, Any] = {"stage": np.repeat([n for n, stage in enumerate(stages) for _ in stage], sizes)}
    columns |= {name: np.repeat([getattr(access, name) for access in accesses], sizes) for name in ACCESS_CALLS}
    for column, name in ACCESS_ARRAYS.items():
        parts = (getattr(access, name) for access in accesses)
        none = (np.zeros(n, np.int64) for n in sizes)
        columns[column] = np.concatenate(
            [zeros if part is None else part for part, zeros in zip(parts, none, strict=True)]
        )
    return pd.DataFrame(columns)


def staleness_statistics(ages: Mapping[str, Counter[int]]) -> dict[str, Any]:
    """Mean, maximum and histogram of each; nothing of data staleness where no gradient had a token."""
    summary = {}
    for name, counts in ages.items():
        if counts or name == "staleness":
            total = sum(age * count for age, count in counts.items())
            summary |= {
                f"{name}_mean": total / counts.total() if counts else 0.0,
                f"{name}_max": max(counts, default=0),
                name: {str(age): counts[age] for age in sorted(counts)},
            }
    return summary


def _sum_over_stages(stages: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Sums over stages; each stage's own summary has the staleness."""
    nodes = dict.fromkeys(chain.from_iterable(stages))
    return {
        node: {name: sum(each.get(node, {}).get(name, 0) for each in stages) for name in WORKERS_COLUMNS}
        for node in nodes
    }


def _loss_metrics(steps: pd.DataFrame) -> dict[str, float]:
    """The mean loss, and the normalised entropy of predictions made before the update: log loss over that of the constant base
    rate."""
    samples, loss, ne = steps["samples"].sum(), math.nan, math.nan
    if samples:
        loss = float(np.average(steps["loss"], weights=steps["samples"]))
        if not steps["logloss"].isna().any():
            ne = float(steps["logloss"].sum() / samples / entropy(steps["positives"].sum() / samples))
    return {"train_loss": loss, "train_ne": ne}


def _mean_within(timed_values: list[tuple[float, int]], start: float, end: float) -> float:
    return _mean([value for time, value in timed_values if start < time <= end])


def _mean(values: list[int]) -> float:
    return float(np.mean(values)) if values else float("nan")


def _average_replicas(courses: list[list[ModelSnapshot]], statistics_from: int | None) -> list[ModelSnapshot]:
    """The mean replica at each mark, of those that came to it, and at the end."""
    marks: defaultdict[EvalPoint, list[ModelSnapshot]] = defaultdict(list)
    for shot in chain.from_iterable(course[:-1] for course in courses):
        marks[shot.point].append(shot)
    ways = [marks[mark] for mark in sorted(marks, key=lambda mark: mark.samples)]
    return [_mean_snapshot(shots, statistics_from) for shots in [*ways, [course[-1] for course in courses]]]


def _mean_snapshot(shots: list[ModelSnapshot], statistics_from: int | None) -> ModelSnapshot:
    dense = {0: np.mean([shot.dense[0] for shot in shots], axis=0)}
    if statistics_from is not None:
        dense[0][statistics_from:] = pool_statistics([shot.dense[0][statistics_from:] for shot in shots])
    rows = {name: (slice(None), np.mean([shot.rows[name][1] for shot in shots], axis=0)) for name in shots[0].rows}
    time, samples = max(shot.time for shot in shots), max(shot.samples for shot in shots)
    return ModelSnapshot(shots[0].point, time, samples, dense, rows)
