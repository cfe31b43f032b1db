"""OAC's rule alone, a store and a cache of plain dictionaries, and every order in which batches can come; `anomalies` judges."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from lib import streams
from lib.drivers.record import END, Access
from lib.protocols.oac import OAC, OptimisticState
from lib.results.anomalies import anomalies

ROWS = "abcd"


class Play:
    """Batches that take their steps when they are told to, each through `STAGES`."""

    STAGES = ("admit", "read", "compute", "write", "finish")

    def __init__(self, rule, reads):
        self.rule, self.reads, self.state = rule, reads, rule.init()
        self.store, self.cache = dict.fromkeys(ROWS, -1), {}
        self.admission, self.found, self.stamp, self.history = {}, {}, {}, []

    def go(self, order):
        """`order` names a batch for each of its steps, one after another."""
        done = dict.fromkeys(range(len(self.reads)), 0)
        for batch in order:
            getattr(self, self.STAGES[done[batch]])(batch)
            done[batch] += 1
        self.note("read", END, self.store)
        return anomalies(self.history)

    def note(self, kind, batch, versions, **more):
        ids = np.array([ord(row) for row in versions])
        self.history.append(Access(kind, batch, "letter", ids, np.array([*versions.values()]), **more))

    def admit(self, batch):
        self.state, self.admission[batch] = self.rule.on_read(self.state, batch)

    def read(self, batch):
        self.found[batch] = {row: self.store[row] for row in self.reads[batch]}
        self.note("read", batch, self.found[batch])

    def compute(self, batch):
        cached = np.array([self.cache.get(row, -1) for row in self.reads[batch]])
        found = np.array([self.found[batch][row] for row in self.reads[batch]])
        used = np.where(self.rule.stale(found, cached), cached, found)
        safe, stamp = self.admission[batch].safe, len(self.stamp)
        self.cache = {row: version for row, version in self.cache.items() if version > safe}
        self.note("compute", batch, dict(zip(self.reads[batch], used, strict=True)), stamp=stamp, safe=safe)
        self.cache |= dict.fromkeys(self.reads[batch], stamp)
        self.stamp[batch] = stamp

    def write(self, batch):
        self.note("write", batch, dict.fromkeys(self.reads[batch], self.stamp[batch]))
        for row in self.reads[batch]:
            self.store[row] = max(self.store[row], self.stamp[batch])

    def finish(self, batch):
        self.state = self.rule.on_written(self.state, batch, self.stamp[batch])


class InThree(Play):
    """Nothing comes between admission and reading, or between writing and its being known."""

    STAGES = ("begin", "compute", "end")

    def begin(self, batch):
        self.admit(batch)
        self.read(batch)

    def end(self, batch):
        self.write(batch)
        self.finish(batch)


def test_all_orders_of_three_batches_over_four_rows():
    orders = set(permutations([0, 0, 0, 1, 1, 1, 2, 2, 2]))
    assert len(orders) == 1680
    for reads in (("ab", "bc", "ad"), ("abcd", "a", "ab")):
        for order in orders:
            assert InThree(OAC(), reads).go(order) == []


def first_anomaly(rule, plays=6000):
    """The kind of the first that random orders of four or five batches show."""
    for number in range(plays):
        stream, kind, batches = streams.stream(5, "order", number), (Play, InThree)[number % 2], 5 - number % 2
        reads = ["".join(sorted(stream.choice([*ROWS], stream.integers(1, 5), replace=False))) for _ in range(batches)]
        order = stream.permutation(np.repeat(np.arange(batches), len(kind.STAGES))).tolist()
        if found := kind(rule, reads).go(order):
            return found[0].kind
    return None


def test_random_orders_of_more_batches():
    assert first_anomaly(OAC()) is None


def test_what_a_gap_in_the_timestamps_does():
    """Batch 1 is written before batch 0; 2 reads between the two; 3 comes before 2 and lets go of what 2 still lacks."""
    order = [0, 1, 0, 1, 1, 2, 0, 3, 3, 2, 2, 3]
    assert InThree(OAC(), ("ab", "bc", "ad", "c")).go(order) == []
    early, stale, lost = InThree(Gap(), ("ab", "bc", "ad", "c")).go(order)
    assert str(early) == "early eviction: batch 2 had version -1 of letter 97, and not 0 by batch 0"
    assert str(stale) == str(early).replace("early eviction", "stale read")
    assert (
        str(lost)
        == "lost update: at the end the store has version 3 of letter 97, which was not made from 0 by batch 0"
    )


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


@pytest.mark.parametrize(
    "rule", [Gap(), HighMFT(), HighSTE(), OwnMFT(), Forgetful()], ids=lambda rule: type(rule).__name__
)
def test_a_cache_that_forgets_too_early(rule):
    assert first_anomaly(rule) == "early eviction"


def test_no_validation():
    assert first_anomaly(Blind()) == "stale read"
