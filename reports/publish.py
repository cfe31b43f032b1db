"""Publishes results: `reports/reference/` from the reports folder at the laptop profile, and README's generated parts.

The reference has a page for every notebook, the numbers behind its figures, a file for every verdict, and an index. Notebooks
that were run here replace what was published of them. Pages of other notebooks stay, with their data and commit, so that a
paper can be published alone. All verdicts are judged by today's rules from what is stored of the runs, and a page says where
its rules are younger than its run. Everything is put in place or nothing, and equal reports give equal bytes. No other module
here knows a notebook's code: this one imports `notebooks/compare_figure.py`, for the front page.

    python -m reports.publish
    LOCKSTEP_REPORTS=$(mktemp -d) python -m reports.publish   # every page again from what is stored, whatever was run here
"""

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from lib import paths
from lib.command_line import run_command
from lib.errors import LockstepError
from lib.protocols import ALL
from notebooks import compare_figure
from reports import claims, markdown_pages, runner, timelines
from reports.claims import Verdict
from reports.index import FRONT, PROTOCOLS, front, sheets
from reports.page import LARGEST, data_links, framed, render, with_verdicts, with_words
from reports.readme import readme, with_card
from reports.runner import Experiment

PROFILE = "laptop"
BY_HAND = ("soak.json", "gpu", "paper_size.csv", "pilots", "real", "sealed")
"""Files of the reference that no notebook makes."""
WAITS = "it waits for a run of its page"


class NotPublished(LockstepError, ValueError):
    """The reports cannot be published; the reference and README are unchanged."""


def publish() -> Path:
    """Replace the reference and README's generated parts, and return the path of the reference's index."""
    known, target = runner.experiments(), paths.reference()
    run = [each for each in known if each.executed.exists()]
    shown = [each for each in known if each in run or (target / f"{each.name}.html").exists()]
    names = {each.name for each in shown}
    make = f"`make reproduce PROFILE={PROFILE}`"
    fresh = [each for each in claims.verdicts() if each.claim.notebook in {experiment.name for experiment in run}]
    if problems := "\n".join(_unfit(run, fresh)):
        raise NotPublished(f"the reports are not those of the {PROFILE} profile; {make} makes them:\n{problems}")
    if not shown:
        raise NotPublished(f"nothing has been run; {make} makes what is published")
    paths.check_writable(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".reference-", ignore_cleanup_errors=True) as place:
        stage = Path(place)
        for claim in claims.load().values():
            folder = paths.reports() if claim.id in {each.claim.id for each in fresh} else target
            if (record := claims.verdict_file(claim.id, folder)).exists():
                _write(stage / "claims" / record.name, record.read_text(encoding="utf-8"))
        for path in (target / name for name in BY_HAND if (target / name).exists()):
            (shutil.copytree if path.is_dir() else shutil.copy2)(path, stage / path.name)
        verdicts = claims.verdicts(stage, WAITS)
        for experiment in shown:
            name, source = experiment.name, paths.reports() if experiment in run else target
            stored = source / f"{name}.html"
            page = render(experiment.executed) if experiment in run else stored.read_text(encoding="utf-8")
            mine = [each for each in verdicts if each.claim.notebook == name]
            page = framed(with_words(with_verdicts(page, mine, PROFILE), name, mine), name, names)
            _write(stage / f"{name}.html", page)
            for link in data_links(page):
                _copy_data(experiment, link, source, stage)
        _write_front(stage, shown)
        if (card := stage / "gpu" / "README.md").exists():
            _write(card, with_card(card.read_text(encoding="utf-8"), stage))
        text = readme(stage, verdicts)
        stage.chmod(0o755)  # a temporary folder's 0700 would hide it
        paths.replace_folder(stage, target)
    paths.write_text_atomic(paths.root() / "README.md", text)
    return target / "index.html"


