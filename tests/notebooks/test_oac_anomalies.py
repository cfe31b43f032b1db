"""Histories of a few accesses, and what they are called; each can be followed by hand."""

import numpy as np
import pytest

import lib
from lib.drivers.record import END, Access
from lib.errors import BadOption
from notebooks.oac.anomalies import anomalies, check_run, most_at_once, summary
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
    serial = computed(0, {1: -1, 2: -1}), computed(1, {1: 0, 3: -1}), computed(2, {2: 0})
    assert kinds(*serial, end({1: 1, 2: 2, 3: 1})) == []


def test_a_stale_read_and_the_update_that_it_loses():
    found = anomalies([*computed(0, {1: -1}), *computed(1, {1: -1}), *end({1: 1})])
    assert list(map(str, found)) == [
        "stale read: batch 1 had version -1 of t 1, and not 0 by batch 0",
        "lost update: at the end the store has version 1 of t 1, which was not made from 0 by batch 0",
    ]
    assert summary(found)["lost update"] == {"count": 1, "first": str(found[1]), "cycle": found[1].cycle}


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
    reader = [access("read", 2, {1: 0}), access("compute", 2, {1: 1}, stamp=2)]
    assert kinds(both, wrong, reader, end({1: 2})) == ["lost update"]


def test_a_version_that_was_made_from_itself_is_a_stale_read():
    assert kinds(computed(0, {1: 0}), end({1: 0})) == ["stale read"]


def test_one_timestamp_for_two_updates_loses_one():
    second = [access("read", 1, {1: 0}), access("compute", 1, {1: 0}, stamp=0)]
    (lost,) = anomalies([*computed(0, {1: -1}), *second, *end({1: 0})])
    assert str(lost) == "lost update: batch 1 made version 0 of t 1 too, after batch 0"


def test_an_early_eviction_is_shown_though_the_cache_still_had_the_row():
    """Batch 1 said that version 0 may go; batch 2 had not read it, and was lucky."""
    lucky = [access("read", 2, {1: -1}), access("compute", 2, {1: 0}, stamp=2)]
    assert kinds(computed(0, {1: -1}), computed(1, {2: -1}, safe=0), lucky) == ["early eviction"]
    assert kinds(computed(0, {1: -1}), computed(1, {2: -1}, safe=-1), lucky) == []


def valued(kind, batch, seen, order=None, **more):
    """`seen`: {row: (version, value)}; computed: with what it made."""
    if "made" in more:
        more["made"] = np.array(more["made"])
    versions, values = (np.array(each) for each in zip(*seen.values(), strict=True))
    order = None if order is None else np.full(len(seen), order)
    return Access(kind, batch, "t", np.array([*seen]), versions, values=values, order=order, **more)


def updated(batch, seen, made, written=None, **more):
    """Read, computed and written one after another."""
    write = {row: (batch, value) for row, value in zip(seen, made, strict=True)} if written is None else written
    return [
        valued("read", batch, seen),
        valued("compute", batch, seen, made=made, stamp=batch),
        valued("write", batch, write, **more),
    ]


FIRST = updated(0, {1: (-1, 70)}, [80])


CYCLE = "batch 0 -> batch 1 ({}) -> batch 0 (batch 1 {})"
NO_DATA = "stamp without data: batch 1 had the values of version -1 of t 1 with the timestamp of 0 by batch 0"
NO_STAMP = "data without stamp: batch 1 had version -1 of t 1 by its timestamp, with the values of 0 by batch 0"
GARBAGE = "garbage read: batch 1 had values of t 1 that no batch made, with timestamp 0"


@pytest.mark.parametrize(
    "seen, says, cycle",
    [
        ((0, 70), NO_DATA, CYCLE.format("has the timestamp of t 1", "lacks the values")),
        ((-1, 80), NO_STAMP, CYCLE.format("has the values of t 1", "lacks the timestamp")),
        ((0, 75), GARBAGE, ""),
    ],
)
def test_timestamps_and_values_that_part(seen, says, cycle):
    """Each shows in the store and on the device, that had it from there; by stamps alone nothing is wrong."""
    found = [each for each in anomalies([*FIRST, *updated(1, {1: seen}, [90])]) if each.kind in says]
    assert {(str(each), each.cycle) for each in found} == {(says, cycle)} and len(found) == 2


def test_what_is_written_is_what_was_computed():
    other = updated(0, {1: (-1, 70)}, [80], written={1: (0, 81)})
    (wrong,) = anomalies(other)
    assert str(wrong) == "garbage write: batch 0 wrote values of t 1 that no batch made, with timestamp 0"


def test_lost_data_under_a_stamp_that_moved_is_a_stale_read_too():
    """The replay's business before: batch 1 computes from what was there before batch 0, whose timestamp it found."""
    found = {each.kind for each in anomalies([*FIRST, *updated(1, {1: (0, 70)}, [90])])}
    assert found == {"stamp without data", "stale read", "lost update"}


