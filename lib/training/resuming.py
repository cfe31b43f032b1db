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
from lib.results.key import unlike
from lib.results.run import plain

NUMBERS = {"cluster.servers", "reader_nodes", "embedding_workers"}
"""What may differ: what a cut holds is dealt anew."""
CODE = {"the code, or a package,": ("another", "this")}


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
    found = []
    for other in filter(_age, folder.parent.glob("[!.]*")):
        theirs, before = json.loads((other / "run.json").read_text())
        differ = unlike(theirs, configuration) | ({} if named(theirs) == other.name else CODE)
        found.append((len(differ), -_age(other), other, differ, before))
    lacking = f"train: resume=True finds no cut of this run in {folder.parent}, and it begins at its start"
    if not found:
        return warnings.warn(f"{lacking}; nor is there one of another run", stacklevel=3)
    *_, other, differ, before = min(found, key=lambda each: each[:3])
    # Without embedding workers there are other parts.
    if differ.keys() <= NUMBERS and None not in differ.get("embedding_workers", ()):
        shutil.rmtree(folder, ignore_errors=True)
        with paths.scratch(folder.parent, "taken") as made:
            copied = shutil.copytree(other, made / "cuts")  # the other run may yet go on from its own
            describe(copied, configuration, *before, {name: there for name, (there, _) in differ.items()})
            return copied.rename(folder)
    told = ", ".join(f"{name} {there!r} there and {here!r} here" for name, (there, here) in [*differ.items()][:5])
    warnings.warn(f"{lacking}; the nearest, {other.name}, has {told}", stacklevel=3)


def _age(folder: Path) -> float:
    """When the newest cut of a folder was written; 0: there is none."""
    whose = (folder / "run.json").exists()
    return max((file.stat().st_mtime for file in folder.glob("*.safetensors") if whose), default=0.0)
