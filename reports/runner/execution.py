"""Executes notebooks by papermill, which is imported where it is used, as Jupyter is."""

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from lib import paths
from lib.errors import BadOption, LockstepError, unknown
from lib.progress import FILE, UNEVEN, Progress
from lib.results.key import LIB
from lib.seeds import sealed_run_seeds
from lib.workloads import PROFILES
from reports import claims
from reports.claims import dependencies
from reports.runner.notebook_files import Experiment, read, resolve, source
from reports.runner.notebook_parameters import check_parameters, command

KERNEL = "python3"
CLAIMS = ("claims.yaml", "calibrations.yaml")
"""Files that judge results and make none."""


class NotebookFailed(LockstepError, RuntimeError):
    """A notebook's cell raised, or a kernel died."""


class KernelDied(NotebookFailed):
    """The process that ran a notebook is gone."""


def run(name: str, profile: str = "smoke", parameters: Mapping[str, Any] | None = None, resume: bool = False) -> Path:
    """Execute one notebook and return the path of the executed one.

    After a failure or an interrupt the reports folder holds nothing half-written. With `resume` a complete notebook is left as
    it is.
    """
    chosen = resolve(name)
    if len(chosen) != 1:
        raise BadOption(f"{name!r} stands for {len(chosen)} notebooks; `reports.index.build` runs them")
    [experiment] = chosen
    values = _values(experiment, profile, parameters)
    if resume and is_complete(experiment, profile, parameters):
        print(f"{experiment.name}: complete, left as it is", file=sys.stderr)
        return experiment.executed
    from lib.results.provenance import machine

    paths.check_writable(experiment.executed.parent)
    before, started = fingerprint(experiment, values), time.time()
    extra = {key: value for key, value in values.items() if key != "profile"}
    typed = command(experiment.name, profile, extra)
    with paths.temporary_folder(paths.check_writable(paths.reports()), "stage") as stage:
        variables = {**os.environ, **paths.environment(), paths.STAGE: str(stage), paths.COMMAND: typed}
        variables["PYTHONPATH"] += f"{os.pathsep}{experiment.path.parent}"
        with environment(variables):
            nb = _execute(experiment, values, stage)
        facts = {"name": experiment.name, "profile": profile, "parameters": extra, "command": typed}
        facts |= {"seconds": round(time.time() - started, 1), "fingerprint": before, "machine": machine()}
        nb.metadata["lockstep"] = facts
        return _move_into_place(experiment, nb, stage)


def is_complete(experiment: Experiment, profile: str, parameters: Mapping[str, Any] | None = None) -> bool:
    """Whether the last run succeeded with this profile and these parameters, and its notebook, claims and lib are unchanged."""
    values = _values(experiment, profile, parameters)
    if experiment.failed.exists() or not experiment.executed.exists():
        return False
    try:
        facts = run_facts(experiment)
        judged = all(each.word != "not run" for each in claims.verdicts(of=experiment.name))
    except LockstepError:  # an unreadable file is made anew
        return False
    return judged and facts.get("fingerprint") == fingerprint(experiment, values)


def run_facts(experiment: Experiment) -> dict[str, Any]:
    """What the runner noted of a notebook's last successful run: profile, parameters, command, seconds, machine."""
    return read(experiment.executed)["metadata"].get("lockstep", {})


