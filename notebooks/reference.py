"""The committed results: what the reports folder holds at the laptop profile, and what the README says of them.

`reports/reference/` has a page for every notebook, the numbers behind its figures, a file for every verdict, and an index.
What the reports folder holds takes the place of what was published of it; pages of notebooks that were not run here stay as they
are, each with its data, its verdicts and the commit that made them. So a paper is published alone, and a change that touches one
voids no other. A verdict whose claim has another rule by now is withdrawn, and its page says so until it is run again; of a
paper's the results stay as a pilot's, by whose spread the new rule is tried. All of it is put in place or nothing, and the same
reports give the same bytes.

    python -m notebooks.reference
"""

import argparse
import dataclasses
import json
import re
import shutil
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator, Set
from html import unescape
from pathlib import Path

from lib import paths
from lib.command_line import carried_out
from lib.errors import LockstepError
from notebooks import withdrawn
from reports import claims
from reports import front_figure as picture
from reports import protocol_families as families
from reports import runner as notebooks
from reports.claims import Claim, Verdict
from reports.index import sheets, tallied, telling
from reports.page import LARGEST, led, render
from reports.runner import Experiment
from reports.summary_text import told

PROFILE = "laptop"
PICTURE = "which_protocol.svg"
"""What the README shows."""
MADE = "`python -m notebooks.reference` writes what stands here"
BLOCKS = ("protocols", "verdicts")
"""What is made in the README, each between two comments."""
BY_HAND = ("soak.json", "gpu", "real", "sealed", "pilots")
"""What is in the reference and no notebook makes."""
TOLD = ("short", "explanations")
"""Of a claim, what tells of its verdict: no rule rests on it, and the paper's own page has it from the record."""
WAITS = "it waits for a run of its page by the rule of today"
NONE_YET = "No claim has been judged at the laptop profile by these rules yet; `make reproduce PROFILE=laptop` does it."


class NotPublished(LockstepError, ValueError):
    """The reports are not what is to be published; the reference and the README are as they were."""


def publish() -> Path:
    """Put the reference results and what the README says of them in their places; the reference's index."""
    known, target = notebooks.experiments(), paths.reference()
    run = [experiment for experiment in known if experiment.executed.exists()]
    staying = [each for each in known if each not in run and (target / f"{each.name}.html").exists()]
    names = {experiment.name for experiment in run}
    judged = [verdict for verdict in claims.verdicts() if verdict.claim.notebook in names]
    if problems := [*_unfit(run), *_unjudged(judged)]:
        raise NotPublished(
            f"the reports are not those of the {PROFILE} profile; `make reproduce PROFILE={PROFILE}` makes them:\n"
            + "\n".join(problems)
        )
    if not run:
        raise NotPublished(f"nothing has been run; `make reproduce PROFILE={PROFILE}` makes what is published")
    paths.check_writable(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".reference-", ignore_cleanup_errors=True) as place:
        stage = Path(place)
        _keep(stage, target, staying)
        for experiment in run:
            _page(stage, experiment, render(experiment.executed), paths.reports())
        for verdict in judged:
            _verdict(stage, verdict)
        shown = [each for each in known if each in run or each in staying]
        _lead(stage, {each.name for each in shown})
        _front(stage, shown)
        text = readme(stage)
        stage.chmod(0o755)  # a temporary folder's 0700 would hide it
        paths.replace_folder(stage, target)
    paths.write_text_atomic(paths.root() / "README.md", text)
    return target / "index.html"


def _unfit(experiments: list[Experiment]) -> Iterator[str]:
    """Why pages cannot be published."""
    for experiment in experiments:
        facts = notebooks.facts(experiment)
        if (profile := facts.get("profile")) != PROFILE:
            yield f"notebook {experiment.name} was run at the profile {profile or '(none)'}"
        if given := facts.get("parameters"):
            told = ", ".join(f"{name}={value}" for name, value in given.items())
            yield f"notebook {experiment.name} was run with parameters of its own: {told}"
        if experiment.failed.exists():
            yield f"notebook {experiment.name} failed when it was last run"


def _unjudged(verdicts: list[Verdict]) -> Iterator[str]:
    """Why verdicts of what was run cannot be published."""
    for verdict in verdicts:
        claim = verdict.claim
        if verdict.verdict == "not run":
            yield f"claim {claim.id} was not judged by {claim.notebook}, which was run"
        if verdict.changed:
            yield f"claim {claim.id} was changed since it was judged: {', '.join(verdict.changed)}"


