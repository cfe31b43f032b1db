"""OAC's running example ends as the paper says, and its page follows it letter by letter."""

from __future__ import annotations

import pytest

import lib
from lib import protocols
from notebooks.oac import conflicts, example, faults, tasks


def followed(name):
    records = example.followed(protocols.get(name))
    return example.steps(records), example.updates(records)


def test_one_after_another():
    table, updates = followed("sequential")
    assert table.loc[1, "read"] == "a' (0), b, h"
    assert table.loc["store", "written"] == "a'' (1), b' (1), c' (0), d, e, f' (0), g, h' (1)"
    assert updates == {"a": 2, "b": 1, "c": 1, "f": 1, "h": 1}


def test_side_by_side_an_update_is_lost():
    table, updates = followed("pipelined")
    assert (table.loc[1, "read"], table.loc[1, "validated"]) == ("a, b, h", "a, b, h")
    assert table.loc["store", "written"].startswith("a' (1), b' (1)") and updates["a"] == 1


def test_under_oac_the_second_batch_is_validated():
    table, updates = followed("oac")
    assert (table.loc[1, "read"], table.loc[1, "validated"]) == ("a, b, h", "a' (0), b, h")
    assert table.loc[1, "computed"] == "a'' (1), b' (1), h' (1)" and updates["a"] == 2


def test_stages_are_in_their_order():
    spans = example.spans(example.followed(protocols.get("oac")))
    one = spans[spans["node"] == "batch 1"].drop_duplicates("kind").set_index("kind")
    assert (
        one.loc["read", "end"] <= one.loc["compute", "start"] < one.loc["compute", "end"] <= one.loc["write", "start"]
    )


def test_every_fault_is_seen_and_oac_shows_nothing():
    found = faults.seen(1).set_index("fault")
    none = found.index.str.startswith("none")
    assert (found.loc[none, "show it"] == 0).all() and (found.loc[~none, "show it"] > 0).all()
    assert found.loc["no validation", "the first says"].startswith("stale read: batch ")


def test_a_stage_lasts_as_long_as_the_papers_sizes_say():
    """Setup 1: 2 million rows of 100 numbers over 12 GB/s take 67 ms; alone, a batch takes 174 ms, in the paper 185."""
    setup = tasks.SETUPS["setup 1"]
    seconds = setup.seconds()
    assert seconds["transfer"] == pytest.approx(800e6 / 12e9) and sum(seconds.values()) == pytest.approx(
        0.174, abs=1e-3
    )
    run = lib.train(**setup.job("sequential", 1, epochs=0.01) | {"gradients": False}, save=False)
    assert run.summary["virtual_seconds"] / run.summary["issued"] == pytest.approx(sum(seconds.values()), rel=0.1)


def test_conflicts_in_closed_form():
    """Four ids, all alike, two draws: each is in a batch with 7/16; two others in flight have a row with 1 - (9/16)^2."""
    task = conflicts.task(batch=2, exponent=0.0, batches=4, vocabulary=4)
    assert conflicts.expected(task, 3) == pytest.approx(1 - (9 / 16) ** 2)
    assert conflicts.expected(task, 1) == 0
