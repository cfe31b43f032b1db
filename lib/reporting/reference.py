"""The committed results: what the reports folder holds at the laptop profile, and what the README says of them.

`reports/reference/` has a page for every notebook, the numbers behind its figures, a file for every verdict, and an index.
What the reports folder holds takes the place of what was published of it; pages of notebooks that were not run here stay as they
are, each with its data, its verdicts and the commit that made them. So a paper is published alone, and a change that touches one
voids no other. All of it is put in place or nothing, and the same reports give the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
import tempfile
from html import unescape
from itertools import groupby
from pathlib import Path

from lib import paths
from lib.errors import LockstepError
from lib.reporting import claims, notebooks
from lib.reporting.claims import Verdict
from lib.reporting.index import KINDS, front
from lib.reporting.notebooks import Experiment
from lib.reporting.page import LARGEST, render
from lib.reporting.short import MISSED, told, why

PROFILE = "laptop"
PICTURE = "which_protocol.svg"
"""What the README shows."""
MADE = "`python -m lib report --reference` writes what stands here"
BLOCKS = ("protocols", "verdicts")
"""What is made in the README, each between two comments."""
BY_HAND = ("mutate.json", "soak.json", "gpu")
"""What is in the reference and no notebook makes."""
NONE_YET = "No claim has been judged at the laptop profile by these rules yet; `make reproduce PROFILE=laptop` does it."


class NotPublished(LockstepError, ValueError):
    """The reports are not what is to be published; the reference and the README are as they were."""


def publish() -> Path:
    """Put the reference results and what the README says of them in their places; the reference's index."""
    known = notebooks.experiments()
    experiments = [experiment for experiment in known if experiment.executed.exists()]
    judged = [verdict for verdict in claims.verdicts(paths.reports()) if verdict.verdict != "not run"]
    target = paths.reference()
    staying = [each for each in known if each not in experiments and (target / f"{each.name}.html").exists()]
    if problems := [*_unfit(experiments), *_unjudged(experiments, judged), *_outdated(staying)]:
        raise NotPublished(
            f"the reports are not those of the {PROFILE} profile; `make reproduce PROFILE={PROFILE}` makes them:\n"
            + "\n".join(problems)
        )
    if not experiments:
        raise NotPublished(f"nothing has been run; `make reproduce PROFILE={PROFILE}` makes what is published")
    paths.check_writable(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".reference-", ignore_cleanup_errors=True) as place:
        stage = Path(place)
        _keep(stage, target, staying)
        _fill(stage, experiments, judged)
        _front(stage, [each for each in known if each in experiments or each in staying])
        text = readme(stage)
        stage.chmod(0o755)  # a temporary folder's 0700 would hide it
        paths.replace_folder(stage, target)
    paths.write_text_atomic(paths.root() / "README.md", text)
    return target / "index.html"


def _unfit(experiments: list[Experiment]) -> list[str]:
    """Why pages cannot be published."""
    problems = []
    for experiment in experiments:
        facts = notebooks.facts(experiment)
        if facts.get("profile") != PROFILE:
            problems.append(f"notebook {experiment.name} was run at the profile {facts.get('profile') or '(none)'}")
        if facts.get("parameters"):
            given = ", ".join(f"{name}={value}" for name, value in facts["parameters"].items())
            problems.append(f"notebook {experiment.name} was run with parameters of its own: {given}")
        if not facts.get("machine") or not facts.get("command"):
            problems.append(f"notebook {experiment.name} does not say how and on what machine it was run")
        if experiment.failed.exists():
            problems.append(f"notebook {experiment.name} failed when it was last run")
    return problems


def _unjudged(experiments: list[Experiment], verdicts: list[Verdict]) -> list[str]:
    """Why verdicts cannot be published."""
    names = {experiment.name for experiment in experiments}
    judged = {verdict.claim.id for verdict in verdicts}
    problems = []
    for verdict in verdicts:
        claim = verdict.claim
        if verdict.profile != PROFILE:
            problems.append(f"claim {claim.id} was judged at the profile {verdict.profile or '(none)'}")
        if verdict.changed:
            problems.append(f"claim {claim.id} was changed since it was judged: {', '.join(verdict.changed)}")
        if claim.notebook not in names:
            problems.append(f"claim {claim.id} was judged by {claim.notebook}, which has no executed copy")
    for claim in claims.load().values():
        if claim.notebook in names and claim.id not in judged:
            problems.append(f"claim {claim.id} was not judged by {claim.notebook}, which was run")
    return problems


def _outdated(staying: list[Experiment]) -> list[str]:
    """Why pages cannot stay: a claim of theirs has another rule by now, or none is published."""
    names, published = (
        {each.name for each in staying},
        {each.claim.id: each.claim for each in claims.kept(paths.reference())},
    )
    today = {claim.id: claim for claim in claims.load().values() if claim.notebook in names}
    of = {claim.id: claim.notebook for claim in [*published.values(), *today.values()] if claim.notebook in names}
    return [
        f"claim {name} has changed since {of[name]} was published; run that notebook"
        for name in sorted(of)
        if name not in published or name not in today or published[name].hash != today[name].hash
    ]


