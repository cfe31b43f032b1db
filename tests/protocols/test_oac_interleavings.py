"""OAC's rule alone, a store and a cache of plain dictionaries, and every order in which batches can come; `anomalies` judges."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

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


STORE = ("read", "compare", "write")
"""The steps that happen there; one on the device is called compute, the others are the rule's."""
READS = ("abc", "abd", "acd")
"""The first row is read by all three batches, each other one by two of them. Rows know nothing of each other, and what a single
batch reads has no conflict: so whatever three batches read, each row of it is here."""


def orders(batches, steps=Play.STAGES):
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


def told_apart(order, reads):
    """What a part can tell of an order: the accesses in the store's and on the device, and what each batch was told."""
    play = Play(OAC(), reads)
    play.go(order)
    store, device = [], []
    for access in play.history:
        (device if access.kind == "compute" else store).append(
            (access.kind, access.batch, *access.versions.tolist(), access.safe)
        )
    return str((store, device, play.admission))


def test_no_order_is_left_out():
    every = [[int(number not in firsts) for number in range(10)] for firsts in combinations(range(10), 5)]
    seen = {told_apart(order, ("a", "a")) for order in every if order[0] == 0}
    assert seen == {told_apart(order, ("a", "a")) for order in orders(2)}


def test_all_orders_of_three_batches_over_four_rows():
    for count, order in enumerate(orders(3), 1):  # noqa: B007 - how many there were
        assert Play(OAC(), READS).go(order) == []
    assert count == 3025


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


@pytest.mark.parametrize(
    "play, kind",
    [
        (NoLock, "lost update"),
        (AnyTimestamp, "lost update"),
        (OldEntry, "stale read"),
        (TwoReadings, "stale read"),
        (OneReading, "lost update"),
        (LateMFT, "early eviction"),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_a_store_or_a_device_that_is_careless(play, kind):
    """The first of all orders of three batches that shows anything."""
    found = (play(OAC(), READS).go(order) for order in orders(3, play.STAGES))
    assert next(filter(None, found))[0].kind == kind


@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_most_that_the_cache_needs_in_any_run(most):
    """All runs of a few batches: after a computation, updates beyond the STE by which the cache was cleared."""
    rule, largest = OAC(in_flight=most), 0
    seen, todo = set(), [(rule.init(), (), 0)]
    while todo:
        state, held, stamps = todo.pop()
        if (known := (state.finished, state.early, *state.outstanding.items(), held, stamps)) in seen:
            continue
        seen.add(known)
        if rule.may_read(state) and (batch := state.seen + len(held)) < 3 * most + 1:
            after, admission = rule.on_read(state, batch)
            todo.append((after, (*held, (batch, admission.safe, None)), stamps))
        for each in held:
            (batch, safe, stamp), others = each, tuple(other for other in held if other is not each)
            if stamp is None:
                largest = max(largest, stamps - safe)
                todo.append((state, (*others, (batch, safe, stamps)), stamps + 1))
            else:
                todo.append((rule.on_written(state, batch, stamp), others, stamps))
    assert largest == rule.most_cached


def test_without_that_admission_the_cache_has_no_bound():
    """Batch 0 is never written, the other one of two goes on: nobody may forget anything."""
    rule = OAC(in_flight=2)
    state, _ = rule.on_read(rule.init(), 0)
    for batch in range(1, 4):
        assert rule.may_read(state) == (batch < 3)
        state, admission = rule.on_read(state, batch)
        state = rule.on_written(state, batch, batch)
        assert admission.safe == -1
