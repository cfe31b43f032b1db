"""What the stages of a run leave together: one clock, one count of samples, one ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from lib.cluster.spec import Usage
from lib.drivers.run.plan import Stage
from lib.drivers.run.record import Access
from lib.results.outcome import STALENESS, Outcome, stale

SUMS = (
    *("samples", "issued", "applied", "decayed", "dropped", "lost", "abandoned", "in_flight", "returns_to_a_cut"),
    *("bytes", "not_finite", "row_gradients_decayed", "rows_read", "rows_validated_away", "rows_evicted"),
    *("mixes_repeated", "batches_abandoned", "servers_attached_again", "gradients_lost_at_servers"),
)
"""Figures of a summary that add up over stages."""
ACCESS_ARRAYS = {"id": "ids", "version": "versions", "order": "order", "value": "values", "made": "made"}
"""Column of the accesses' table -> the access's array."""
ACCESS_CALLS = ("kind", "batch", "table", "stamp", "safe", "began", "ended")
"""Columns that are the same for all rows of a call."""


class Outcomes:
    """A run with one stage is that stage's outcome; more, or those that were chosen, are put one after another."""

    def __init__(self, stages: Sequence[Stage]):
        self._stages = stages
        self._outcomes = [Outcome(stage.plan, stage.finished) for stage in stages]
        self._joined = len(stages) > 1 or stages[0].plan.watch is not None
        self._start = stages[0].finished.start
        self.seconds = stages[-1].finished.end - self._start
        self.events = stages[-1].finished.events

    def digest(self) -> str:
        return self._outcomes[-1].digest()

    def history(self) -> pd.DataFrame:
        """The stages' histories; where stages are joined, `stage` and `protocol`."""
        parts, samples, step = [], 0, 0
        for number, (stage, outcome) in enumerate(zip(self._stages, self._outcomes, strict=True)):
            part = outcome.history()
            steps = part["step"].max() if "step" in part else 0
            for column, before in (("time", self._before(stage)), ("samples", samples), ("step", step)):
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
            part[["start", "end"]] += self._before(stage)
            part["batch"] += batches
            parts.append(part)
            batches += stage.plan.batches
        return pd.concat(parts, ignore_index=True)

    def accesses(self) -> pd.DataFrame | None:
        """Of all stages, where they were noted."""
        return access_table([each.accesses for each in self._outcomes]) if self._stages[0].plan.accesses else None

    def usage(self) -> pd.DataFrame:
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
        trained = [
            each for each in summaries if each["samples"]
        ]  # all workers may be dead for as long as a stage lasts
        for name in ("train_loss", "train_ne", "sync_gap", "qps_worker_mean", "qps_worker_std"):
            total = sum(each[name] * each["samples"] for each in trained)
            whole[name] = total / whole["samples"] if trained else float("nan")
        moved = sum((Counter(each["bytes_by_kind"]) for each in summaries), Counter())
        whole |= {
            "qps": whole["samples"] / self.seconds if self.seconds else float("nan"),
            **stale(ages),
            "bytes_by_kind": dict(sorted(moved.items())),
            f"{clock}_seconds": self.seconds,
            "busy": self._busy(summaries, clock),
        }
        if decisions := self._decisions():
            whole["decisions"] = decisions
        return whole | {
            "stages": [self._stage(*each) for each in zip(self._stages, self._outcomes, summaries, strict=True)]
        }

    def _decisions(self) -> list[dict[str, Any]]:
        """When the controller decided, for which phase, and the samples per second that it predicted for each."""
        watches = [stage.finished.watch for stage in self._stages if stage.finished.watch]
        made = [decision for watch in watches for decision in watch.decisions]
        return [
            {"time": each.time - self._start, "phase": each.phase, "predicted": list(each.predicted)} for each in made
        ]

    def _before(self, stage: Stage) -> float:
        """Seconds of the run before a stage."""
        return stage.finished.start - self._start

    def _busy(self, summaries: Sequence[dict[str, Any]], clock: str) -> dict[str, float]:
        total: Counter = Counter()
        for each in summaries:
            total.update({kind: share * each[f"{clock}_seconds"] for kind, share in each["busy"].items()})
        return {kind: seconds / self.seconds for kind, seconds in total.items()} if self.seconds else {}

    def _stage(self, stage: Stage, outcome: Outcome, summary: dict[str, Any]) -> dict[str, Any]:
        plan = stage.plan
        place = {"protocol": plan.protocol.name, "workers": plan.workers, "batch_size": plan.workload.batch_size}
        return place | {"first": plan.first, "start": self._before(stage), "day": outcome.day} | summary


def access_table(stages: Sequence[Sequence[Access]]) -> pd.DataFrame:
    """The accesses that pipelines noted, a row for each row of a table that a call came to."""
    accesses = [access for stage in stages for access in stage]
    sizes = [access.ids.size for access in accesses]
    columns: dict[str, Any] = {"stage": np.repeat([n for n, stage in enumerate(stages) for _ in stage], sizes)}
    columns |= {name: np.repeat([getattr(access, name) for access in accesses], sizes) for name in ACCESS_CALLS}
    for column, name in ACCESS_ARRAYS.items():
        parts = (getattr(access, name) for access in accesses)
        columns[column] = np.concatenate(
            [np.zeros(n, np.int64) if part is None else part for part, n in zip(parts, sizes, strict=True)]
        )
    return pd.DataFrame(columns)
