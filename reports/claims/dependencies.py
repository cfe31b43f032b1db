"""What a verdict rests on (rule, settings, the metrics' code), what of it has changed since, and whether the rule came first.

The metrics' code is the notebook's own, that of the modules beside it and of lib's that turn runs into figures; the code that
makes the runs is in their names (`lib/results/key.py`), and a run is made anew when it changes.
"""

from __future__ import annotations

import ast
import hashlib
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lib import paths
from lib.results import key
from reports.claims.claim import Claim
from reports.claims.loading import file_of, parsed

FIGURES = "notebooks."
"""Where notebooks find what they make figures of runs with."""
ALWAYS = ("lib.results.outcome", "lib.results.outcomes", "lib.tasks.metrics")
"""What makes a run's own summary."""


def of(claim: Claim) -> dict[str, Any]:
    """The parts as they are now."""
    from reports.runner.notebook_parameters import parameters  # notebooks know claims

    path = paths.notebooks() / f"{claim.notebook}.ipynb"
    declared = {name: each.default for name, each in parameters(path).items()} if path.exists() else {}
    return {"rule": claim.hash, "settings": declared, "code": dict(code(path)) if path.exists() else {}}


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, in words; settings and code by name."""
    told = ["the rule"] if before["rule"] != now["rule"] else []
    for part, words in (("settings", "the settings"), ("code", "the metrics' code")):
        names = sorted(name for name in {*before[part], *now[part]} if before[part].get(name) != now[part].get(name))
        told += [f"{words} ({', '.join(names)})"] if names else []
    return told


def flatten(runs: Any) -> list[Any]:
    """One run, a list of runs, or a mapping to either, as a list."""
    if isinstance(runs, Mapping):
        runs = runs.values()
    if hasattr(runs, "provenance"):
        return [runs]
    return [run for item in runs for run in flatten(item)]


def commits(runs: Iterable[Any]) -> list[str]:
    """Of the code that made these runs; a notebook that has none is its own run."""
    from lib.results.provenance import commit

    found = dict.fromkeys(run.provenance.get("commit") for run in runs)
    return [str(each).rstrip("+") for each in found or [commit()] if each]


def written_after(claim: Claim, made_at: Iterable[str]) -> bool | None:
    """Whether a run is of a commit that did not hold the claim's rule yet; None where git cannot say."""
    said = [_said(str(paths.root()), each, file_of(claim)) for each in made_at]
    if not said or None in said:
        return None
    prefix = f"{claim.folder}/" if claim.folder else ""
    known = (parsed(text, prefix).get(claim.id) for text in said if text is not None)
    return any(each is None or each.hash != claim.hash for each in known)


@cache
def _said(root: str, commit: str, path: str) -> str | None:
    """A file as a commit has it, empty where it has none; None where there is no such commit or no git."""
    git = ["git", "-C", root]
    try:
        if subprocess.run(
            [*git, "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True, check=False
        ).returncode:
            return None
        shown = subprocess.run([*git, "show", f"{commit}:./{path}"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return "" if shown.returncode else shown.stdout


def code(path: Path) -> Iterator[tuple[str, str]]:
    """Name -> hash of the notebook's own code and of the modules that its figures are made with; comments do not count."""
    from reports.runner.notebook_files import read, source

    cells = [source(cell) for cell in read(path)["cells"] if cell["cell_type"] == "code"]
    left, met = [("the notebook", "\n".join(cells))], set()
    while left:
        name, text = left.pop()
        yield name, hashlib.sha256(key.bare(text).encode()).hexdigest()[:16]
        for module in {*ALWAYS, *_imported(text)} - met:
            met.add(module)
            place = key.LIB.parent / (module.replace(".", "/") + ".py")
            if (module in ALWAYS or module.startswith(FIGURES)) and place.is_file():
                beside = place.with_suffix(".yaml")
                data = beside.read_text(encoding="utf-8") if beside.exists() else ""
                left.append((module, place.read_text(encoding="utf-8") + f"\n{data!r}"))


def _imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            yield from (node.module, *(f"{node.module}.{each.name}" for each in node.names))
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
