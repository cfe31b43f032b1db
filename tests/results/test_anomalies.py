"""Histories of a few accesses, and what they are called; each can be followed by hand."""

from __future__ import annotations

import numpy as np
import pytest

import lib
from lib.drivers.run.record import END, Access
from lib.errors import BadOption
from lib.results.anomalies import anomalies, told
from tests.toys import Letters


def access(kind, batch, versions, **more):
    """`versions`: {row: version}, rows are small numbers."""
    return Access(kind, batch, "t", np.array([*versions]), np.array([*versions.values()]), **more)


def computed(batch, versions, safe=-1):
    """Batches are computed in the order of their numbers, from what they read."""
    return [access("read", batch, versions), access("compute", batch, versions, stamp=batch, safe=safe)]


def end(versions):
    return [access("read", END, versions)]


def kinds(*histories):
    return [each.kind for each in anomalies(each for history in histories for each in history)]


def test_a_serial_history_shows_nothing():
    assert (
        kinds(computed(0, {1: -1, 2: -1}), computed(1, {1: 0, 3: -1}), computed(2, {2: 0}), end({1: 1, 2: 2, 3: 1}))
        == []
    )


def test_a_stale_read_and_the_update_that_it_loses():
    found = anomalies([*computed(0, {1: -1}), *computed(1, {1: -1}), *end({1: 1})])
    assert list(map(str, found)) == [
        "stale read: batch 1 had version -1 of t 1, and not 0 by batch 0",
        "lost update: at the end the store has version 1 of t 1, which was not made from 0 by batch 0",
    ]
    assert told(found)["lost update"] == {"count": 1, "first": str(found[1]), "cycle": found[1].cycle}


def test_a_stale_read_that_loses_nothing_since_it_is_lost_itself():
    found = anomalies([*computed(0, {1: -1}), *computed(1, {1: -1}), *end({1: 0})])
    assert [(each.kind, each.missed) for each in found] == [("stale read", 0), ("lost update", 1)]


def test_a_fractured_read_is_of_one_batchs_rows():
    """Batch 1 has row 1 from batch 0, and not row 2; batch 2 is stale alone: what it has of another row is older too."""
    assert "fractured read" in kinds(computed(0, {1: -1, 2: -1}), computed(1, {1: 0, 2: -1}))
    assert "fractured read" not in kinds(computed(0, {1: -1, 2: -1}), computed(1, {3: -1}), computed(2, {3: 1, 2: -1}))


def test_an_older_write_over_a_newer_one_loses_it_for_readers_and_at_the_end():
    both = [*computed(0, {1: -1}), access("read", 1, {1: -1}), access("compute", 1, {1: 0}, stamp=1)]
    assert kinds(both, [access("write", 0, {1: 0}), access("write", 1, {1: 1})], end({1: 1})) == []
    wrong = [access("write", 1, {1: 1}), access("write", 0, {1: 0})]
    assert kinds(both, wrong, end({1: 0})) == ["lost update"]
    assert kinds(both, wrong, [access("read", 2, {1: 0}), access("compute", 2, {1: 1}, stamp=2)], end({1: 2})) == [
        "lost update"
    ]


def test_a_version_that_was_made_from_itself_is_a_stale_read():
    assert kinds(computed(0, {1: 0}), end({1: 0})) == ["stale read"]


def test_one_timestamp_for_two_updates_loses_one():
    second = [access("read", 1, {1: 0}), access("compute", 1, {1: 0}, stamp=0)]
    assert list(map(str, anomalies([*computed(0, {1: -1}), *second, *end({1: 0})]))) == [
        "lost update: batch 1 made version 0 of t 1 too, after batch 0"
    ]


def test_an_early_eviction_is_shown_though_the_cache_still_had_the_row():
    """Batch 1 said that version 0 may go; batch 2 had not read it, and was lucky."""
    lucky = [access("read", 2, {1: -1}), access("compute", 2, {1: 0}, stamp=2)]
    assert kinds(computed(0, {1: -1}), computed(1, {2: -1}, safe=0), lucky) == ["early eviction"]
    assert kinds(computed(0, {1: -1}), computed(1, {2: -1}, safe=-1), lucky) == []


@pytest.mark.parametrize(
    "protocol, found", [("oac", set()), ("sequential", set()), ("pipelined", {"stale read", "lost update"})]
)
def test_a_run_tells_what_its_history_shows(protocol, found):
    """The paper's example: both batches read a."""
    run = lib.train(Letters(), protocol, "virtual", accesses=True, save=False)
    assert run.summary["anomalies"].keys() == found
    if found:
        assert run.summary["anomalies"]["stale read"]["first"].startswith(
            "stale read: batch 1 had version -1 of letter 97"
        )
    assert "anomalies" not in lib.train(Letters(), protocol, "virtual", save=False).summary


@pytest.mark.parametrize(
    "protocol, more, why",
    [("async", {}, "noted by pipelines"), ("oac", {"gradients": False}, "accesses needs a model")],
)
def test_what_has_no_history_says_so(protocol, more, why):
    with pytest.raises(BadOption, match=why):
        lib.train("kg-synthetic", protocol, "virtual", accesses=True, save=False, **more)


@pytest.mark.parametrize("protocol", ["oac", "sequential"])
def test_no_update_is_lost_after_a_switch(protocol):
    """What an earlier protocol had trained was of timestamp 0, which the first batch after the switch has too."""
    phases = [{"protocol": {"name": "async"}, "steps": 1}, {"protocol": {"name": protocol}}]
    run = lib.train(Letters(samples=5), lib.Schedule(phases=phases), "virtual", workers=1, accesses=True, save=False)
    assert run.summary["legs"][1]["anomalies"] == {}
    assert [run.summary[letter] for letter in "abcfh"] == [5, 2, 3, 3, 2]
