"""Which notebooks there are, and what each says of itself, without running it."""

import dataclasses
import json
import os
import re
from collections.abc import Container, Mapping
from pathlib import Path

from lib import paths
from lib.errors import LockstepError, UnknownName, unknown
from reports.runner.papers import papers

SKELETON = "skeletons/page"
"""The notebook that is there to be copied."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A notebook, known without running it."""

    name: str
    """`00_quickstart`, `gba/figure_6_switching`."""
    path: Path
    title: str
    alone: bool
    """Whether it measures this machine, so that nothing else may run: the notebook's metadata say it."""

    @property
    def paper(self) -> str:
        """The paper's folder; empty for a notebook of no one paper."""
        return self.name.rpartition("/")[0]

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
    order = [""]
    for paper in papers():
        order += [paper.folder, *(f"{paper.folder}/{page}" for page in paper.pages)]

    def place(each: Experiment) -> list[tuple[int, str]]:
        return [(order.index(name) if name in order else len(order), name) for name in (each.paper, each.name)]

    found = map(_experiment, {*folder.glob("[!.]*.ipynb"), *folder.glob("[!.]*/[!.]*.ipynb")})
    return sorted((each for each in found if each.name != SKELETON), key=place)


def neighbours(name: str, shown: Container[str] | None = None) -> dict[str, Experiment]:
    """The pages `previous` and `next` to one, among the `shown` ones or, by default, those that have been run."""
    pages = [
        each for each in experiments() if each.name == name or (each.name in shown if shown else each.executed.exists())
    ]
    names = [each.name for each in pages]
    if name not in names:
        return {}
    place = names.index(name)
    found = {"previous": pages[place - 1 : place], "next": pages[place + 1 : place + 2]}
    return {side: each[0] for side, each in found.items() if each}


def _experiment(path: Path) -> Experiment:
    nb, name = read(path), path.relative_to(paths.notebooks()).with_suffix("").as_posix()
    return Experiment(name=name, path=path, title=title(nb) or name, alone=bool(nb["metadata"].get("alone")))


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
    chosen = [each for each in known if each.name == name] or [each for each in known if each.paper == name != ""]
    chosen = chosen or [each for each in known if each.name.rpartition("/")[2] == name]
    if not chosen:
        raise unknown("experiment", name, {"all"}.union(*({each.name, each.paper} for each in known)) - {""})
    if len({each.paper for each in chosen}) > 1:
        raise UnknownName(f"experiment {name!r} is ambiguous: {', '.join(each.name for each in chosen)}")
    return chosen


def read(path: str | os.PathLike) -> dict:
    """Load a notebook's JSON, or raise an error that says what is wrong with the file."""
    try:
        nb = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LockstepError(f"{path}: cannot be read as a notebook: {error}") from error
    if not isinstance(nb, dict) or not isinstance(nb.get("cells"), list) or nb.get("nbformat", 0) < 4:
        raise LockstepError(f"{path}: not a notebook of format 4; open and save it in Jupyter")
    return nb


def source(cell: Mapping) -> str:
    """A cell's text."""
    text = cell.get("source", "")
    return text if isinstance(text, str) else "".join(text)
