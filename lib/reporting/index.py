"""The front page of the reports: every experiment, run or not, and what became of its claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from html import escape
from pathlib import Path
from typing import Any

from lib import paths
from lib.errors import LockstepError
from lib.reporting import claims, notebooks
from lib.reporting.cards import VERDICT_HEADER, slug, table, verdict_rows
from lib.reporting.notebooks import Experiment
from lib.reporting.page import check_offline, document, export

PAPERS = {
    "": "Start here, and across the papers",
    "gba": "GBA",
    "shadowsync": "ShadowSync",
    "oac": "Optimistic asynchrony control (OAC)",
    "persia": "Persia",
    "dssync": "DS-Sync",
}
"""Headings of the notebooks' folders, in the index's order."""
INTRODUCTION = (
    "Every experiment of the kit with its claims. A verdict is computed from runs over several seeds by a rule that "
    "was written down before; this is replication with independent code at reduced scale, in shape and not in size. "
    "Negative verdicts stand like the others."
)


def index() -> Path:
    """Write `index.html` into the reports folder; its path."""
    known = notebooks.experiments()
    html = front(known, claims.verdicts(paths.reports()), {e.name for e in known if e.page.exists()})
    return paths.write_text_atomic(paths.reports() / "index.html", html)


def front(known: list[Experiment], verdicts: list[claims.Verdict], pages: AbstractSet[str], note: str = "") -> str:
    """A page with these experiments, by paper, and their verdicts; `pages` are those that can be read."""
    homeless = sorted({v.claim.notebook for v in verdicts} - {e.name for e in known})
    papers = sorted({e.paper for e in known}, key=in_order)
    counts = Counter(verdict.verdict for verdict in verdicts)
    body = [
        '<header class="top"><a href="index.html">Lockstep</a><span>how training workers keep in step</span></header>',
        '<div class="page wide"><main>',
        "<h1>Experiments and verdicts</h1>",
        f"<p>{INTRODUCTION}{escape(note)}</p>",
        _counts(counts),
    ]
    if len(papers) > 1:
        body.append('<nav aria-label="Papers"><p>' + " · ".join(_link(paper) for paper in papers) + "</p></nav>")
    for paper in papers:
        body.append(f'<h2 id="{_anchor(paper)}">{escape(PAPERS.get(paper, paper))}</h2>')
        for experiment in (e for e in known if e.paper == paper):
            mine = [v for v in verdicts if v.claim.notebook == experiment.name]
            body.append(_section(experiment, mine, experiment.name in pages))
    if homeless:
        rows = verdict_rows(v for v in verdicts if v.claim.notebook in homeless)
        body.append('<h2 id="planned">Claims whose notebook is still to be written</h2>')
        body.append(f'<section class="experiment">{table(VERDICT_HEADER, rows)}</section>')
    body.append("</main></div>")
    html = document("Lockstep: experiments and verdicts", "\n".join(body))
    check_offline(html, "index")
    return html


def in_order(paper: str) -> tuple[int, str]:
    """What papers are sorted by."""
    return (list(PAPERS).index(paper) if paper in PAPERS else len(PAPERS), paper)


def _anchor(paper: str) -> str:
    return slug(paper or "start")


def _link(paper: str) -> str:
    return f'<a href="#{_anchor(paper)}">{escape(PAPERS.get(paper, paper))}</a>'


def _counts(counts: Counter) -> str:
    shown = [verdict for verdict in claims.VERDICTS if counts[verdict]]
    items = "".join(f'<li><span class="verdict {slug(v)}">{counts[v]} {v}</span></li>' for v in shown)
    return f'<ul class="counts">{items}</ul>' if shown else "<p>No claims yet.</p>"


def _section(experiment: Experiment, verdicts: list[claims.Verdict], readable: bool) -> str:
    title = escape(experiment.title)
    facts = [f"<code>{escape(experiment.name)}</code>"]
    if readable:
        title = f'<a href="{escape(experiment.name)}.html">{title}</a>'
        facts += _facts(experiment)
    else:
        facts.append(f"not run yet: <code>python -m lib run {escape(experiment.name)}</code>")
    if experiment.failed.exists():
        facts.append("its last run failed; the page, if any, is of the run before")
    rows = table(VERDICT_HEADER, verdict_rows(verdicts)) if verdicts else ""
    return f'<section class="experiment"><h3>{title}</h3><p>{" · ".join(facts)}</p>{rows}</section>'


def _facts(experiment: Experiment) -> list[str]:
    try:
        kept = notebooks.facts(experiment)
    except LockstepError:
        return []
    facts = [f"profile {escape(str(kept['profile']))}"] if kept.get("profile") else []
    if kept.get("parameters"):
        facts.append(escape(", ".join(f"{name} = {value}" for name, value in kept["parameters"].items())))
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
    page = index()
    if failures:
        failed = "\n".join(failures)
        raise notebooks.NotebookFailed(f"{len(failures)} notebooks failed; what worked is in {page}:\n{failed}")
    return page