def _unfit(run: list[Experiment], verdicts: list[Verdict]) -> Iterator[str]:
    """Why pages that were run, and their verdicts, cannot be published."""
    for experiment in run:
        facts, notebook = runner.run_facts(experiment), f"notebook {experiment.name}"
        if (profile := facts.get("profile")) != PROFILE:
            yield f"{notebook} was run at the profile {profile or '(none)'}"
        if parameters := facts.get("parameters"):
            values = ", ".join(f"{name}={value}" for name, value in parameters.items())
            yield f"{notebook} was run with parameters of its own: {values}"
        if experiment.failed.exists():
            yield f"{notebook} failed when it was last run"
    for verdict in verdicts:
        claim = verdict.claim
        if verdict.word == "not run":
            yield f"claim {claim.id} was not judged by {claim.notebook}, which was run"
        if verdict.changed:
            yield f"claim {claim.id} was changed since it was judged: {', '.join(verdict.changed)}"


def _copy_data(experiment: Experiment, link: str, source: Path, stage: Path) -> None:
    """Copy the numbers that a page links to."""
    place = Path(experiment.name).parent / link
    try:
        text = (source / place).read_text(encoding="utf-8")
    except OSError as error:
        problem = f"{experiment.name}: its page leads to {place}, which cannot be read; run the notebook again"
        raise NotPublished(problem) from error
    _write(stage / place, text)


def _write_front(folder: Path, experiments: list[Experiment]) -> None:
    """Write the front page's figure and sentences, and the index of what the folder has."""
    note = f" These results are of the profile {PROFILE}; each page names the commit of its runs' code."
    data, conditions = compare_figure.read(folder), compare_figure.read_conditions(folder)
    pages = {each.name: (folder / f"{each.name}.html").read_text(encoding="utf-8") for each in experiments}
    if data is not None:
        _write(folder / f"{FRONT}.svg", compare_figure.svg(compare_figure.figure(data)))
        _write_json(folder / f"{FRONT}.json", compare_figure.front(data, conditions, compare_figure.fidelity(folder)))
    if conditions is not None:
        _write_json(folder / f"{PROTOCOLS}.json", timelines.record() | {"used": _used(pages)})
    verdicts, shown = claims.verdicts(folder, WAITS), front(folder)
    texts = sheets(experiments, verdicts, folder, shown, lambda _: [f"profile {PROFILE}"], note)
    links = {name: data_links(html) for name, html in pages.items()}
    for name, text in (texts | markdown_pages.pages(experiments, verdicts, shown, links)).items():
        _write(folder / name, text)


def _used(pages: Mapping[str, str]) -> dict[str, list[str]]:
    """Protocol -> the pages whose tables of digests name it."""
    used: dict[str, list[str]] = {}
    for page, html in sorted(pages.items()):
        for name in sorted({*re.findall(r'data-label="Run">([\w+-]+)<', html)} & {*ALL}):
            used.setdefault(name, []).append(page)
    return used


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    """Write a mapping, a line for each key."""
    lines = (f"{json.dumps(key)}: {json.dumps(each, ensure_ascii=False)}" for key, each in value.items())
    _write(path, "{{\n{}\n}}\n".format(",\n".join(lines)))


def _write(path: Path, text: str) -> None:
    """Write a file for publication: small enough, and without a path of this machine."""
    size, most = len(text.encode()), 2 * LARGEST if path.suffix == ".csv" else LARGEST
    if size >= most:
        most_text = f"{most / 1e6:.0f} is the most; draw fewer or smaller figures"
        raise NotPublished(f"{path.name} has {size / 1e6:.1f} MB, {most_text}")
    if found := machine_path(text):
        advice = "change the cell that shows it (a warning's text, a parameter) and run the notebook again"
        raise NotPublished(f"{path.name} names a path of this machine, {found}; {advice}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


def machine_path(text: str) -> str | None:
    """The first path of this machine, or of a home folder, in a text without its pictures."""
    known = (tempfile.gettempdir(), sys.prefix, sys.base_prefix)
    folders = {paths.root(), paths.reports(), Path.home(), *map(Path, known)}
    places = [re.escape(str(place)) for place in sorted(folders, key=str) if len(place.parts) > 1]
    places += [r"/(?:home|Users)/\w[\w.-]*", r"[A-Z]:\\Users\\\w[\w.-]*"]
    text = re.sub(r"data:image/[^\"')]*", "", text)
    found = re.search(rf"(?<![\w.:/-])(?:{'|'.join(places)})(?![\w-])[^\s\"'<>)]*", text)
    return found[0] if found else None


if __name__ == "__main__":
    sys.exit(run_command(argparse.Namespace(command=lambda _: print(publish()))))
