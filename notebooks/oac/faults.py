"""Pipelines that are wrong in one thing, and what the checker sees of it in their histories."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from lib.protocols.oac import OAC, OptimisticState
from lib.streams import stream
from notebooks.oac.anomalies import Anomaly
from notebooks.oac.plays import READS, ROWS, InThree, Play, orders


class Gap(OAC):
    """MFT is the latest timestamp that is written."""

    def on_written(self, state, batch, stamp):
        after = super().on_written(state, batch, stamp)
        return OptimisticState(finished=max(state.finished, stamp), outstanding=after.outstanding)


class HighMFT(OAC):
    def on_read(self, state, batch):
        _, admission = super().on_read(replace(state, finished=state.finished + 1), batch)
        return super().on_read(state, batch)[0], admission


class HighSTE(OAC):
    def on_read(self, state, batch):
        state, admission = super().on_read(state, batch)
        return state, replace(admission, safe=admission.safe + 1)


class OwnMFT(OAC):
    """A batch looks at its own MFT alone."""

    def on_read(self, state, batch):
        after, admission = super().on_read(state, batch)
        return after, replace(admission, safe=state.finished)


class Forgetful(OAC):
    """A batch is outstanding until another is written."""

    def on_written(self, state, batch, stamp):
        return replace(super().on_written(state, batch, stamp), outstanding={})


class Blind(OAC):
    def stale(self, read, cached):
        return np.zeros(len(read), bool)


class NoLock(Play):
    """Another batch may write between the comparison of the timestamps and the writing."""

    STAGES = ("admit", "read", "compute", "compare", "write", "finish")

    def compare(self, batch):
        self.larger = getattr(self, "larger", {})
        self.larger[batch] = [row for row in self.reads[batch] if self.stamp[batch] > self.store[row]]

    def write(self, batch):
        self.note("write", batch, dict.fromkeys(self.reads[batch], self.stamp[batch]))
        self.store |= dict.fromkeys(self.larger[batch], self.stamp[batch])


class AnyTimestamp(Play):
    def write(self, batch):
        self.note("write", batch, dict.fromkeys(self.reads[batch], self.stamp[batch]))
        self.store |= dict.fromkeys(self.reads[batch], self.stamp[batch])


class OldEntry(Play):
    """What is in the cache stays there."""

    def compute(self, batch):
        before = dict(self.cache)
        super().compute(batch)
        self.cache |= {row: version for row, version in before.items() if version > self.admission[batch].safe}


class TwoReadings(Play):
    """The rows get one reading of the device's counter, and the cache the next."""

    def compute(self, batch):
        super().compute(batch)
        self.cache |= dict.fromkeys(self.reads[batch], self.stamp[batch] + 1)


class OneReading(Play):
    """Two batches get one reading of it: it moves when the next batch but one comes."""

    def compute(self, batch):
        before = self.stamp
        self.stamp = dict.fromkeys(range(len(before) // 2))
        super().compute(batch)
        self.stamp = before | {batch: self.stamp[batch]}


class LateMFT(Play):
    """MFT is read once more, for the outstanding batches, a while after the rows."""

    STAGES = ("admit", "read", "enter", "compute", "write", "finish")

    def enter(self, batch):
        self.state = replace(self.state, outstanding={**self.state.outstanding, batch: self.state.finished})


RULES: Mapping[str, OAC] = {
    "no validation": Blind(),
    "MFT over a gap": Gap(),
    "MFT one too high": HighMFT(),
    "STE one too high": HighSTE(),
    "a batch looks at its own MFT alone": OwnMFT(),
    "batches leave the outstanding ones too early": Forgetful(),
}
"""What the rule does wrong; random orders of four or five batches show it."""

PLAYS: Mapping[str, type[Play]] = {
    "no lock between comparing and writing": NoLock,
    "writes that ignore timestamps": AnyTimestamp,
    "a cache entry that an older one overwrites": OldEntry,
    "counter read twice for one batch": TwoReadings,
    "one reading of the counter for two batches": OneReading,
    "MFT read again after the rows": LateMFT,
}
"""What the store or the device does wrong; all orders of three batches show it."""


ENOUGH = 6000
"""Random orders after which a fault that none has shown is given up; a gap in MFT needs thousands."""


def random_plays(rule: OAC, plays: int = ENOUGH) -> Iterator[list[Anomaly]]:
    """What random orders of four or five batches over four rows show."""
    for number in range(plays):
        draws, kind, batches = stream(5, "order", number), (Play, InThree)[number % 2], 5 - number % 2
        reads = ["".join(sorted(draws.choice([*ROWS], draws.integers(1, 5), replace=False))) for _ in range(batches)]
        order = draws.permutation(np.repeat(np.arange(batches), len(kind.STAGES))).tolist()
        yield kind(rule, reads).go(order)


def all_plays(play: type[Play] = Play) -> Iterator[list[Anomaly]]:
    """What all orders of three batches show."""
    return (play(OAC(), READS).go(order) for order in orders(3, play.STAGES))


def detect(most: int) -> pd.DataFrame:
    """Each fault with what shows it: of so many orders, or of more until one does, how many do, and what the first says."""
    many = max(most, ENOUGH)
    cases = {"none, in random orders": random_plays(OAC(), many), "none, in all orders": all_plays()}
    cases |= {name: random_plays(rule, many) for name, rule in RULES.items()}
    cases |= {name: all_plays(play) for name, play in PLAYS.items()}
    rows = []
    for fault, plays in cases.items():
        showing: list[list[Anomaly]] = []
        for played, found in enumerate(plays, 1):
            showing += [found] if found else []
            if played >= most and showing:
                break
        first = str(showing[0][0]) if showing else "–"
        rows.append({"fault": fault, "orders": played, "show it": len(showing), "the first says": first})
    return pd.DataFrame(rows)
