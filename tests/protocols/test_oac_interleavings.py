"""OAC's rule alone, a store and a cache of plain dictionaries, and every order in which batches can come; `anomalies` judges."""

from itertools import combinations

import pytest

from lib.protocols.oac import OAC
from notebooks.oac import plays
from notebooks.oac.plays import READS, Blind, Forgetful, Gap, HighMFT, HighSTE, InThree, OwnMFT, Play, orders


def told_apart(order, reads):
    """What a part can tell of an order: the accesses in the store's and on the device, and what each batch was told."""
    play = Play(OAC(), reads)
    play.go(order)
    store, device = [], []
    for access in play.history:
        what = access.kind, access.batch, *access.versions.tolist(), access.safe
        (device if access.kind == "compute" else store).append(what)
    return str((store, device, play.admission))


def test_no_order_is_left_out():
    every = [[int(number not in firsts) for number in range(10)] for firsts in combinations(range(10), 5)]
    seen = {told_apart(order, ("a", "a")) for order in every if order[0] == 0}
    assert seen == {told_apart(order, ("a", "a")) for order in orders(2)}


def test_all_orders_of_three_batches_over_four_rows():
    for count, order in enumerate(orders(3), 1):  # noqa: B007 - how many there were
        assert Play(OAC(), READS).go(order) == []
    assert count == 3025


def first_anomaly(rule):
    """The kind of the first that random orders of four or five batches show."""
    return next((found[0].kind for found in plays.random_plays(rule) if found), None)


def test_random_orders_of_more_batches():
    assert first_anomaly(OAC()) is None


def test_what_a_gap_in_the_timestamps_does():
    """Batch 1 is written before batch 0; 2 reads between the two; 3 comes before 2 and lets go of what 2 still lacks."""
    order = [0, 1, 0, 1, 1, 2, 0, 3, 3, 2, 2, 3]
    assert InThree(OAC(), ("ab", "bc", "ad", "c")).go(order) == []
    early, stale, lost = InThree(Gap(), ("ab", "bc", "ad", "c")).go(order)
    assert str(early) == "early eviction: batch 2 had version -1 of letter 97, and not 0 by batch 0"
    assert str(stale) == str(early).replace("early eviction", "stale read")
    made = "the store has version 3 of letter 97, which was not made from 0 by batch 0"
    assert str(lost) == f"lost update: at the end {made}"


@pytest.mark.parametrize("kind", [Gap, HighMFT, HighSTE, OwnMFT, Forgetful])
def test_a_cache_that_forgets_too_early(kind):
    assert first_anomaly(kind()) == "early eviction"


def test_no_validation():
    assert first_anomaly(Blind()) == "stale read"


@pytest.mark.parametrize(
    "play, kind",
    [
        (plays.NoLock, "lost update"),
        (plays.AnyTimestamp, "lost update"),
        (plays.OldEntry, "stale read"),
        (plays.TwoReadings, "stale read"),
        (plays.OneReading, "lost update"),
        (plays.LateMFT, "early eviction"),
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
    assert largest == rule.most_cached_updates


def test_without_that_admission_the_cache_has_no_bound():
    """Batch 0 is never written, the other one of two goes on: nobody may forget anything."""
    rule = OAC(in_flight=2)
    state, _ = rule.on_read(rule.init(), 0)
    for batch in range(1, 4):
        assert rule.may_read(state) == (batch < 3)
        state, admission = rule.on_read(state, batch)
        state = rule.on_written(state, batch, batch)
        assert admission.safe == -1
