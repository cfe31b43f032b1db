"""Which notebooks there are, and what each says of itself, without running it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from lib import paths
from lib.errors import LockstepError, UnknownName, unknown
from lib.reporting.notebooks.papers import in_order


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
    folder, order = paths.notebooks(), in_order()
    found = {*folder.glob("*.ipynb"), *folder.glob("*/*.ipynb")} - {folder / "skeletons" / "page.ipynb"}  # to be copied
    known = [_experiment(path) for path in found if not path.name.startswith(".") and path.parent.name[0] != "."]
    last = len(order)
    return sorted(
        known, key=lambda e: (order.get(e.paper, last) if e.paper else -1, e.paper, order.get(e.name, last), e.name)
    )


def around(name: str) -> dict[str, Experiment]:
    """The pages before and after one, if there are any: those that have been run."""
    known = [each for each in experiments() if each.name == name or each.executed.exists()]
    names = [None, *(each.name for each in known), None]
    place = names.index(name) if name in names else 0
    near = {"previous": names[place - 1], "next": names[place + 1]} if place else {}
    return {where: each for where, other in near.items() for each in known if each.name == other}


def _experiment(path: Path) -> Experiment:
    nb = read(path)
    name = path.relative_to(paths.notebooks()).with_suffix("").as_posix()
    text = "\n".join(source(cell) for cell in nb["cells"] if cell["cell_type"] == "markdown")
    title = re.search(r"^#\s+(.+?)\s*#*$", text, re.MULTILINE)
    return Experiment(
        name=name,
        path=path,
        paper=name.rpartition("/")[0],
        title=title[1] if title else name,
        alone=bool(nb["metadata"].get("alone")),
    )


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