def fingerprint(experiment: Experiment, values: Mapping[str, Any]) -> str:
    """Hash what a notebook's results follow from: its cells, lib, and the modules and data next to it, but not this package."""
    beside = experiment.path.parent.glob("*.yaml") if experiment.paper else ()
    parts = {
        "cells": [(cell["cell_type"], source(cell)) for cell in read(experiment.path)["cells"]],
        "lib": hash_of_lib(),
        "beside": dependencies.metrics_code(experiment.path),
        "data": [path.read_text(encoding="utf-8") for path in sorted(beside) if path.name not in CLAIMS],
        "claims": [claim.hash for claim in claims.of_notebook(experiment.name)],
        "parameters": dict(values),
        "sealed": [*sealed_run_seeds()[:1]],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def hash_of_lib() -> str:
    """Hash every module and data file of lib, as they were when this process first asked."""
    files = sorted(each for each in LIB.rglob("*") if each.suffix in (".py", ".yaml"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _values(experiment: Experiment, profile: str, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """Check the values to be injected, the profile among them."""
    if profile not in PROFILES:
        raise unknown("profile", profile, PROFILES)
    values = {"profile": profile, **(parameters or {})}
    if values["profile"] != profile:
        raise BadOption(f"profile {profile!r} and parameter profile={values['profile']!r} differ; give one of them")
    return check_parameters(experiment, values)


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Replace this process's environment variables, which a kernel inherits, for a while."""
    before = dict(os.environ)
    try:
        os.environ.clear()
        os.environ.update(variables)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _execute(experiment: Experiment, values: dict[str, Any], stage: Path) -> Any:
    """Run all cells. After an interrupt nbclient shuts the kernel down, and the interrupt reaches the caller."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    output = stage / "notebook.ipynb"
    code = sum(cell["cell_type"] == "code" for cell in read(experiment.path)["cells"])
    line = Progress(code, experiment.name, "cells", line=UNEVEN)
    with line as progress, _relayed(line, stage / FILE):

        def count(cell: Any, **_: Any) -> None:
            progress.advance("injected-parameters" not in cell.metadata.get("tags", []))

        try:
            nb = papermill.execute_notebook(
                str(experiment.path),
                str(output),
                parameters=values,
                kernel_name=KERNEL,
                language="python",
                progress_bar=False,
                on_cell_executed=count,
                cwd=os.getcwd(),  # a path among the parameters means what it means where the command is typed
                # Only critical messages: the kernel logs its own shutdown as an error, and cells' errors are answers.
                extra_arguments=["--IPKernelApp.log_level=50"],
            )
        except (papermill.PapermillExecutionError, DeadKernelError, CellTimeoutError) as error:
            failed = paths.write_bytes_atomic(experiment.failed, output.read_bytes()) if output.exists() else "nothing"
            kind, problem = KernelDied, f": the kernel died (out of memory, or stuck?): {error}"
            if isinstance(error, papermill.PapermillExecutionError):
                problem = f", cell {_number(experiment.path, error.source)}: {error.ename}: {error.evalue}"
                kind = NotebookFailed
            raise kind(f"notebook {experiment.name}{problem}\n  as far as it came: {failed}") from error
    nb.metadata.papermill |= {"input_path": experiment.name, "output_path": experiment.name}
    return nb


@contextmanager
def _relayed(line: Progress, file: Path) -> Iterator[None]:
    """While a kernel runs show its own progress after this line. It leaves that in a file; a cell may hold a sweep of an hour."""
    over = threading.Event()

    def relay() -> None:
        while not over.wait(1.0):
            with suppress(OSError, UnicodeDecodeError):  # not written yet, or half
                line.set_postfix_str(file.read_text(encoding="utf-8"))

    thread = threading.Thread(target=relay, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        line.set_postfix_str("", refresh=False)


def _number(path: Path, text: str) -> str:
    """The failing cell's number in the notebook's file, counting every cell from 1."""
    texts = [source(cell).strip() for cell in read(path)["cells"]]
    return str(texts.index(text.strip()) + 1) if text.strip() in texts else "with the injected parameters"


def _move_into_place(experiment: Experiment, nb: Any, stage: Path) -> Path:
    """Move figures and verdicts from the stage to the reports folder, and write the notebook last."""
    import nbformat

    figures = stage / experiment.name
    if others := {path.parent.relative_to(stage).as_posix() for path in stage.rglob("*.png")} - {experiment.name}:
        problem = f"a figure's name begins with {min(others)}/, another page's; begin it with {experiment.name}/"
        raise NotebookFailed(f"notebook {experiment.name}: {problem}")
    if figures.is_dir():
        paths.replace_folder(figures, paths.reports() / experiment.name)
    for verdict in sorted((stage / "claims").glob("*.json")):
        target = paths.reports() / "claims" / verdict.name
        target.parent.mkdir(exist_ok=True)
        os.replace(verdict, target)
    experiment.failed.unlink(missing_ok=True)
    return paths.write_text_atomic(experiment.executed, nbformat.writes(nb))
