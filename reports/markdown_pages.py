"""The results as Markdown, which a code host shows: a page for all, and one for each paper with a picture of its effects."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from reports import claims, explorer, runner
from reports.forest import forest
from reports.headlines import headline
from reports.markup import templates, words
from reports.quantities import measured_text, paper_text, part_text
from reports.runner import Experiment
from reports.summary_text import failures, held, judged_again, reason, sentence


def pages(
    known: Sequence[Experiment], verdicts: Sequence[claims.Verdict], front: Mapping, data: Mapping
) -> dict[str, str]:
    """File name -> text; `front` is that of the index, and `data` has the addresses of each page's numbers."""
    shared = {
        "data": data,
        "cases": _cases,
        "held": _held,
        "failures": failures,
        "sentence": sentence,
        "reason": reason,
    }
    shared |= {"headline": headline}
    texts, papers = {}, []
    for paper in runner.papers():
        mine = [each for each in verdicts if each.claim.folder == paper.folder]
        if not mine:
            continue
        found = headline(paper.folder, mine) or "Its claims wait for their next run."
        papers.append((paper, found))
        if picture := forest(mine):
            texts[f"{paper.folder}/effects.svg"] = picture
        page = shared | {"paper": paper, "found": found, "verdicts": mine, "picture": picture}
        texts[f"{paper.folder}/README.md"] = _text("paper", known=_of(known, paper.folder), **page)
    page = shared | {"papers": papers, "verdicts": verdicts, "front": front, "known": _of(known, "")}
    about = [re.sub(r"\]\(([^)]*?)([^/)]+)\)", r"](\1README.md#\2)", each) for each in front.get("about", ())]
    winners = explorer.winners(front.get("measured", {}))
    return texts | {"README.md": _text("reference", **page, winners=winners, about=about, **words())}


def _held(verdicts: Sequence[claims.Verdict]) -> str:
    return f"{held(verdicts)} {judged_again(verdicts)}".strip()


def _of(known: Sequence[Experiment], folder: str) -> list[Experiment]:
    return [each for each in known if each.paper == folder]


def _text(name: str, **page: Any) -> str:
    environment = templates().overlay(autoescape=False)
    environment.filters["line"] = _line
    return re.sub(r"\n{3,}", "\n\n", environment.get_template(f"{name}.md.j2").render(page)).strip() + "\n"


def _line(text: str) -> str:
    """Text as a cell of a table, or as a list's item."""
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|").replace("<", "&lt;")


def _cases(verdict: claims.Verdict) -> list[tuple[str, str, str, str]]:
    """A row for each case: the claim, ours, the paper's, and the verdict."""
    claim, several = verdict.claim, len(verdict.cases) > 1
    rows = []
    for case in verdict.cases or [None]:
        first = "" if rows else claim.sentence
        name = f" {'*' + case.case + '*' if several else ''}" if case else ""
        share = f" ({part})" if case and (part := part_text(claim, case)) else ""
        ours, theirs = (f"{measured_text(claim, case)}{share}", paper_text(claim, case)) if case else ("–", "–")
        rows.append((first + name, ours, theirs, case.word if case and several else verdict.text))
    return rows