def test_equal_bytes_raise_no_alarm():
    """Batch 1 changes nothing: its version and batch 0's are told apart by their timestamps alone."""
    same = [*FIRST, *updated(1, {1: (0, 80)}, [80]), *updated(2, {1: (1, 80)}, [90]), valued("read", END, {1: (2, 90)})]
    assert anomalies(same) == []
    back = [*FIRST, *updated(1, {1: (0, 80)}, [70]), *updated(2, {1: (1, 70)}, [90]), valued("read", END, {1: (2, 90)})]
    assert anomalies(back) == []
    neither = [*FIRST, *updated(1, {1: (0, 80)}, [80]), *updated(2, {1: (7, 80)}, [90])]
    assert {each.kind for each in anomalies(neither)} == {"stamp without data", "stamp going back"}


def test_a_row_that_is_read_before_it_was_written():
    """By the numbers that the table gave, whatever was noted first."""
    first = [valued("read", 0, {1: (-1, 70)}, order=0), valued("write", 0, {1: (0, 80)}, order=2)]
    batch = [first[0], valued("compute", 0, {1: (-1, 70)}, order=0, made=[80], stamp=0), first[1]]
    assert anomalies([*batch, valued("read", 1, {1: (0, 80)}, order=3)]) == []
    (dirty,) = anomalies([valued("read", 1, {1: (0, 80)}, order=1), *batch])
    assert str(dirty) == "dirty read: batch 1 had version 0 of t 1 before batch 0 wrote it"
    assert dirty.cycle == CYCLE.format("has the update of t 1", "read t 1 before it was written")
    (lost,) = anomalies([valued("read", 1, {1: (-1, 70)}, order=3), *batch])
    assert lost.kind == "lost update" and lost.cycle.startswith("batch 0 -> batch 1 (came to t 1 later)")


@pytest.mark.parametrize("found", [(-1, 70), (0, 80)])
def test_an_interrupted_write_has_happened_or_not(found):
    cut = updated(0, {1: (-1, 70)}, [80], ended=-1)
    assert anomalies([*cut, valued("read", END, {1: found})]) == []
    assert anomalies([*cut, valued("read", 1, {1: found})]) == []
    unreached = [*cut[:2], valued("write", 0, {1: (0, 80)}, order=-1, ended=-1)]
    assert anomalies([*unreached, valued("read", END, {1: (-1, 70)})]) == []
    both = [valued("read", batch, {1: each}) for batch, each in ((1, found), (2, (-1, 70)))]
    assert [each.kind for each in anomalies([*cut, *both])] == ["lost update"] * (found == (0, 80))


def test_a_fractured_read_names_the_other_row():
    both = updated(0, {1: (-1, 70), 2: (-1, 71)}, [80, 81])
    found = anomalies([*both, *updated(1, {1: (0, 80), 2: (-1, 71)}, [90, 91])])
    (fractured,) = [each for each in found if each.kind == "fractured read"]
    assert fractured.cycle == CYCLE.format("has the update of t 1", "lacks the update of t 2")


def test_a_store_that_has_the_timestamps_of_an_earlier_protocol():
    """It refuses batch 0, whose timestamp is older than what another protocol left."""
    run = [*updated(0, {1: (57, 70)}, [80]), *updated(1, {1: (57, 70)}, [90]), valued("read", END, {1: (57, 70)})]
    found = list(map(str, anomalies(run)))
    assert "stamp going back: batch 0 made version 0 of t 1 from 57 by nobody" in found
    assert "lost update: batch 1 had version -1 of t 1, and not 0 by batch 0" in found


def test_calls_at_once():
    def call(began, ended, table="t"):
        return Access("read", 0, table, np.array([1]), np.array([-1]), began=began, ended=ended)

    assert most_at_once([call(0, 1), call(2, 3)]) == 1
    assert most_at_once([call(0, 3), call(1, 2), call(4, 7), call(5, -1), call(6, 8)]) == 2
    assert most_at_once([call(0, 2), call(1, 3, "another")]) == 1
    assert most_at_once([]) == 0


@pytest.mark.parametrize(
    "protocol, found", [("oac", set()), ("sequential", set()), ("pipelined", {"stale read", "lost update"})]
)
def test_a_run_tells_what_its_history_shows(protocol, found):
    """The paper's example: both batches read a."""
    run = lib.train(Letters(), protocol, "virtual", accesses=True, save=False)
    assert (shown := check_run(run)[0]["anomalies"]).keys() == found
    if found:
        assert shown["stale read"]["first"].startswith("stale read: batch 1 had version -1 of letter 97")
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
    assert check_run(run)[1]["anomalies"] == {}
    assert [run.summary[letter] for letter in "abcfh"] == [5, 2, 3, 3, 2]
