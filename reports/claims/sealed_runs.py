"""A sealed run: a paper's rules, settings and metrics, when they are committed, are judged once on seeds that no run has used.

Each state of a paper's rules has a block of seeds (`lib/seeds.py`). A file in `reports/reference/sealed` records every draw
before its run, and is committed with the results, so that a second draw shows.
"""

import hashlib
import json
from typing import Any

from lib import paths
from lib.errors import BadOption
from lib.seeds import BLOCK, SEALED
from reports.claims import dependencies
from reports.claims.loading import load


def draw(name: str, again: bool = False) -> int:
    """Record that the sealed seeds of a paper's committed rules are drawn, and return their first.

    With `again`, an interrupted run goes on with the seeds that it drew, also with one page of the paper.
    """
    from lib.results.provenance import commit

    papers = sorted({claim.folder for claim in load().values()} - {""})
    paper, _, page = name.partition("/")
    if paper not in papers or (page and not again):
        goes_on = "; with --resume one page goes on with its paper's" if page else ""
        raise BadOption(
            f"{name!r} is no paper with claims; a sealed run is of all of a paper's: {', '.join(papers)}{goes_on}"
        )
    present = commit()
    if present is None or present.endswith("+"):
        advice = "commit what `git status` shows first"
        raise BadOption(f"a sealed run is of committed rules, settings and metrics: {advice}")
    parts = {claim.id: dependencies.parts_of(claim) for claim in load().values() if claim.folder == paper}
    rules = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    before = records(paper)
    same = [record for record in before if record["rules"] == rules]
    if same and again:
        return same[0]["first"]
    if page:
        raise BadOption(f"no seeds were drawn for today's rules of {paper}, so no page can go on with them")
    first = same[0]["first"] if same else SEALED[BLOCK * len({record["rules"] for record in before})]
    record = {"paper": paper, "rules": rules, "commit": present, "first": first, "time": len(same) + 1}
    text = json.dumps(record, indent=1) + "\n"
    paths.write_text_atomic(paths.reference() / "sealed" / f"{paper}-{len(before) + 1}.json", text)
    return first


def records(paper: str) -> list[dict[str, Any]]:
    """The records of each time that sealed seeds of the paper were drawn."""
    found = (paths.reference() / "sealed").glob(f"{paper}-*.json")
    return [json.loads(path.read_text(encoding="utf-8")) for path in found]
