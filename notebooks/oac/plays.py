"""A pipeline of plain dictionaries that takes its steps when it is told to, and every order in which batches can come.

The rule is the real one; store, device and cache are a few lines each, so that all orders of three batches' steps can be played
and what a careless store or device does can be written down. What is told of an order is its history alone.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from lib import PipelineRule
from lib.drivers.run.record import END, Access
from notebooks.oac.anomalies import Anomaly, anomalies

ROWS = "abcd"


class Play:
    """Batches that take their steps when they are told to, each through `STAGES`."""

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
        used = np.where(self.rule.stale(found, cached), cached, found)
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
    """All orders of the batches' steps that can be told apart, up to the batches' names: neighbours that happen in different
    parts, and could as well change places, stand by batch; and batches are admitted by number."""

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