def _keep(stage: Path, target: Path, staying: list[Experiment]) -> None:
    """What stays: what no notebook makes, and the pages of notebooks that were not run here, to the byte but for what they say of
    withdrawn verdicts, and for the links to the pages beside them."""
    today = {claim.id: claim.hash for claim in claims.load().values()}
    published = {verdict.claim.id: verdict.claim for verdict in claims.kept(target)}
    standing = {name for name, claim in published.items() if claim.hash == today.get(name)}
    for experiment in staying:
        page = (target / f"{experiment.name}.html").read_text(encoding="utf-8")
        mine = {name for name in standing if published[name].notebook == experiment.name}
        _page(stage, experiment, withdrawn.marked(page, mine), target)
        for name in sorted(mine):
            _kept(stage, target, claims.load()[name])
    for name in BY_HAND:
        if (target / name).is_dir():
            shutil.copytree(target / name, stage / name)
        elif (target / name).exists():
            shutil.copy2(target / name, stage / name)
    for name in sorted(today.keys() & published.keys() - standing):
        place = claims.file_of(name, stage / "pilots")
        if claims.load()[name].kind == "paper" and not place.exists():  # its next rule is tried on their spread
            record = json.loads(claims.file_of(name, target).read_text(encoding="utf-8"))
            kept = {"claim": name, "note": "of a verdict by an older rule", "results": record["results"]}
            _write(place, json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def _page(stage: Path, experiment: Experiment, page: str, source: Path) -> None:
    """A page, and the data that it leads to, which lie in `source`."""
    _write(stage / f"{experiment.name}.html", page)
    for link in re.findall(r'class="data" href="([^"]+)"', page):
        place = Path(experiment.name).parent / unescape(link)
        try:
            text = (source / place).read_text(encoding="utf-8")
        except OSError as error:
            problem = f"{experiment.name}: its page leads to {place}, which cannot be read; run the notebook again"
            raise NotPublished(problem) from error
        _write(stage / place, text)


def _lead(stage: Path, names: Set[str]) -> None:
    """Each page leads to those beside it, of the pages that are published: it may have been run beside other ones."""
    for name in names:
        place = stage / f"{name}.html"
        _write(place, led(place.read_text(encoding="utf-8"), name, names))


def _verdict(stage: Path, verdict: Verdict) -> None:
    """A verdict's record. What no rule rests on, explanations among it, may be newer than the run."""
    source = claims.file_of(verdict.claim.id, paths.reports())
    record = json.loads(source.read_text(encoding="utf-8")) | {"claim": dataclasses.asdict(verdict.claim)}
    _write(claims.file_of(verdict.claim.id, stage), json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def _kept(stage: Path, target: Path, claim: Claim) -> None:
    """A record that stays: its scale is that of its run, and only what tells of it may be newer."""
    record = json.loads(claims.file_of(claim.id, target).read_text(encoding="utf-8"))
    today = dataclasses.asdict(claim)
    record["claim"] |= {name: today[name] for name in TOLD}
    _write(claims.file_of(claim.id, stage), json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def _front(folder: Path, experiments: list[Experiment]) -> None:
    """The index of what the folder holds with what it leads to, and the README's picture."""
    note = f" These are the results of the {PROFILE} profile that are kept with the code; a page says of which commit it is."
    data, pages = picture.kept(folder), {each.name for each in experiments}
    for name, html in sheets(
        experiments, _verdicts(folder), pages, data, lambda _: [f"profile {PROFILE}"], note
    ).items():
        _write(folder / name, html)
    if data is not None:
        _write(folder / PICTURE, picture.svg(picture.picture(data)))


def _verdicts(folder: Path) -> list[Verdict]:
    """Of every claim, those that the folder does not hold among them: they wait for a run by the rule of today."""
    found = {verdict.claim.id: verdict for verdict in claims.kept(folder)}
    return [
        found.get(name) or Verdict(claim=claim, verdict="not run", detail=WAITS)
        for name, claim in claims.load().items()
    ]


def _write(path: Path, text: str) -> None:
    """Write a file that may go to everybody: small enough, and without a path of this machine."""
    size = len(text.encode())
    if size >= LARGEST:
        raise NotPublished(f"{path.name} has {size / 1e6:.1f} MB, 2 is the most; draw fewer or smaller figures")
    if found := machine_path(text):
        raise NotPublished(
            f"{path.name} names a path of this machine, {found}; change the cell that shows it (a warning's text, a "
            "parameter) and run the notebook again"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


def machine_path(text: str) -> str | None:
    """The first path of this machine, or of anybody's home, in a text; pictures are not read."""
    here = {
        paths.root(),
        paths.reports(),
        Path.home(),
        *map(Path, (tempfile.gettempdir(), sys.prefix, sys.base_prefix)),
    }
    places = [re.escape(str(place)) for place in sorted(here, key=str) if len(place.parts) > 1]
    places += [r"/(?:home|Users)/\w[\w.-]*", r"[A-Z]:\\Users\\\w[\w.-]*"]
    text = re.sub(r"data:image/[^\"')]*", "", text)
    found = re.search(rf"(?<![\w.:/-])(?:{'|'.join(places)})(?![\w-])[^\s\"'<>)]*", text)
    return found[0] if found else None


def readme(folder: Path | None = None) -> str:
    """The README as it should be: with what the reference in `folder` holds, the picture's answer and the verdicts."""
    folder = folder or paths.reference()
    path = paths.root() / "README.md"
    text = path.read_text(encoding="utf-8")
    for name, made in zip(BLOCKS, (protocols(folder), verdicts(folder)), strict=True):
        start, end = f"<!-- {name}: {MADE} -->", f"<!-- end of the {name} -->"
        before, found, rest = text.partition(start)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise NotPublished(f"{path} has no place for the {name}: a line {start} and after it a line {end}")
        text = f"{before}{start}\n\n{made}\n\n{end}{after}"
    return text


def protocols(folder: Path) -> str:
    """The answer in words, how it was measured and what it hangs on, and the protocols by family."""
    data, lines = picture.kept(folder), []
    if data is not None:
        many = data["protocol"].nunique() - 1  # less the frozen one
        about = families.about(many, lambda text, page: _link(folder, text, page))
        lines = [line for each in (" ".join(picture.answer(data)), *about) for line in (_wrapped(each), "")]
    for each in families.families():
        names = ", ".join(f"`{name}`" for name in each["members"])
        said = f"**{each['family']}** ({names}). {each['idea']} *Use* where {each['when']}; *not* where {each['not']}."
        lines.append(_wrapped(said, "- "))
    return "\n".join(lines)


def _link(folder: Path, text: str, page: str) -> str:
    """To a page of the reference, where the folder has it."""
    return f"[{text}](reports/reference/{page}.html)" if (folder / f"{page}.html").exists() else text


def verdicts(folder: Path) -> str:
    """How many of each verdict the folder holds; of each paper how many are judged, the confirmatory ones, what to know of it."""
    every = _verdicts(folder)
    found = {each.claim.id: each for each in every if each.verdict != "not run"}
    if not found:
        return NONE_YET
    lines = []
    for name, of, waiting in tallied(every):
        said = f"{name}: {claims.tally(of)}" if of else name
        said += f" ({_failed(folder, every)})" if "failed" in of else ""
        lines.append(_wrapped("; ".join(filter(None, (said, waiting))), "- "))
    for paper in notebooks.papers():
        if total := sum(each.kind == "paper" and each.folder == paper.folder for each in claims.load().values()):
            mine = [each for each in found.values() if each.claim.kind == "paper" and each.claim.folder == paper.folder]
            told_of = [each for each in telling(paper, every) if each.claim.id in found]
            parts = [f"**{_link(folder, paper.name, f'{paper.folder}/index')}** ({_judged(mine, total)})."]
            parts += [f"{told(each).rstrip('.')}: *{each.counted}*." for each in told_of]
            lines.append(_wrapped(" ".join(parts), "- "))
    return "\n".join(lines)


def _failed(folder: Path, verdicts: list[Verdict]) -> str:
    """The checks that failed, each with the page that has it."""
    failed = [each.claim for each in verdicts if each.counted == "failed"]
    return ", ".join(_link(folder, claim.id, claim.notebook) for claim in failed)


def _judged(verdicts: list[Verdict], total: int) -> str:
    """How many of a paper's claims are judged, and what the confirmatory ones came to."""
    if not verdicts:
        return f"none of {total} claims judged yet"
    sure = Counter(each.counted for each in verdicts if each.standing == "confirmatory")
    of = "" if len(verdicts) == total else f" of {total}"
    said = f"{len(verdicts)}{of} claim{'s' * (total > 1)} judged"
    return f"{said}, {f'{sum(sure.values())} confirmatory: {claims.tally(sure)}' if sure else 'none confirmatory'}"


def _wrapped(text: str, first: str = "") -> str:
    """As lines of a README, which people read as text too."""
    given = {"width": 120, "break_long_words": False, "break_on_hyphens": False}
    kept = _line(text).replace(" %", "\u00a0%")  # never alone on the next line
    return textwrap.fill(kept, **given, initial_indent=first, subsequent_indent=" " * len(first))


def _line(text: str) -> str:
    return re.sub(r"[ \n\t]+", " ", text).strip().replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(carried_out(argparse.Namespace(command=lambda _: print(publish()))))
