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
from collections.abc import Iterable, Iterator, Mapping
from html import unescape
from pathlib import Path

from lib import paths
from lib.command_line import run_command
from lib.errors import LockstepError
from lib.protocols import ALL
from notebooks import compare_figure
from reports import claims, markdown_pages, runner, timelines
from reports.claims import Verdict
from reports.index import FRONT, PROTOCOLS, front, sheets
from reports.page import LARGEST, framed, render, with_verdicts, with_words
from reports.readme import readme, with_card
from reports.runner import Experiment
from reports.thumbnails import thumbnails

PROFILE = "laptop"
BY_HAND = ("soak.json", "gpu", "real", "sealed", "pilots")
"""Files of the reference that no notebook makes."""
WAITS = "it waits for a run of its page"


class NotPublished(LockstepError, ValueError):
    """The reports cannot be published; the reference and README are unchanged."""


def publish() -> Path:
    """Replace the reference and README's generated parts, and return the path of the reference's index."""
    known, target = runner.experiments(), paths.reference()
    run = [experiment for experiment in known if experiment.executed.exists()]
    others = [each for each in known if each not in run and (target / f"{each.name}.html").exists()]
    shown = [each for each in known if each in run or each in others]
    judged = [each for each in claims.verdicts() if each.claim.notebook in {experiment.name for experiment in run}]
    make = f"`make reproduce PROFILE={PROFILE}`"
    if problems := [*_unfit_notebooks(run), *_unfit_verdicts(judged)]:
        lines = "\n".join(problems)
        raise NotPublished(f"the reports are not those of the {PROFILE} profile; {make} makes them:\n{lines}")
    if not shown:
        raise NotPublished(f"nothing has been run; {make} makes what is published")
    paths.check_writable(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".reference-", ignore_cleanup_errors=True) as place:
        stage = Path(place)
        fresh = {verdict.claim.id for verdict in judged}
        for claim in claims.load().values():
            _copy_record(claims.verdict_file(claim.id, paths.reports() if claim.id in fresh else target), stage)
        _copy_by_hand(stage, target)
        verdicts = claims.verdicts(stage, WAITS)
        for experiment in shown:
            source = paths.reports() if experiment in run else target
            page = (target / f"{experiment.name}.html").read_text(encoding="utf-8") if experiment in others else ""
            mine = [each for each in verdicts if each.claim.notebook == experiment.name]
            page = with_verdicts(page or render(experiment.executed), mine, PROFILE)
            page = with_words(page, experiment.name, mine)
            _write_page(stage, experiment, page, source)
        names = {each.name for each in shown}
        for name in names:
            page = stage / f"{name}.html"
            _write(page, framed(page.read_text(encoding="utf-8"), name, names))
        _write_front(stage, shown)
        if (card := stage / "gpu" / "README.md").exists():
            _write(card, with_card(card.read_text(encoding="utf-8"), stage))
        text = readme(stage, claims.verdicts(stage, WAITS))
        stage.chmod(0o755)  # a temporary folder's 0700 would hide it
        paths.replace_folder(stage, target)
    paths.write_text_atomic(paths.root() / "README.md", text)
    return target / "index.html"


def _unfit_notebooks(experiments: list[Experiment]) -> Iterator[str]:
    """Why pages cannot be published."""
    for experiment in experiments:
        facts = runner.run_facts(experiment)
        if (profile := facts.get("profile")) != PROFILE:
            yield f"notebook {experiment.name} was run at the profile {profile or '(none)'}"
        if parameters := facts.get("parameters"):
            values = ", ".join(f"{name}={value}" for name, value in parameters.items())
            yield f"notebook {experiment.name} was run with parameters of its own: {values}"
        if experiment.failed.exists():
            yield f"notebook {experiment.name} failed when it was last run"


