"""The front page of the reports, and a page for each paper: every experiment, run or not, and its claims' verdicts."""

import base64
import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from html import escape
from pathlib import Path
from typing import Any

from lib import paths
from lib.errors import LockstepError
from reports import claims, runner
from reports.forest import forest
from reports.headlines import headline
from reports.markup import style, templates, words
from reports.notebook_output import HOW_TO_READ, verdict_table
from reports.page import POLICY, check_offline, export, with_navigation
from reports.runner import Experiment, Paper
from reports.summary_text import failures, reason, sentence

FRONT = "which_protocol"
"""The front page's figure and sentences in the reference: an SVG and a JSON file, which `reports.publish` writes."""
NO_PAPER = Paper(folder="", name="Across the papers", title="", cite="", asks="")
"""The notebooks that belong to no one paper."""
KINDS = {"paper": "Papers' claims", "estimate": "Estimates", "target": "Our targets", "check": "Checks"}
"""The name of each kind of claim where its verdicts are counted."""
TRIAL = " The verdicts here are of trials at the profile smoke, which judges nothing; reports/reference has what is published."


def write_index() -> Path:
    """Write `index.html` and the pages that it links to into the reports folder, and return its path."""
    known, verdicts = runner.experiments(), claims.verdicts()
    note = TRIAL if any(verdict.profile == "smoke" for verdict in verdicts) else ""
    pages = {experiment.name for experiment in known if experiment.page.exists()}
    for name, html in sheets(known, verdicts, pages, front(paths.reference()), _facts, note).items():
        (paths.reports() / name).parent.mkdir(parents=True, exist_ok=True)
        paths.write_text_atomic(paths.reports() / name, html)
    return paths.reports() / "index.html"


def front(folder: Path) -> dict[str, Any]:
    """The front page's sentences, and its figure as `drawing`; empty for a folder without them."""
    path = folder / f"{FRONT}.json"
    if not path.exists():
        return {}
    drawing = base64.b64encode((folder / f"{FRONT}.svg").read_bytes()).decode()
    return json.loads(path.read_text(encoding="utf-8")) | {"drawing": drawing}


def sheets(
    known: list[Experiment],
    verdicts: list[claims.Verdict],
    pages: AbstractSet[str],
    front: Mapping[str, Any],
    facts: Callable[[Experiment], list[str]],
    note: str = "",
) -> dict[str, str]:
    """File name -> HTML of the front page, of a page for each paper with all its claims, and of the rules in words.

    `pages` are the names of those that can be read; `facts` returns how an experiment was run.
    """
    papers = {paper.folder: paper for paper in (NO_PAPER, *runner.papers())}
    for folder in [experiment.paper for experiment in known] + [verdict.claim.folder for verdict in verdicts]:
        papers.setdefault(folder, dataclasses.replace(NO_PAPER, folder=folder, name=folder))
    notebooks = {folder: [each for each in known if each.paper == folder] for folder in papers}
    judged = {folder: [each for each in verdicts if each.claim.folder == folder] for folder in papers}
    names = {
        folder: f"{folder}/index.html" if folder else "across.html"
        for folder in papers
        if notebooks[folder] or judged[folder]
    }
    shared = {"known": known, "pages": pages, "papers": papers, "sheets": names, "note": note}
    title = "which protocol, and how sure"
    html = {"index.html": _sheet("front", title, **shared, **_front(known, verdicts, pages, front))}
    for folder, name in names.items():
        paper = shared | _paper(papers[folder], notebooks[folder], judged[folder])
        html[name] = _sheet("paper", papers[folder].name, **paper, facts=facts, root="../" if folder else "")
    return html | {"rules.html": _sheet("rules", "the rules, and what the words mean", how_to_read=HOW_TO_READ)}


def tallies(verdicts: Sequence[claims.Verdict], papers: str = "papers'") -> list[tuple[str, dict[str, int], str]]:
    """For each kind of claim its name, the number of each word, and how many wait."""
    rows = []
    for kind, found in claims.counts(verdicts).items():
        waiting = found.pop("not run", 0)
        name = KINDS[kind].replace("Papers'", papers.capitalize())
        rows.append((name, found, f"{waiting} wait for a run" if waiting else ""))
    return rows


def chance(verdicts: Sequence[claims.Verdict]) -> str:
    """How many of the shown effects chance alone would show, and from which runs verdicts were judged again; in sentences."""
    shown, expected = claims.false_positives(verdicts)
    number = f"{expected:.2g}" if expected >= 0.01 else "fewer than 0.01"
    words = f"Of {shown} shown effects {number} are expected by chance." if shown else ""
    again = sorted({each.again for each in verdicts if each.again and each.counts})
    return f"{words} Judged again, by today's rules, from the runs of {', '.join(again)}.".strip() if again else words


