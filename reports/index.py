"""The front page of the reports, and a page for each paper: every experiment, run or not, and its claims' verdicts."""

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from html import escape
from pathlib import Path
from typing import Any

from pygments import formatters, highlight, lexers

from lib import paths
from lib.errors import LockstepError
from lib.protocols import ALL
from reports import claims, explorer, protocol_pages, runner
from reports.families import families
from reports.forest import effects
from reports.headlines import headline, paper_headline
from reports.markup import TEMPLATES, slug, templates, words
from reports.notebook_output import verdict_table
from reports.page import check_offline, export, framed, page_style, policy
from reports.palette import colour
from reports.runner import Experiment, Paper
from reports.summary_text import failures, judged_again, overview, reason, sentence, uncounted
from reports.thumbnails import thumbnails

FRONT = "which_protocol"
"""The front page's sentences and numbers in the reference: a JSON file, which `reports.publish` writes."""
PROTOCOLS = "protocols"
"""The timelines of protocols, and the pages that use them: another JSON file, by `reports.publish` too."""
SHOWN = "2"
"""The slowdown whose timelines are on the page before anything is chosen."""
NO_PAPER = Paper(folder="", name="Tools and comparisons", title="", cite="", asks="")
"""The notebooks that belong to no one paper."""
KINDS = {"paper": "Papers' claims", "estimate": "Estimates", "target": "Our targets", "check": "Checks"}
"""The name of each kind of claim where its verdicts are counted."""
TRIAL = " The verdicts here are of trials at the profile smoke, which judges nothing; reports/reference has what is published."


def write_index() -> Path:
    """Write `index.html` and the pages that it links to into the reports folder, and return its path."""
    verdicts, folder = claims.verdicts(), paths.reports()
    note = TRIAL if any(verdict.profile == "smoke" for verdict in verdicts) else ""
    for name, html in sheets(runner.experiments(), verdicts, folder, front(paths.reference()), _facts, note).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        paths.write_text_atomic(folder / name, html)
    return folder / "index.html"


def front(folder: Path) -> dict[str, Any]:
    """The front page's sentences, every condition's numbers and the timelines; empty for a folder without them."""
    found: dict[str, Any] = {"answer": [], "about": [], "measured": {}, "protocols": {}, "watched": {}, "used": {}}
    for path in (folder / f"{name}.json" for name in (FRONT, PROTOCOLS)):
        found |= json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def sheets(
    known: list[Experiment],
    verdicts: list[claims.Verdict],
    folder: Path,
    front: Mapping[str, Any],
    facts: Callable[[Experiment], list[str]],
    note: str = "",
) -> dict[str, str]:
    """File name -> HTML of the front page, the rules, every protocol, and every paper with its claims.

    `folder` has the pages that can be read; `facts` returns how an experiment was run.
    """
    pages = {each.name for each in known if (folder / f"{each.name}.html").exists()}
    papers = {paper.folder: paper for paper in (NO_PAPER, *runner.papers())}
    for name in [experiment.paper for experiment in known] + [verdict.claim.folder for verdict in verdicts]:
        papers.setdefault(name, dataclasses.replace(NO_PAPER, folder=name, name=name))
    notebooks = {name: [each for each in known if each.paper == name] for name in papers}
    judged = {name: [each for each in verdicts if each.claim.folder == name] for name in papers}
    places = {
        name: f"{name}/index.html" if name else "across.html" for name in papers if notebooks[name] or judged[name]
    }
    entries = protocol_pages.entries(front["measured"]) if front["measured"] else []
    shared = {"known": known, "pages": pages, "papers": papers, "sheets": places, "front": front, "entries": entries}
    shared["base"] = "" if "90_compare" in pages else "../reference/"  # what is published, where it was not run here
    shared["own"] = {
        name: [each["name"] for each in entries if _reproduced(paper, each["name"])] for name, paper in papers.items()
    }
    small = thumbnails({name: folder / f"{name}.html" for name in pages})
    html = {"index.html": _front(verdicts, shared | {"note": note, "small": small})}
    html |= {f"protocols/{entry['name']}.html": _protocol(entry, shared) for entry in entries}
    for name, place in places.items():
        paper = shared | {"paper": papers[name], "known": notebooks[name], "verdicts": judged[name], "facts": facts}
        html[place] = _sheet("paper", papers[name].name, **paper, root="../" if name else "")
    rows = margins([each.claim for each in verdicts], papers)
    return html | {"rules.html": _sheet("rules", "the rules, and what the words mean", margins=rows)}