def _keep(stage: Path, target: Path, staying: list[Experiment]) -> None:
    """What stays, to the byte: what no notebook makes, and the pages of notebooks that were not run here."""
    for experiment in staying:
        page = Path(f"{experiment.name}.html")
        data = [page.parent / unescape(link) for link in _data((target / page).read_text(encoding="utf-8"))]
        judged = [v.claim.id for v in claims.kept(target) if v.claim.notebook == experiment.name]
        records = [claims.file_of(name, target).relative_to(target) for name in judged]
        for name in (page, *data, *records):
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(target / name, stage / name)
    for name in BY_HAND:
        if (target / name).is_dir():
            shutil.copytree(target / name, stage / name)
        elif (target / name).exists():
            shutil.copy2(target / name, stage / name)


def _data(page: str) -> list[str]:
    """The files that a page leads to, as it names them."""
    return re.findall(r'class="data" href="([^"]+)"', page)


def _fill(folder: Path, experiments: list[Experiment], verdicts: list[Verdict]) -> None:
    """The pages of what was run here, with their data and verdicts."""
    for experiment in experiments:
        page = render(experiment.executed)
        _write(folder / f"{experiment.name}.html", page)
        for link in _data(page):
            place = Path(experiment.name).parent / unescape(link)
            try:
                text = (paths.reports() / place).read_text(encoding="utf-8")
            except OSError as error:
                raise NotPublished(
                    f"{experiment.name}: its page leads to {place}, which cannot be read; run the notebook again"
                ) from error
            _write(folder / place, text)
    for verdict in verdicts:
        source = claims.file_of(verdict.claim.id, paths.reports())
        # What no rule rests on, explanations among it, may be newer than the run.
        record = json.loads(source.read_text(encoding="utf-8")) | {"claim": dataclasses.asdict(verdict.claim)}
        _write(claims.file_of(verdict.claim.id, folder), json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def _front(folder: Path, experiments: list[Experiment]) -> None:
    """The index of what the folder holds, and the README's picture."""
    from lib.reporting import picture

    note = f" These are the results of the {PROFILE} profile that are kept with the code; a page says of which commit it is."
    data, order = picture.kept(folder), list(claims.load())
    judged = sorted(claims.kept(folder), key=lambda verdict: order.index(verdict.claim.id))
    pages = {each.name for each in experiments}
    index = front(experiments, judged, pages, data, note, facts=lambda _: [f"profile {PROFILE}"])
    _write(folder / "index.html", index)
    if data is not None:
        _write(folder / PICTURE, picture.svg(picture.picture(data)))


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
        Path(tempfile.gettempdir()),
        Path(sys.prefix),
        Path(sys.base_prefix),
    }
    places = [re.escape(str(place)) for place in sorted(here, key=str) if len(place.parts) > 1]
    places += [r"/(?:home|Users)/\w[\w.-]*", r"[A-Z]:\\Users\\\w[\w.-]*"]
    text = re.sub(r"data:image/[^\"')]*", "", text)
    found = re.search(rf"(?<![\w.:/-])(?:{'|'.join(places)})(?![\w-])[^\s\"'<>)]*", text)
    return found[0] if found else None


def readme(folder: Path | None = None) -> str:
    """The README as it should be: with what the reference in `folder` holds, the picture's numbers and the verdicts."""
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
    """The answer in words, and every protocol in a line, with the numbers of the picture's data."""
    from lib.reporting import picture

    data = picture.kept(folder)
    rows = ["| protocol | idea | speed | quality | when |", "|---|---|---|---|---|"]
    rows += [f"| {' | '.join(map(_cell, row))} |" for row in picture.protocols(data)]
    return "\n\n".join([*([" ".join(picture.answer(data))] if data is not None else []), "\n".join(rows)])


def verdicts(folder: Path) -> str:
    """How many of each verdict the folder holds, and what failed, with its reason."""
    found = claims.kept(folder)
    if not found:
        return NONE_YET
    counted = claims.counts(found)
    counts = [
        (KINDS[kind], ", ".join(f"{of[verdict]} {verdict}" for verdict in claims.VERDICTS if of[verdict]))
        for kind, of in counted.items()
    ]
    seen = sum(verdict.claim.standing == "exploratory" for verdict in found)
    parts = ["\n".join(f"- {kind}: {said}" for kind, said in counts if said)]
    if seen:
        parts.append(
            f"{seen} of the papers' claims are exploratory: rule or settings were chosen after a look at what they judge."
        )
    order, titles = notebooks.in_order(), notebooks.named()
    last = len(order)
    missed = sorted(
        (verdict for verdict in found if verdict.counted in MISSED),
        key=lambda v: (
            _whose(v) is None,
            order.get(v.claim.folder, last),
            order.get(v.claim.notebook, last),
            v.claim.notebook,
            v.claim.id,
        ),
    )
    for paper, group in groupby(missed, _whose):
        lines = [f"- {told(v)} **{v.counted}**{f'. {why(v)}' if why(v) else ''}" for v in group]
        title = "What failed of this kit's promises" if paper is None else f"What failed of {titles.get(paper, paper)}"
        parts.append(f"{title}:\n\n" + "\n".join(map(_line, lines)))
    return "\n\n".join(parts)


def _whose(verdict: Verdict) -> str | None:
    """The paper that claims it; None of what this kit claims."""
    return verdict.claim.folder if verdict.claim.kind == "paper" else None


def _line(text: str) -> str:
    return re.sub(r"[ \n\t]+", " ", text).strip().replace("<", "&lt;")


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")
