"""The front page of the reports: every experiment, run or not, and what became of its claims."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from lib import paths
from lib.errors import LockstepError
from lib.reporting import claims, notebooks
from lib.reporting.cards import verdict_table
from lib.reporting.markup import templates
from lib.reporting.notebooks import Experiment
from lib.reporting.page import POLICY, check_offline, export, style

FIRST = "Start here, and across the papers"
"""The heading of the notebooks that belong to no one paper."""
KINDS = {"paper": "Papers' claims, after Holm", "promise": "Our promises", "check": "Checks"}
"""What each kind of claim is called where they are counted."""


def index() -> Path:
    """Write `index.html` into the reports folder; its path."""
    known = notebooks.experiments()
    html = front(known, claims.verdicts(paths.reports()), {e.name for e in known if e.page.exists()})
    return paths.write_text_atomic(paths.reports() / "index.html", html)


def front(known: list[Experiment], verdicts: list[claims.Verdict], pages: AbstractSet[str], note: str = "") -> str:
    """A page with these experiments, by paper, and their verdicts; `pages` are those that can be read."""
    papers = list(dict.fromkeys(experiment.paper for experiment in known))
    titles = {"": FIRST, **notebooks.named()}
    judged = {experiment.name: [v for v in verdicts if v.claim.notebook == experiment.name] for experiment in known}
    counts = claims.counts(verdicts)
    html = (
        templates()
        .get_template("front.html.j2")
        .render(
            policy=POLICY,
            style=style(),
            note=note,
            kinds=[
                (KINDS[kind], [(verdict, found[verdict]) for verdict in claims.VERDICTS if found[verdict]])
                for kind, found in counts.items()
                if found
            ],
            papers={paper: titles.get(paper, paper) for paper in papers},
            known=known,
            pages=pages,
            facts=_facts,
            judged=judged,
            homeless=[verdict for verdict in verdicts if verdict.claim.notebook not in judged],
            table=verdict_table,
        )
    )
    check_offline(html, "index")
    return html


def _facts(experiment: Experiment) -> list[str]:
    try:
        kept = notebooks.facts(experiment)
    except LockstepError:
        return []
    facts = [f"profile {kept['profile']}"] if kept.get("profile") else []
    if kept.get("parameters"):
        facts.append(", ".join(f"{name} = {value}" for name, value in kept["parameters"].items()))
    return [*facts, f"{kept['seconds']:.0f} s"] if kept.get("seconds") else facts


def build(
    profile: str = "smoke", name: str = "all", parameters: Mapping[str, Any] | None = None, resume: bool = False
) -> Path:
    """Run the notebooks, export each, write the index; the index's path. Failures come last, all that works is done.

    With `resume` notebooks that are complete are only exported.
    """
    paths.check_writable(paths.reports())
    chosen = notebooks.resolve(name)
    if len(chosen) == 1:
        try:
            export(notebooks.run(chosen[0].name, profile, parameters, resume))
        except LockstepError:
            index()
            raise
        return index()
    failures = notebooks.run_together(chosen, profile, parameters, resume)
    for experiment in chosen:  # once more: now each knows the pages beside it
        if experiment.executed.exists():
            export(experiment.executed)
    page = index()
    if failures:
        failed = "\n".join(failures)
        raise notebooks.NotebookFailed(f"{len(failures)} notebooks failed; what worked is in {page}:\n{failed}")
    return page
