"""The results as Markdown, which a code host shows: a page for all, and one for each paper with a picture of its effects."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from reports import claims, explorer, runner
from reports.forest import forest
from reports.headlines import headline, paper_headline
from reports.markup import templates, words
from reports.quantities import measured_text, paper_text, part_text
from reports.runner import Experiment
from reports.summary_text import failures, overview, reason, sentence, uncounted


def pages(
    known: Sequence[Experiment], verdicts: Sequence[claims.Verdict], front: Mapping[str, Any], data: Mapping
) -> dict[str, str]:
    """File name -> text; `front` is that of the index, and `data` has the addresses of each page's numbers."""
    papers = {paper: [each for each in verdicts if each.claim.folder == paper.folder] for paper in runner.papers()}
    papers = {paper: mine for paper, mine in papers.items() if mine}
    shared = {"known": known, "data": data}
    shared |= {
        each.__name__: each
        for each in (cases, failures, headline, overview, paper_headline, reason, sentence, uncounted)
    }
    texts = {}
    for paper, mine in papers.items():
        if picture := forest(mine):
            texts[f"{paper.folder}/effects.svg"] = picture
        page = shared | {"paper": paper, "verdicts": mine, "picture": picture}
        texts[f"{paper.folder}/README.md"] = _text("paper", page)
    about = [re.sub(r"\]\(([^)]*?)([^/)]+)\)", r"](\1README.md#\2)", each) for each in front["about"]]
    page = shared | {"papers": papers, "verdicts": verdicts, "front": front, "about": about}
    return texts | {"README.md": _text("reference", words() | page | {"winners": explorer.winners(front["measured"])})}


def _text(name: str, page: Mapping[str, Any]) -> str:
    text = templates().overlay(autoescape=False).get_template(f"{name}.md.j2").render(page)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def cases(verdict: claims.Verdict) -> list[tuple[str, str, str, str]]:
    """A row for each case: the claim, ours, the paper's, and the verdict."""
    claim, several = verdict.claim, len(verdict.cases) > 1
    if not verdict.cases:
        return [(claim.sentence, "–", "–", verdict.text)]
    rows = []
    for case in verdict.cases:
        name = ("" if rows else claim.sentence) + (f" *{case.case}*" if several else "")
        share = f" ({part})" if (part := part_text(claim, case)) else ""
        ours = f"{measured_text(claim, case)}{share}"
        rows.append(
            (name, ours, paper_text(claim, case), (case.word if several else verdict.text) + uncounted(verdict))
        )
    return rows