def margins(found: Sequence[claims.Claim], papers: Mapping[str, Paper]) -> list[tuple[str, str, str, list[str]]]:
    """For each margin of a paper's equivalences the paper's name, the share of the gain that may be lost, why, and its claims."""
    rows: dict[tuple[str, float], list[str]] = {}
    for claim in found:
        if claim.kind == "paper" and claim.share is not None:
            rows.setdefault((claim.folder, claim.share), []).append(claim.id)
    why = words()["margin_reasons"]
    return [
        (papers[folder].name, f"{100 * share:g} %", why.get(folder, {}).get(f"{100 * share:g}", ""), names)
        for (folder, share), names in rows.items()
    ]


def tallies(verdicts: Sequence[claims.Verdict], papers: str = "papers'") -> list[tuple[str, dict[str, int], str]]:
    """For each kind of claim its name, the number of each word, and how many wait."""
    rows = []
    for kind, found in claims.counts(verdicts).items():
        waiting = found.pop("not run", 0)
        name = KINDS[kind].replace("Papers'", papers.capitalize())
        rows.append((name, found, f"{waiting} wait for a run" if waiting else ""))
    return rows


def chance(verdicts: Sequence[claims.Verdict]) -> str:
    """How many of the shown effects chance alone would show, in a sentence."""
    shown, expected = claims.false_positives(verdicts)
    number = f"{expected:.2g}" if expected >= 0.01 else "fewer than 0.01"
    return f"Of {shown} effects called measurable, {number} are expected to be false, by chance." if shown else ""


def runs_code(verdicts: Sequence[claims.Verdict]) -> str:
    """The commits of the runs that were judged again, in a sentence."""
    again = sorted({each.again for each in verdicts if each.again and each.counts})
    return f"The runs were made by the code of the commits {', '.join(again)}." if again else ""


def filters(verdicts: Sequence[claims.Verdict]) -> dict[str, list[str]]:
    """By what the claims of a paper's page can be chosen."""
    counts = claims.counts(verdicts)
    words = [each for each in claims.ALL_WORDS if any(each in found for found in counts.values())]
    return {"kind": ["all", "counted", *counts], "verdict": ["all", *words]}


def finding(name: str, verdicts: Sequence[claims.Verdict]) -> str:
    """A page's headline or, without one, its first claim with the verdict."""
    mine = [each for each in verdicts if each.claim.notebook == name]
    first = min(mine, key=lambda each: each.claim.kind != "paper", default=None)
    return headline(name, verdicts) or (f"{first.claim.sentence} ({first.text})" if first else "")


FUNCTIONS = (chance, colour, effects, failures, filters, finding, headline, judged_again, overview, paper_headline)
FUNCTIONS += (reason, runs_code, sentence, tallies, uncounted, verdict_table)
"""The functions that templates call."""


def _sheet(name: str, title: str, script: str = "", **page: Any) -> str:
    functions = {each.__name__: each for each in FUNCTIONS}
    page = {"root": "", "title": f"Lockstep: {title}", "script": script} | page
    page |= {"policy": policy(script), "style": page_style()}
    html = templates().get_template(f"{name}.html.j2").render(functions | page | words())
    check_offline(html, name)
    return html


