"""A pipeline of plain dictionaries, every order in which batches can come, and pipelines that are wrong in one thing.

The rule is the real one; store, device and cache are a few lines each, so that all orders of three batches' steps can be played
and what a careless store or device does can be written down. Of an order its history alone is known.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from lib import PipelineRule, streams
from lib.drivers.record import END, Access
from lib.protocols.oac import OAC, OptimisticState
from notebooks.oac.anomalies import Anomaly, anomalies

ROWS = "abcd"


class Play:
    """A pipeline whose batches take their steps in a given order, each through `STAGES`."""

    STAGES = ("admit", "read", "compute", "write", "finish")

    def __init__(self, rule: PipelineRule, reads: Sequence[str], rows: str = ROWS):
        self.rule, self.reads, self.state = rule, reads, rule.init()
        self.store, self.cache = dict.fromkeys(rows, -1), {}
        self.admission, self.found, self.stamp, self.history = {}, {}, {}, []

    def go(self, order: Sequence[int]) -> list[Anomaly]:
        """`order` names a batch for each of its steps, one after another."""
        done = dict.fromkeys(range(len(self.reads)), 0)
        for batch in order:
            getattr(self, self.STAGES[done[batch]])(batch)
            done[batch] += 1
        self.note("read", END, self.store)
        return anomalies(self.history)

    def note(self, kind: str, batch: int, versions: Mapping[str, int], **more) -> None:
        ids = np.array([ord(row) for row in versions])
        self.history.append(Access(kind, batch, "letter", ids, np.array([*versions.values()]), **more))

    def admit(self, batch: int) -> None:
        self.state, self.admission[batch] = self.rule.on_read(self.state, batch)

    def read(self, batch: int) -> None:
        self.found[batch] = {row: self.store[row] for row in self.reads[batch]}
        self.note("read", batch, self.found[batch])

    def compute(self, batch: int) -> None:
        cached = np.array([self.cache.get(row, -1) for row in self.reads[batch]])
        found = np.array([self.found[batch][row] for row in self.reads[batch]])
        used = np.where(self.rule.stale_reads(found, cached), cached, found)
        safe, stamp = self.admission[batch].safe, len(self.stamp)
        self.cache = {row: version for row, version in self.cache.items() if version > safe}
        self.note("compute", batch, dict(zip(self.reads[batch], used, strict=True)), stamp=stamp, safe=safe)
        self.cache |= dict.fromkeys(self.reads[batch], stamp)
        self.stamp[batch] = stamp

    def write(self, batch: int) -> None:
        self.note("write", batch, dict.fromkeys(self.reads[batch], self.stamp[batch]))
        for row in self.reads[batch]:
            self.store[row] = max(self.store[row], self.stamp[batch])

    def finish(self, batch: int) -> None:
        self.state = self.rule.on_written(self.state, batch, self.stamp[batch])


class InThree(Play):
    """Nothing comes between admission and reading, or between writing and its being known."""

    STAGES = ("begin", "compute", "end")

    def begin(self, batch: int) -> None:
        self.admit(batch)
        self.read(batch)

    def end(self, batch: int) -> None:
        self.write(batch)
        self.finish(batch)


STORE = ("read", "compare", "write")
"""The steps that happen there; one on the device is called compute, the others are the rule's."""
READS = ("abc", "abd", "acd")
"""The first row is read by all three batches, each other one by two of them. Rows know nothing of each other, and what a single
batch reads has no conflict: so whatever three batches read, each row of it is here."""


def orders(batches: int, steps: Sequence[str] = Play.STAGES) -> Iterator[tuple[int, ...]]:
    """All distinguishable orders of the batches' steps, up to the batches' names. Adjacent steps in different parts that
    could swap are sorted by batch; batches are admitted by number."""

    def further(order, done):
        if len(order) == batches * len(steps):
            yield order
        for batch in range(batches):
            if done[batch] == len(steps) or (batch and not done[batch] and not done[batch - 1]):
                continue
            last = order[-1] if order else -1
            if batch < last and part(steps[done[batch]]) != part(steps[done[last] - 1]):
                continue
            yield from further((*order, batch), [*done[:batch], done[batch] + 1, *done[batch + 1 :]])

    def part(step):
        return "store" if step in STORE else step == "compute"

    return further((), [0] * batches)


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
    def stale_reads(self, read, cached):
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
        draws, kind, batches = streams.stream(5, "order", number), (Play, InThree)[number % 2], 5 - number % 2
        reads = ["".join(sorted(draws.choice([*ROWS], draws.integers(1, 5), replace=False))) for _ in range(batches)]
        order = draws.permutation(np.repeat(np.arange(batches), len(kind.STAGES))).tolist()
        yield kind(rule, reads).go(order)


def all_plays(play: type[Play] = Play) -> Iterator[list[Anomaly]]:
    """What all orders of three batches show."""
    return (play(OAC(), READS).go(order) for order in orders(3, play.STAGES))


def detect(most: int) -> pd.DataFrame:
    """Each fault with how many orders were played, how many of them show it, and the first anomaly."""
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
