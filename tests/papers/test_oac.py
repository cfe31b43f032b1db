"""OAC's running example ends as the paper says, and its page follows it letter by letter."""

from __future__ import annotations

from lib import protocols
from lib.papers.oac import example


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