def _unfit_verdicts(verdicts: list[Verdict]) -> Iterator[str]:
    """Why verdicts of notebooks that were run cannot be published."""
    for verdict in verdicts:
        claim = verdict.claim
        if verdict.word == "not run":
            yield f"claim {claim.id} was not judged by {claim.notebook}, which was run"
        if verdict.changed:
            yield f"claim {claim.id} was changed since it was judged: {', '.join(verdict.changed)}"


def _copy_record(record: Path, stage: Path) -> None:
    if record.exists():
        _write(stage / "claims" / record.name, record.read_text(encoding="utf-8"))


def _copy_by_hand(stage: Path, target: Path) -> None:
    for name in BY_HAND:
        if (target / name).is_dir():
            shutil.copytree(target / name, stage / name)
        elif (target / name).exists():
            shutil.copy2(target / name, stage / name)


def _write_page(stage: Path, experiment: Experiment, page: str, source: Path) -> None:
    """Write a page, and the data that it links to from the folder `source`."""
    _write(stage / f"{experiment.name}.html", page)
    for link in _data(page):
        place = Path(experiment.name).parent / link
        try:
            text = (source / place).read_text(encoding="utf-8")
        except OSError as error:
            problem = f"{experiment.name}: its page leads to {place}, which cannot be read; run the notebook again"
            raise NotPublished(problem) from error
        _write(stage / place, text)


def _data(page: str) -> list[str]:
    """The addresses of a page's numbers."""
    return [unescape(link) for link in re.findall(r'class="data" href="([^"]+)"', page)]


def _write_front(folder: Path, experiments: list[Experiment]) -> None:
    """Write the front page's figure and sentences, and the index of what the folder has."""
    note = f" These results are of the profile {PROFILE}; each page names the commit of its runs' code."
    data, conditions = compare_figure.read(folder), compare_figure.read_conditions(folder)
    pages = {each.name for each in experiments}
    if data is not None:
        _write(folder / f"{FRONT}.svg", compare_figure.svg(compare_figure.figure(data)))
        _write_json(folder / f"{FRONT}.json", compare_figure.front(data, conditions, compare_figure.fidelity(folder)))
    if conditions is not None:
        _write_json(folder / f"{PROTOCOLS}.json", timelines.record() | {"used": _used(folder, pages)})
    verdicts = claims.verdicts(folder, WAITS)
    shown = front(folder) | {"small": thumbnails({name: folder / f"{name}.html" for name in pages})}
    texts = sheets(experiments, verdicts, pages, shown, lambda _: [f"profile {PROFILE}"], note)
    data = {name: _data((folder / f"{name}.html").read_text(encoding="utf-8")) for name in pages}
    for name, text in (texts | markdown_pages.pages(experiments, verdicts, shown, data)).items():
        _write(folder / name, text)


def _used(folder: Path, pages: Iterable[str]) -> dict[str, list[str]]:
    """Protocol -> the pages whose tables of digests name it."""
    used: dict[str, list[str]] = {}
    for page in sorted(pages):
        html = (folder / f"{page}.html").read_text(encoding="utf-8")
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
        raise NotPublished(
            f"{path.name} names a path of this machine, {found}; change the cell that shows it (a warning's text, a "
            "parameter) and run the notebook again"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


def machine_path(text: str) -> str | None:
    """The first path of this machine, or of a home folder, in a text without its pictures."""
    folders = [
        paths.root(),
        paths.reports(),
        Path.home(),
        *map(Path, (tempfile.gettempdir(), sys.prefix, sys.base_prefix)),
    ]
    places = [re.escape(str(place)) for place in sorted(set(folders), key=str) if len(place.parts) > 1]
    places += [r"/(?:home|Users)/\w[\w.-]*", r"[A-Z]:\\Users\\\w[\w.-]*"]
    text = re.sub(r"data:image/[^\"')]*", "", text)
    found = re.search(rf"(?<![\w.:/-])(?:{'|'.join(places)})(?![\w-])[^\s\"'<>)]*", text)
    return found[0] if found else None


if __name__ == "__main__":
    sys.exit(run_command(argparse.Namespace(command=lambda _: print(publish()))))