def _protocol(entry: Mapping[str, Any], shared: Mapping[str, Any]) -> str:
    """The page of a protocol."""
    name, front = entry["name"], shared["front"]
    page = protocol_pages.details(name, front["measured"])
    return _sheet(
        "protocol",
        name,
        root="../",
        **page | {"about": [_linked(escape(text)) for text in page["about"]]},
        entry=entry,
        lost=[place for place, numbers, *_ in page["rows"] if numbers[5] < 0],
        timeline=front["protocols"].get(name),
        sync=front["protocols"].get("sync"),
        code=highlight(page["rule"], lexers.PythonLexer(), formatters.HtmlFormatter()),
        papers=[paper for paper in runner.papers() if _reproduced(paper, name)],
        base=f"../{shared['base']}",
        used=[each for each in shared["known"] if each.name in front["used"].get(name, ())],
    )


def _reproduced(paper: Paper, name: str) -> bool:
    """Whether the protocol is the paper's own."""
    return bool(paper.folder) and paper.name in ALL[name].cite


def _front(verdicts: list[claims.Verdict], shared: Mapping[str, Any]) -> str:
    """The front page."""
    front, papers = shared["front"], shared["papers"]
    counted = sorted((each for each in verdicts if each.counts), key=lambda each: claims.ALL_WORDS.index(each.word))
    page = shared | {
        "verdicts": verdicts,
        "count": len(ALL) - 1,
        "about": [_linked(each, shared["pages"]) for each in front["about"]],
        "places": explorer.places(front["measured"]),
        "named": explorer.NAMED,
        "winners": explorer.winners(front["measured"]),
        "families": families(),
        "shown": SHOWN,
        "bar": counted,
        "cards": [paper for folder, paper in papers.items() if folder in shared["sheets"] and paper.title],
        "rows": effects(each for folder in papers for each in counted if each.claim.folder == folder),
        "failed": [each for word in claims.AGAINST for each in verdicts if each.word == word],
    }
    data = {"places": page["places"], "about": words()["conditions"], "watched": [*front["watched"].items()]}
    data["search"] = [*_searched(page)]
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    script = f"const DATA = {text};\n{(TEMPLATES / 'site.js').read_text(encoding='utf-8')}"
    return _sheet("front", "which protocol, and how sure", script, **page)


def _searched(page: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """What can be found on the front page: title, address, kind and text."""
    sheets, verdicts = page["sheets"], page["verdicts"]
    for paper in page["cards"]:
        text = f"{paper.cite}. {paper.claims} {paper_headline(paper.folder, verdicts)}"
        yield f"{paper.name}: {paper.title}", sheets[paper.folder], "Paper", text
    for entry in page["entries"]:
        yield entry["name"], f"protocols/{entry['name']}.html", "Protocol", entry["sentence"]
    for each in page["known"]:
        if each.name in page["pages"]:
            yield each.title, f"{each.name}.html", "Experiment", finding(each.name, verdicts)
    for term, meaning in words()["glossary"].items():
        yield term, f"rules.html#{slug(term)}", "Term", meaning
    for each in verdicts:
        yield each.claim.sentence, f"{sheets[each.claim.folder]}#{each.claim.id}", f"Claim, {each.text}", ""


def _linked(text: str, pages: AbstractSet[str] = frozenset()) -> str:
    """A text with `code` and [links](page) as HTML, a link only to a page that can be read."""

    def link(found: re.Match) -> str:
        words, page = escape(found[1]), found[2]
        return f'<a href="{page}.html">{words}</a>' if page in pages else words

    return re.sub(r"`([^`]+)`", r"<code>\1</code>", re.sub(r"\[([^]]+)\]\(([^)]+)\)", link, text))


def _facts(experiment: Experiment) -> list[str]:
    try:
        facts = runner.run_facts(experiment)
    except LockstepError:
        return []
    parameters = ", ".join(f"{name} = {value}" for name, value in facts.get("parameters", {}).items())
    return [*filter(None, (f"profile {facts['profile']}" if facts.get("profile") else "", parameters))]


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
            page = framed(experiment.page.read_text(encoding="utf-8"), experiment.name, made)
            paths.write_text_atomic(experiment.page, page)
    page = write_index()
    if failed:
        lines = "\n".join(failed)
        raise runner.NotebookFailed(f"{len(failed)} notebooks failed; what worked is in {page}:\n{lines}")
    return page
