"""What a verdict rests on: rule, settings and the metrics' code; what of it has changed, and whether the rule came first.

The metrics' code is the notebook's own, that of modules of `notebooks`, and that of lib's modules that turn a run into figures.
The code that makes a run is part of the run's name (`lib/results/key.py`): a change there makes the run anew.
"""

import ast
import hashlib
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lib import paths
from lib.results import key
from reports.claims.claim import Claim
from reports.claims.loading import claims_file, parsed

ALWAYS = ("lib.results.outcome", "lib.tasks.metrics")
"""The modules that make a run's own summary."""


def parts_of(claim: Claim) -> dict[str, Any]:
    """What a verdict on the claim rests on today."""
    from reports.runner.notebook_parameters import parameters  # whose package imports this one

    path = paths.notebooks() / f"{claim.notebook}.ipynb"
    if not path.exists():
        return {"rule": claim.hash, "settings": {}, "code": {}}
    settings = {name: each.default for name, each in parameters(path).items()}
    return {"rule": claim.hash, "settings": settings, "code": metrics_code(path)}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two states, in words; settings and code by name."""
    found = ["the rule"] if before["rule"] != now["rule"] else []
    for part, words in (("settings", "the settings"), ("code", "the metrics' code")):
        names = sorted(name for name in {*before[part], *now[part]} if before[part].get(name) != now[part].get(name))
        found += [f"{words} ({', '.join(names)})"] if names else []
    return found


def flatten(runs: Any) -> list[Any]:
    """One run, a list of runs, or a mapping to either, as a list."""
    if hasattr(runs, "provenance"):
        return [runs]
    return [run for item in (runs.values() if isinstance(runs, Mapping) else runs) for run in flatten(item)]


def commits(runs: Iterable[Any]) -> list[str]:
    """The commits of the code that made these runs; without runs, the present one."""
    from lib.results.provenance import commit

    found = dict.fromkeys(run.provenance.get("commit") for run in runs)
    return [str(each).rstrip("+") for each in found or [commit()] if each]


def rule_came_later(claim: Claim, made_at: Iterable[str]) -> bool | None:
    """Whether one of the runs' commits does not hold the claim's rule yet; None where git cannot say."""
    texts = [_file_at(str(paths.root()), each, claims_file(claim)) for each in made_at]
    if not texts or None in texts:
        return None
    prefix = f"{claim.folder}/" if claim.folder else ""
    rules = (parsed(text, prefix).get(claim.id) for text in texts if text is not None)
    return any(rule is None or rule.hash != claim.hash for rule in rules)


@cache
def _file_at(root: str, commit: str, path: str) -> str | None:
    """A file's text at a commit, empty where it has none; None where there is no such commit or no git."""
    if git(root, "cat-file", "-e", f"{commit}^{{commit}}") is None:
        return None
    return git(root, "show", f"{commit}:./{path}") or ""


def git(folder: str | Path, *words: str) -> str | None:
    """What a command of git prints in a folder; None where it fails, or without git."""
    try:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def metrics_code(path: Path) -> dict[str, str]:
    """Name -> hash of a notebook's code and of each module that makes figures for it, without comments."""
    from reports.runner.notebook_files import read, source

    cells = [source(cell) for cell in read(path)["cells"] if cell["cell_type"] == "code"]
    left, found = {"the notebook": "\n".join(cells)}, {}
    while left:
        name, text = left.popitem()
        found[name], imported = _hash_and_imports(text)
        for module in {*ALWAYS, *(each for each in imported if each.startswith("notebooks."))} - found.keys():
            place = key.LIB.parent / (module.replace(".", "/") + ".py")
            if place.is_file():
                beside = place.with_suffix(".yaml")
                data = beside.read_text(encoding="utf-8") if beside.exists() else ""
                left[module] = place.read_text(encoding="utf-8") + f"\n{data!r}"
    return dict(sorted(found.items()))


@cache
def _hash_and_imports(text: str) -> tuple[str, frozenset[str]]:
    """A hash of a text's code, and the modules that it imports with every name that it takes from one, which may be a module
    too. Kept, since hundreds of claims rest on the same modules."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            imported |= {str(node.module), *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            imported |= {each.name for each in node.names}
    return hashlib.sha256(key.syntax_without_docs(text).encode()).hexdigest()[:16], frozenset(imported)
