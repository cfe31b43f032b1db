"""README's generated parts: what was found, the tables of protocols and of papers, and when a card was last used, all from a
reference folder."""

import json
import re
import textwrap
from collections import Counter
from pathlib import Path

from lib import paths
from lib.errors import LockstepError
from notebooks import compare_figure
from reports import claims, runner
from reports.claims import Verdict
from reports.claims.dependencies import git
from reports.headlines import paper_headline
from reports.markup import line
from reports.summary_text import SAID, held

GENERATED = "`python -m reports.publish` writes this part"
NUMBER = "<!-- protocols: -->"
"""Stands before the number of protocols."""
CARD = re.compile(r"(<!-- card: -->)[^.]*\.")
"""The sentence about the last run on a card."""
WIDTH = 100


class NoPlace(LockstepError, ValueError):
    """A README without the comments between which a part belongs."""


def readme(folder: Path, verdicts: list[Verdict]) -> str:
    """README with its parts made from the reference in `folder`, which has these verdicts."""
    path = paths.root() / "README.md"
    text = path.read_text(encoding="utf-8")
    parts = {"findings": findings(folder, verdicts), "protocols": protocols(folder), "papers": papers(folder, verdicts)}
    for name, block in parts.items():
        start, end = f"<!-- {name}: {GENERATED} -->", f"<!-- end of the {name} -->"
        before, found, rest = text.partition(start)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise NoPlace(f"{path} has no place for the {name}: a line {start} and after it a line {end}")
        text = f"{before}{start}\n{block}\n{end}{after}"
    return with_card(re.sub(rf"({NUMBER})\d+", rf"\g<1>{len(compare_figure.members())}", text), folder)


def with_card(text: str, folder: Path) -> str:
    """The text with today's sentence about the last run on a card, if it has one."""
    return CARD.sub(lambda found: f"{found[1]}{last_card(folder)}", text)


def last_card(folder: Path) -> str:
    """Whether `lib` is what a card last ran, by the commit that is stored with the figures of that run."""
    made = json.loads((folder / "gpu" / "machine.json").read_text(encoding="utf-8"))["commit"].rstrip("+")
    same = git(paths.root(), "diff", "--quiet", made, "--", "lib") is not None
    return f"Run on a card at commit {made[:7]}." if same else f"Not run on a card since commit {made[:7]}."


def findings(folder: Path, verdicts: list[Verdict]) -> str:
    """What the figure shows, how that was measured, and how many of the papers' claims hold."""
    data = compare_figure.read(folder)
    if data is None:
        return _wrapped(held(verdicts), "- ")
    words = compare_figure.front(data, fidelity=compare_figure.fidelity(folder))
    lines = [_wrapped(each, "- ") for each in (*words["answer"], held(verdicts))]
    how = re.sub(r"\[([^]]+)\]\(([^)]+)\)", lambda link: _link(folder, *link.groups()), words["about"][0])
    return "\n".join([*lines, "", _wrapped(how)])


def protocols(folder: Path) -> str:
    """A row for each family: how it works, where it is faster and where slower than Sync, and what it loses, as measured."""
    data = compare_figure.read_conditions(folder)
    rows = [("Family", "How it works", "Faster than Sync with", "Slower than Sync with", "AUC − Sync's")]
    for each in compare_figure.families():
        new = [] if data is None else [name for name in each["members"] if name not in {*data["protocol"]}]
        known = [name for name in each["members"] if name not in new]
        names = "; not measured: ".join(", ".join(f"`{name}`" for name in part) for part in (known, new) if part)
        measured = ("–", "–", "–") if data is None else compare_figure.advice(data, each["members"])
        rows.append((f"**{each['family']}** {names}", each["idea"], *measured))
    return _table(rows)


def papers(folder: Path, verdicts: list[Verdict]) -> str:
    """A row for each paper: its claim, what was found, and how many of its counted claims have which word."""
    rows = [("Paper", "The paper claims", "We found", "Verdicts")]
    for paper in runner.papers():
        theirs = [each for each in verdicts if each.claim.kind == "paper" and each.claim.folder == paper.folder]
        if theirs:
            judged = Counter(each.word for each in theirs if each.counts)
            judged[claims.SHELF] = sum(each.word == claims.SHELF for each in theirs)
            judged["waiting for a run"] = sum(each.word == "not run" for each in theirs)
            tally = claims.tally(
                {each: judged[each] for each in (*SAID, claims.SHELF, "waiting for a run") if judged[each]}
            )
            place = f"{paper.folder}/README.md"
            name = f"[{paper.name}](reports/reference/{place})" if (folder / place).exists() else paper.name
            cite = f"[{paper.cite}]({paper.link})" if paper.link else paper.cite
            found = paper_headline(paper.folder, verdicts)
            rows.append((f"**{name}**, {cite}", paper.claims, found, f"{sum(judged.values())}: {tally}"))
    return _table(rows)


def _link(folder: Path, text: str, page: str) -> str:
    """A link to a page's place in the reference's Markdown, or the text alone where the folder does not have the page."""
    paper, _, name = page.rpartition("/")
    place = f"{paper}/README.md" if paper else "README.md"
    return f"[{text}](reports/reference/{place}#{name})" if (folder / f"{page}.html").exists() else text


def _table(rows: list[tuple[str, ...]]) -> str:
    """A Markdown table whose first row is its head."""
    head, *body = (f"| {' | '.join(map(line, row))} |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def _wrapped(text: str, first: str = "") -> str:
    """A paragraph in lines that people read as text too."""
    text = re.sub(r"[ \n\t]+", " ", text).strip().replace("<", "&lt;").replace(" %", "\u00a0%")  # % ends no line alone
    options = {"width": WIDTH, "break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(text, **options, initial_indent=first, subsequent_indent=" " * len(first))
