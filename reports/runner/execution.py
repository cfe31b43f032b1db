"""Executes notebooks by papermill, which is imported where it is used, as Jupyter is."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from lib import paths
from lib.errors import BadOption, LockstepError, unknown
from lib.progress import Progress
from lib.results.key import LIB
from lib.seeds import drawn
from lib.workloads import PROFILES
from reports import claims
from reports.claims import dependencies as basis
from reports.runner.notebook_files import Experiment, read, resolve, source
from reports.runner.notebook_parameters import check_parameters, command

KERNEL = "python3"
CLAIMS = ("claims.yaml", "calibrations.yaml")
"""What judges results, and makes none."""


class NotebookFailed(LockstepError, RuntimeError):
    """A notebook's cell raised, or a kernel died."""


def run(name: str, profile: str = "smoke", parameters: Mapping[str, Any] | None = None, resume: bool = False) -> Path:
    """Execute one notebook; the path of the executed one. Nothing half-written is left, whatever happens.

    With `resume` a notebook that is `complete` is left as it is.
    """
    chosen = resolve(name)
    if len(chosen) != 1:
        raise BadOption(f"{name!r} stands for {len(chosen)} notebooks; `reports.index.build` runs them")
    experiment = chosen[0]
    values = _values(experiment, profile, parameters)
    if resume and complete(experiment, profile, parameters):
        print(f"{experiment.name}: complete, left as it is", file=sys.stderr)
        return experiment.executed
    from lib.results.provenance import machine

    paths.check_writable(experiment.executed.parent)
    made_of = fingerprint(experiment, values)
    extra = {key: value for key, value in values.items() if key != "profile"}
    told, reports = command(experiment.name, profile, extra), paths.check_writable(paths.reports())
    with (
        paths.scratch(reports, "stage") as stage,
        _environment(experiment, {paths.STAGE: str(stage), paths.COMMAND: told}),
    ):
        started = time.time()
        nb = _execute(experiment, values, stage)
        nb.metadata["lockstep"] = {
            "name": experiment.name,
            "profile": profile,
            "parameters": extra,
            "command": told,
            "seconds": round(time.time() - started, 1),
            "fingerprint": made_of,
            "machine": machine(),
        }
        return _publish(experiment, nb, stage)


def complete(experiment: Experiment, profile: str, parameters: Mapping[str, Any] | None = None) -> bool:
    """Whether the reports folder holds what running the notebook now would be run for: its last run succeeded, with this
    profile and these parameters, and neither the notebook nor its claims nor lib has changed since."""
    values = _values(experiment, profile, parameters)
    if experiment.failed.exists() or not experiment.executed.exists():
        return False
    try:
        kept = facts(experiment)
        judged = all(claims.stored(claim).verdict != "not run" for claim in claims.of(experiment.name))
    except LockstepError:  # what cannot be read is made anew
        return False
    return judged and kept.get("fingerprint") == fingerprint(experiment, values)


def facts(experiment: Experiment) -> dict[str, Any]:
    """What the runner noted of a notebook's last successful run: profile, parameters, command, seconds, machine."""
    return read(experiment.executed)["metadata"].get("lockstep", {})


def fingerprint(experiment: Experiment, values: Mapping[str, Any]) -> str:
    """A hash of what a notebook's results follow from: its cells, lib, the modules that it imports from beside it and the data
    that lie there. How they are shown does not count."""
    beside = experiment.path.parent.glob("*.yaml") if experiment.paper else ()
    parts = {
        "cells": [(cell["cell_type"], source(cell)) for cell in read(experiment.path)["cells"]],
        "lib": hash_of_lib(),
        "beside": dict(basis.code(experiment.path)),
        "data": [path.read_text(encoding="utf-8") for path in sorted(beside) if path.name not in CLAIMS],
        "claims": [claim.hash for claim in claims.of(experiment.name)],
        "parameters": dict(values),
        "sealed": [*drawn()[:1]],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def hash_of_lib() -> str:
    """A hash of every module and data file of lib, as they were when this process first asked."""
    digest = hashlib.sha256()
    for path in sorted(each for each in LIB.rglob("*") if each.suffix in (".py", ".yaml")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _values(experiment: Experiment, profile: str, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """All the values that are to be injected, checked."""
    if profile not in PROFILES:
        raise unknown("profile", profile, PROFILES)
    given = dict(parameters or {})
    if given.setdefault("profile", profile) != profile:
        raise BadOption(f"profile {profile!r} and parameter profile={given['profile']!r} differ; give one of them")
    return check_parameters(experiment, given)


@contextmanager
def _environment(experiment: Experiment, values: Mapping[str, str]) -> Iterator[None]:
    """What the kernel inherits: the same folders, the same `lib`, installed or not, and what lies beside the notebook."""
    before = dict(os.environ)
    os.environ.update(values, **paths.environment())
    os.environ["PYTHONPATH"] += f"{os.pathsep}{experiment.path.parent}"
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _execute(experiment: Experiment, values: dict[str, Any], stage: Path) -> Any:
    """The executed notebook. An interrupt shuts the kernel down (nbclient) and goes on to the caller."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    cells = [i for i, cell in enumerate(read(experiment.path)["cells"]) if cell["cell_type"] == "code"]
    output = stage / "notebook.ipynb"
    with Progress(len(cells), experiment.name, "cells") as progress:

        def executed(cell: Any, **_: Any) -> None:
            progress.advance("injected-parameters" not in cell.metadata.get("tags", []))

        try:
            nb = papermill.execute_notebook(
                str(experiment.path),
                str(output),
                parameters=values,
                kernel_name=KERNEL,
                language="python",
                progress_bar=False,
                on_cell_executed=executed,
                cwd=os.getcwd(),  # so that a path among its parameters is what it is where the command is given
                # Critical alone: it calls the interrupt that ends every kernel an error, and cells' errors come as answers.
                extra_arguments=["--IPKernelApp.log_level=50"],
            )
        except (papermill.PapermillExecutionError, DeadKernelError, CellTimeoutError) as error:
            kept = paths.write_bytes_atomic(experiment.failed, output.read_bytes()) if output.exists() else "nothing"
            what = f": the kernel died (out of memory?): {error}"
            if isinstance(error, papermill.PapermillExecutionError):
                what = f", cell {_number(experiment.path, error.source)}: {error.ename}: {error.evalue}"
            raise NotebookFailed(f"notebook {experiment.name}{what}\n  as far as it came: {kept}") from error
    for key in ("input_path", "output_path"):
        nb.metadata.papermill[key] = experiment.name
    return nb


def _number(path: Path, text: str) -> str:
    """The failing cell's number in the notebook as its author sees it, counting every cell from 1."""
    for number, cell in enumerate(read(path)["cells"], 1):
        if source(cell).strip() == text.strip():
            return str(number)
    return "with the injected parameters"


def _publish(experiment: Experiment, nb: Any, stage: Path) -> Path:
    """Put figures, verdicts and, last, the notebook in their places."""
    import nbformat

    figures = stage / experiment.name
    if figures.is_dir():
        paths.replace_folder(figures, paths.reports() / experiment.name)
    for verdict in sorted((stage / "claims").glob("*.json")):
        target = paths.reports() / "claims" / verdict.name
        target.parent.mkdir(exist_ok=True)
        os.replace(verdict, target)
    experiment.failed.unlink(missing_ok=True)
    return paths.write_text_atomic(experiment.executed, nbformat.writes(nb))
