"""Which notebooks there are, and what each says of itself, without running it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Container, Mapping
from pathlib import Path

from lib import paths
from lib.errors import LockstepError, UnknownName, unknown
from reports.runner.papers import papers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A notebook, known without running it."""

    name: str
    """`00_quickstart`, `gba/figure_6_switching`."""
    path: Path
    paper: str
    """The folder's name, empty for a notebook of no one paper."""
    title: str
    alone: bool
    """It measures this machine, and nothing else may be under way: the notebook's metadata say so."""

    @property
    def executed(self) -> Path:
        return paths.reports() / f"{self.name}.ipynb"

    @property
    def page(self) -> Path:
        return paths.reports() / f"{self.name}.html"

    @property
    def failed(self) -> Path:
        return paths.reports() / f"{self.name}.failed.ipynb"


def experiments() -> list[Experiment]:
    """Every notebook of the repository: those of no one paper, then paper by paper, in the papers' own order."""
    folder = paths.notebooks()
    order = ["", *(name for paper in papers() for name in (paper.folder, *paper.names))]

    def place(each: Experiment) -> list[tuple[int, str]]:
        return [(order.index(name) if name in order else len(order), name) for name in (each.paper, each.name)]

    found = {*folder.glob("[!.]*.ipynb"), *folder.glob("[!.]*/[!.]*.ipynb")}
    return sorted(
        map(_experiment, found - {folder / "skeletons" / "page.ipynb"}), key=place
    )  # that one is to be copied


def around(name: str, shown: Container[str] | None = None) -> dict[str, Experiment]:
    """The pages before and after one, if there are any: of those that are `shown`, or else of those that have been run."""
    there = [
        each for each in experiments() if each.name == name or (each.name in shown if shown else each.executed.exists())
    ]
    known = [None, *there, None]
    place = next((place for place, each in enumerate(known) if each and each.name == name), None)
    near = {"previous": known[place - 1], "next": known[place + 1]} if place else {}
    return {where: each for where, each in near.items() if each}


def _experiment(path: Path) -> Experiment:
    nb, name = read(path), path.relative_to(paths.notebooks()).with_suffix("").as_posix()
    paper, alone = name.rpartition("/")[0], bool(nb["metadata"].get("alone"))
    return Experiment(name=name, path=path, paper=paper, title=title(nb) or name, alone=alone)


def title(nb: Mapping) -> str:
    """A notebook's first heading; empty where it has none."""
    text = "\n".join(source(cell) for cell in nb["cells"] if cell["cell_type"] == "markdown")
    found = re.search(r"^#\s+(.+?)\s*#*$", text, re.MULTILINE)
    return found[1] if found else ""


def resolve(name: str) -> list[Experiment]:
    """The notebooks that a name stands for: one by its name, a paper's, or `all`."""
    known = experiments()
    name = name.removesuffix(".ipynb").removeprefix("notebooks/")
    if name == "all":
        return known
    chosen = [e for e in known if e.name == name] or [e for e in known if e.paper and e.paper == name]
    chosen = chosen or [e for e in known if e.name.rpartition("/")[2] == name]
    if not chosen:
        raise unknown("experiment", name, {"all", *(e.name for e in known), *(e.paper for e in known if e.paper)})
    if len({e.paper for e in chosen}) > 1:
        raise UnknownName(f"experiment {name!r} is ambiguous: {', '.join(e.name for e in chosen)}")
    return chosen


def read(path: str | os.PathLike) -> dict:
    """A notebook's JSON, or an error that says what is wrong with the file."""
    try:
        nb = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LockstepError(f"{path}: cannot be read as a notebook: {error}") from error
    if not isinstance(nb, dict) or not isinstance(nb.get("cells"), list) or nb.get("nbformat", 0) < 4:
        raise LockstepError(f"{path}: not a notebook of format 4; open and save it in Jupyter")
    return nb


def source(cell: Mapping) -> str:
    text = cell.get("source", "")
    return text if isinstance(text, str) else "".join(text)
