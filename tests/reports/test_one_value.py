"""One quantity has one value: what two pages of a paper say of one subject, by one metric, of one seed, is the same number."""

import json
from collections import defaultdict
from itertools import combinations

from lib import paths

TABLES = ("dssync/table_2_and_5_accuracy_4_nodes", "dssync/table_3_accuracy_16_nodes")
DAYS = ("gba/figure_7_more_workers", "gba/table_5_3_fine_grained")
UNLIKE = {
    TABLES: "4 workers and 16, as the titles say",
    DAYS: "the mean of eleven days after Sync's base, and of the first two of them",
    ("persia/compression", "persia/faults"): "frozen after 120 thousand samples and 102 thousand",
}
"""Pages that call unlike things alike, with what tells them apart."""


def said(records):
    """What pages say: subject (its parts in any order), metric and seed -> page -> numbers."""
    found = defaultdict(lambda: defaultdict(set))
    for record in records:
        if not (claim := record.get("claim")):
            continue  # rows that other records have too
        paper = claim["notebook"].rpartition("/")[0]
        for row in record["results"] if not claim["over"] else ():
            subject = frozenset(row["subject"].split(", "))
            for metric in row.keys() - {"subject", "seed", *claim.get("regime", ())}:
                found[paper, subject, metric, row["seed"]][claim["notebook"]].add(row[metric])
    return found


def apart(found):
    """The pairs of pages that differ; a page that differs from itself is one too."""
    pairs = {(page, page) for pages in found.values() for page, numbers in pages.items() if len(numbers) > 1}
    for pages in found.values():
        pairs |= {(a, b) for a, b in combinations(sorted(pages), 2) if pages[a] != pages[b]}
    return pairs


def test_what_two_pages_say_of_one_quantity_agrees_or_they_say_why_not():
    records = [json.loads(path.read_text()) for path in (paths.reference() / "claims").glob("*.json")]
    assert len(records) > 50
    assert apart(said(records)) <= UNLIKE.keys(), "of what is not withdrawn"


def record(notebook, subject, number, seed=1000, **more):
    rows = [{"subject": subject, "seed": seed, "auc": number}]
    return {"claim": {"notebook": notebook, "over": None, **more}, "results": rows}


def test_pages_that_differ_are_found():
    first = record("p/a", "hybrid, criteo", 0.7)
    assert apart(said([first, record("p/b", "criteo, hybrid", 0.7)])) == set()
    assert apart(said([first, record("p/b", "criteo, hybrid", 0.71)])) == {("p/a", "p/b")}
    assert apart(said([first, record("p/a", "hybrid, criteo", 0.71)])) == {("p/a", "p/a")}, "and within a page"
    for other in (record("q/b", "hybrid, criteo", 0.71), record("p/b", "hybrid, criteo", 0.71, seed=1001)):
        assert apart(said([first, other])) == set(), "another paper's, or another seed's"
