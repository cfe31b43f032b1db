"""The front page of the reports: every experiment, run or not, and what became of its claims."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib import paths
from lib.errors import LockstepError
from lib.reporting import claims, notebooks
from lib.reporting.cards import verdict_table
from lib.reporting.markup import templates, words
from lib.reporting.notebooks import Experiment, Paper
from lib.reporting.page import POLICY, check_offline, export, style
from lib.reporting.short import missed, told, why

if TYPE_CHECKING:
    import pandas as pd

FIRST = Paper(folder="", name="Across the papers", title="", cite="", asks="")
"""The notebooks that belong to no one paper."""
KINDS = {"confirmatory": "Papers' confirmatory claims, after Holm", "paper": "All papers' claims, after Holm"}
KINDS |= {"promise": "Our promises", "check": "Checks"}
"""What each kind of claim is called where they are counted."""
TRIAL = " The verdicts here are of trials at the profile smoke, which judges nothing; reports/reference has what is published."


def index() -> Path:
    """Write `index.html` into the reports folder; its path."""
    from lib.reporting import picture  # draws, which not every command does

    known, verdicts = notebooks.experiments(), claims.verdicts()
    note = TRIAL if any(verdict.profile == "smoke" for verdict in verdicts) else ""
    pages = {experiment.name for experiment in known if experiment.page.exists()}
    html = front(known, verdicts, pages, picture.kept(paths.reference()), _facts, note)
    return paths.write_text_atomic(paths.reports() / "index.html", html)


def front(
    known: list[Experiment],
    verdicts: list[claims.Verdict],
    pages: AbstractSet[str],
    modes: pd.DataFrame | None,
    facts: Callable[[Experiment], list[str]],
    note: str = "",
) -> str:
    """A page with the answer that is drawn from `modes`, and these experiments with their verdicts; `pages` can be read, and
    `facts` says of an experiment how it was run."""
    from lib.reporting import picture

    papers = {paper.folder: paper for paper in (FIRST, *notebooks.papers())}
    for experiment in known:
        papers.setdefault(experiment.paper, dataclasses.replace(FIRST, name=experiment.paper))
    judged = {experiment.name: [v for v in verdicts if v.claim.notebook == experiment.name] for experiment in known}
    counts = claims.counts(verdicts)
    failed = sorted(missed(verdicts), key=lambda verdict: verdict.claim.kind != "paper")
    page = {
        "policy": POLICY,
        "style": style(),
        "note": note,
        "counts": counts,
        "kinds": KINDS,
        "missed": [(v, told(v), why(v)) for v in failed],
        "filters": {
            "paper": ["all", *(paper.name for paper in papers.values())],
            "kind": ["all", *counts],
            "verdict": ["all", *(v for v in claims.VERDICTS if any(v in found for found in counts.values()))],
        },
        "papers": papers,
        "known": known,
        "pages": pages,
        "facts": facts,
        "judged": judged,
        "homeless": [verdict for verdict in verdicts if verdict.claim.notebook not in judged],
        "table": verdict_table,
        "answer": [] if modes is None else picture.answer(modes),
        "asked": picture.NOTEBOOK,
    }
    if modes is not None:
        drawing = picture.svg(picture.picture(modes))
        page["drawing"] = base64.b64encode(drawing.encode()).decode()
    html = templates().get_template("front.html.j2").render(page | words())
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
    return facts


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
    failures = notebooks.run_together(chosen, profile, parameters, resume, lambda each: export(each.executed))
    for experiment in chosen:  # once more: now each knows the pages beside it
        if experiment.executed.exists():
            export(experiment.executed)
    page = index()
    if failures:
        failed = "\n".join(failures)
        raise notebooks.NotebookFailed(f"{len(failures)} notebooks failed; what worked is in {page}:\n{failed}")
    return page
