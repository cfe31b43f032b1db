"""Which cut a run goes on from: its own, or that of a run that differs in how many servers, readers or embedding workers it has.

A folder of cuts says of which run they are. Where there is neither, the user hears which is nearest and in what it differs.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib import paths
from lib.results.run import plain

NUMBERS = {"cluster.servers", "reader_nodes", "embedding_workers"}
"""What may differ: what a cut holds is dealt anew."""


def describe(folder: Path, configuration: dict[str, Any], *before: dict[str, Any]) -> list[dict[str, Any]]:
    """Say whose cuts these are, unless it is said; and with which other numbers it was run `before`."""
    about = folder / "run.json"
    if before or not about.exists():
        paths.write_text_atomic(about, json.dumps([configuration, before], default=plain))
    return json.loads(about.read_text())[1]


def find(folder: Path, configuration: dict[str, Any], named: Callable[[dict[str, Any]], str]) -> None:
    """Have a cut in this folder, if there is one to go on from; `named` says how a configuration's folder is called."""
    if _age(folder):
        return
    mine, found = _options(json.loads(json.dumps(configuration, default=plain))), []
    for other in filter(_age, folder.parent.glob("[!.]*")):
        given, before = json.loads((other / "run.json").read_text())
        theirs = _options(given)
        unlike = {name: theirs.get(name) for name in sorted({*mine, *theirs}) if theirs.get(name) != mine.get(name)}
        unlike |= {} if named(given) == other.name else {"the code, or a package,": "another"}
        found.append((len(unlike), -_age(other), other, unlike, before))
    lacking = f"train: resume=True finds no cut of this run in {folder.parent}, and it begins at its start"
    if not found:
        return warnings.warn(f"{lacking}; nor is there one of another run", stacklevel=3)
    *_, other, unlike, before = min(found, key=lambda each: each[:3])
    others = unlike.get("embedding_workers", 0) is None or not mine.keys() >= unlike.keys() & {"embedding_workers"}
    if unlike.keys() <= NUMBERS and not others:  # without embedding workers the servers are other parts
        shutil.rmtree(folder, ignore_errors=True)
        with paths.scratch(folder.parent, "taken") as made:
            copied = shutil.copytree(other, made / "cuts")  # the other run may yet go on from its own
            describe(copied, configuration, *before, unlike)
            return copied.rename(folder)
    told = ", ".join(f"{name} {there!r} there and {mine.get(name)!r} here" for name, there in [*unlike.items()][:5])
    warnings.warn(f"{lacking}; the nearest, {other.name}, has {told}", stacklevel=3)


def _age(folder: Path) -> float:
    """When the newest cut of a folder was written; 0: there is none."""
    whose = (folder / "run.json").exists()
    return max((file.stat().st_mtime for file in folder.glob("*.safetensors") if whose), default=0.0)


def _options(given: Any, name: str = "") -> dict[str, Any]:
    """Each option by its whole name."""
    if not isinstance(given, dict):
        return {name.lstrip("."): given}
    return {whole: value for inner, each in given.items() for whole, value in _options(each, f"{name}.{inner}").items()}