def _sheet(name: str, title: str, root: str = "", **page: Any) -> str:
    page |= {"policy": POLICY, "style": style(), "title": f"Lockstep: {title}", "root": root}
    html = templates().get_template(f"{name}.html.j2").render(page | words())
    check_offline(html, name)
    return html


def _by_notebook(known: list[Experiment], verdicts: list[claims.Verdict]) -> dict[str, list[claims.Verdict]]:
    return {experiment.name: [v for v in verdicts if v.claim.notebook == experiment.name] for experiment in known}


def _front(
    known: list[Experiment], verdicts: list[claims.Verdict], pages: AbstractSet[str], front: Mapping[str, Any]
) -> dict[str, Any]:
    judged = _by_notebook(known, verdicts)
    return {
        "tallies": tallies(verdicts),
        "judged": judged,
        "answer": front.get("answer", []),
        "drawing": front.get("drawing", ""),
        "about": [_linked(each, pages) for each in front.get("about", ())],
        "forest": forest([each for each in verdicts if each.counts]),
        "chance": chance(verdicts),
        "failed": [(v, sentence(v)) for name in claims.AGAINST for v in verdicts if v.word == name],
        "homeless": sum(v.claim.notebook not in judged for v in verdicts),
    }


def _linked(text: str, pages: AbstractSet[str]) -> str:
    """A text with `code` and [links](page) as HTML, a link only to a page that can be read."""

    def link(found: re.Match) -> str:
        words, page = escape(found[1]), found[2]
        return f'<a href="{page}.html">{words}</a>' if page in pages else words

    return re.sub(r"`([^`]+)`", r"<code>\1</code>", re.sub(r"\[([^]]+)\]\(([^)]+)\)", link, text))


def _paper(paper: Paper, known: list[Experiment], verdicts: list[claims.Verdict]) -> dict[str, Any]:
    counts, judged = claims.counts(verdicts), _by_notebook(known, verdicts)
    failed = sorted(failures(verdicts), key=lambda verdict: verdict.claim.kind != "paper")
    return {
        "paper": paper,
        "headline": headline(paper.folder, verdicts),
        "forest": forest(verdicts, f" of {paper.name}" if paper.folder else ""),
        "chance": chance(verdicts),
        "tallies": tallies(verdicts, "the paper's"),
        "how_to_read": HOW_TO_READ,
        "failures": [(v, sentence(v), reason(v)) for v in failed],
        "filters": {
            "kind": ["all", "counted", *counts],
            "verdict": ["all", *(v for v in claims.ALL_WORDS if any(v in found for found in counts.values()))],
        },
        "known": known,
        "judged": judged,
        "homeless": [verdict for verdict in verdicts if verdict.claim.notebook not in judged],
        "table": verdict_table,
    }


def _facts(experiment: Experiment) -> list[str]:
    try:
        facts = runner.run_facts(experiment)
    except LockstepError:
        return []
    texts = [f"profile {facts['profile']}"] if facts.get("profile") else []
    parameters = ", ".join(f"{name} = {value}" for name, value in facts.get("parameters", {}).items())
    return texts + ([parameters] if parameters else [])


def build(
    profile: str = "smoke", name: str = "all", parameters: Mapping[str, Any] | None = None, resume: bool = False
) -> Path:
    """Run notebooks, export their pages, write the index and return its path.

    A failure is raised after everything else is done. With `resume` complete notebooks are only exported.
    """
    paths.check_writable(paths.reports())
    chosen = runner.resolve(name)
    if len(chosen) == 1:
        try:
            export(runner.run(chosen[0].name, profile, parameters, resume))
        except LockstepError:
            write_index()
            raise
        return write_index()
    failed = runner.run_together(chosen, profile, parameters, resume, lambda each: export(each.executed))
    made = {each.name for each in runner.experiments() if each.page.exists()}
    for experiment in chosen:  # a second time, since each has its neighbours now
        if profile != "smoke" and experiment.executed.exists():
            export(experiment.executed)
        elif experiment.name in made:  # smoke judges nothing
            page = with_navigation(experiment.page.read_text(encoding="utf-8"), experiment.name, made)
            paths.write_text_atomic(experiment.page, page)
    page = write_index()
    if failed:
        lines = "\n".join(failed)
        raise runner.NotebookFailed(f"{len(failed)} notebooks failed; what worked is in {page}:\n{lines}")
    return page
