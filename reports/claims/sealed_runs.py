"""A sealed run: a paper's rules, settings and metrics, when they are committed, are judged once on seeds that nobody has seen.

Each state of a paper's rules has a block of seeds (`lib/seeds.py`). That they were drawn is noted before the run, in a file of
`reports/reference/sealed` that is committed with what was found: whoever draws them again shows.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from lib import paths
from lib.errors import BadOption
from lib.seeds import BLOCK, SEALED
from reports.claims import dependencies as basis
from reports.claims.loading import load


def draw(paper: str, again: bool = False) -> int:
    """Note that the sealed seeds of a paper's rules, as they are committed, are drawn; their first. An interrupted run that goes
    on `again` draws none anew."""
    from lib.results.provenance import commit

    mine = [claim for claim in load().values() if claim.folder == paper]
    if not mine:
        raise BadOption(
            f"{paper!r} is no paper with claims; a sealed run is of all of a paper's: {', '.join(papers())}"
        )
    made_of = commit()
    if made_of is None or made_of.endswith("+"):
        raise BadOption(
            "a sealed run is of committed rules, settings and metrics: commit what `git status` shows first"
        )
    parts = json.dumps({claim.id: basis.of(claim) for claim in mine}, sort_keys=True)
    rules, before = hashlib.sha256(parts.encode()).hexdigest()[:16], records(paper)
    same = [record for record in before if record["rules"] == rules]
    if same and again:
        return same[0]["first"]
    first = same[0]["first"] if same else SEALED[BLOCK * len({record["rules"] for record in before})]
    record = {"paper": paper, "rules": rules, "commit": made_of, "first": first, "time": len(same) + 1}
    text = json.dumps(record, indent=1) + "\n"
    paths.write_text_atomic(paths.reference() / "sealed" / f"{paper}-{len(before) + 1}.json", text)
    return first


def papers() -> list[str]:
    return sorted({claim.folder for claim in load().values()} - {""})


def records(paper: str) -> list[dict[str, Any]]:
    """Each time that sealed seeds of the paper were drawn."""
    found = (paths.reference() / "sealed").glob(f"{paper}-*.json")
    return [json.loads(path.read_text(encoding="utf-8")) for path in found]
