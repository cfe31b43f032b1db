"""The front page of the reports, and a page for each paper: every experiment, run or not, and what became of its claims."""

from __future__ import annotations

import base64
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib import paths
from lib.errors import LockstepError
from reports import claims
from reports import protocol_families as families
from reports import runner as notebooks
from reports.markup import templates, words
from reports.notebook_output import HOW_TO_READ, verdict_table
from reports.page import POLICY, check_offline, export, style
from reports.runner import Experiment, Paper
from reports.summary_text import missed, told, why

if TYPE_CHECKING:
    import pandas as pd

FIRST = Paper(folder="", name="Across the papers", title="", cite="", asks="")
"""The notebooks that belong to no one paper."""
KINDS = {"confirmatory": "Papers' confirmatory claims, after Holm", "paper": "All papers' claims, after Holm"}
KINDS |= {"promise": "Our promises", "check": "Checks"}
"""What each kind of claim is called where they are counted."""
SOME = {"paper": "the papers' {} claims", "promise": "our {} promises", "check": "{} checks"}
"""And where not all of them are judged."""
LOST = ("not replicated", "not kept", "failed")
"""What the front page tells one by one."""
TRIAL = " The verdicts here are of trials at the profile smoke, which judges nothing; reports/reference has what is published."


def index() -> Path:
    """Write `index.html` and what it leads to into the reports folder; its path."""
    from reports import front_figure as picture  # draws, which not every command does

    known, verdicts = notebooks.experiments(), claims.verdicts()
    note = TRIAL if any(verdict.profile == "smoke" for verdict in verdicts) else ""
    pages = {experiment.name for experiment in known if experiment.page.exists()}
    made = sheets(known, verdicts, pages, picture.kept(paths.reference()), _facts, note)
    for name, html in made.items():
        (paths.reports() / name).parent.mkdir(parents=True, exist_ok=True)
        paths.write_text_atomic(paths.reports() / name, html)
    return paths.reports() / "index.html"


def sheets(
    known: list[Experiment],
    verdicts: list[claims.Verdict],
    pages: AbstractSet[str],
    modes: pd.DataFrame | None,
    facts: Callable[[Experiment], list[str]],
    note: str = "",
) -> dict[str, str]:
    """By its file's name: the front page with the answer that is drawn from `modes`, a page for each paper with all its claims,
    and the rules in words. `pages` can be read, and `facts` says of an experiment how it was run."""
    papers = {paper.folder: paper for paper in (FIRST, *notebooks.papers())}
    for folder in [experiment.paper for experiment in known] + [verdict.claim.folder for verdict in verdicts]:
        papers.setdefault(folder, dataclasses.replace(FIRST, folder=folder, name=folder))
    whose = {folder: [each for each in known if each.paper == folder] for folder in papers}
    claimed = {folder: [verdict for verdict in verdicts if verdict.claim.folder == folder] for folder in papers}
    there = [folder for folder in papers if whose[folder] or claimed[folder]]
    names = {folder: f"{folder}/index.html" if folder else "across.html" for folder in there}
    shared = {"known": known, "pages": pages, "papers": papers, "sheets": names, "note": note}
    made = {
        "index.html": _sheet("front", "which protocol, and how sure", **shared, **_front(known, verdicts, pages, modes))
    }
    for folder, name in names.items():
        of = _paper(papers[folder], whose[folder], claimed[folder])
        made[name] = _sheet("paper", papers[folder].name, **shared | of, facts=facts, root="../" if folder else "")
    return made | {"rules.html": _sheet("rules", "the rules, and what the words mean", how_to_read=HOW_TO_READ)}


def tallied(verdicts: Sequence[claims.Verdict], papers: str = "papers'") -> list[tuple[str, dict[str, int], str]]:
    """Of each kind of claim: what they are called and how many are judged, how many of each verdict, and how many wait."""
    told = []
    for kind, found in claims.counts(verdicts).items():
        waiting = found.pop("not run", 0)
        judged, wait = sum(found.values()), "waits for its page" if waiting == 1 else "wait for their pages"
        some = f"{judged} of {SOME.get(kind, '').format(judged + waiting)} {'is' if judged == 1 else 'are'} judged"
        some += ", after Holm" if kind == "paper" and judged else ""
        name = (some if waiting else KINDS[kind]).replace("papers'", papers).replace("Papers'", papers.capitalize())
        told.append((name, found, f"{waiting} {wait} to run" if waiting else ""))
    return told


def _sheet(name: str, title: str, root: str = "", **page: Any) -> str:
    page |= {"policy": POLICY, "style": style(), "title": f"Lockstep: {title}", "root": root}
    html = templates().get_template(f"{name}.html.j2").render(page | words())
    check_offline(html, name)
    return html


def _front(
    known: list[Experiment], verdicts: list[claims.Verdict], pages: AbstractSet[str], modes: pd.DataFrame | None
) -> dict[str, Any]:
    from reports import front_figure as picture

    page = {
        "tallies": tallied(verdicts),
        "judged": {
            experiment.name: [v for v in verdicts if v.claim.notebook == experiment.name] for experiment in known
        },
        "answer": [] if modes is None else picture.answer(modes),
        "lost": [(v, told(v)) for name in LOST for v in verdicts if v.counted == name],
        "homeless": sum(v.claim.notebook not in {experiment.name for experiment in known} for v in verdicts),
    }
    if modes is not None:
        drawing = picture.svg(picture.picture(modes))
        page["drawing"] = base64.b64encode(drawing.encode()).decode()
        said = families.about(
            modes["protocol"].nunique() - 1, lambda text, to: _link(text, to, pages)
        )  # less the frozen one
        page["about"] = [_coded(each) for each in said]
    return page


def _link(text: str, to: str, pages: AbstractSet[str]) -> str:
    """To a page that can be read; its text alone where it cannot."""
    text = _coded(escape(text))
    return f'<a href="{to}.html">{text}</a>' if to in pages else text


def _coded(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text)


def _paper(paper: Paper, known: list[Experiment], verdicts: list[claims.Verdict]) -> dict[str, Any]:
    counts = claims.counts(verdicts)
    judged = {experiment.name: [v for v in verdicts if v.claim.notebook == experiment.name] for experiment in known}
    failed = sorted(missed(verdicts), key=lambda verdict: verdict.claim.kind != "paper")
    return {
        "paper": paper,
        "told": [(v, told(v)) for v in telling(paper, verdicts)],
        "tallies": tallied(verdicts, "the paper's"),
        "how_to_read": HOW_TO_READ,
        "missed": [(v, told(v), why(v)) for v in failed],
        "filters": {
            "kind": ["all", *counts],
            "verdict": ["all", *(v for v in claims.VERDICTS if any(v in found for found in counts.values()))],
        },
        "known": known,
        "judged": judged,
        "homeless": [verdict for verdict in verdicts if verdict.claim.notebook not in judged],
        "table": verdict_table,
    }


def telling(paper: Paper, verdicts: Sequence[claims.Verdict]) -> list[claims.Verdict]:
    """What to know of a paper: the claims that it names, or else of those that are judged two, its own before ours that failed;
    none of these: what it names all the same."""
    mine = {each.claim.id: each for each in verdicts if each.claim.folder == paper.folder}
    named = [mine[name] for name in paper.told if name in mine]
    judged = [each for each in mine.values() if each.verdict != "not run"]
    own = [each for each in judged if each.claim.kind == "paper"] + missed(judged)
    return (
        [each for each in named if each in judged] or list({each.claim.id: each for each in own}.values())[:2] or named
    )


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
