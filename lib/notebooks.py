"""Runs the notebooks: papermill, but strict, and with whole results or none.

A notebook runs in its own folder with the kernel `python3`. Its figures and verdicts go to a stage beside the reports
and are put in place by renaming when its last cell has succeeded; after a failure the notebook as far as it came stays
as `<name>.failed.ipynb`, and an earlier report stays as it was. papermill and Jupyter are imported where they are used.
"""

from __future__ import annotations

import ast
import dataclasses
import io
import json
import os
import re
import shutil
import tempfile
import time
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import paths
from .errors import BadOption, LockstepError, UnknownName, nearest, unknown, unknown_option
from .progress import Progress

PROFILES = ("smoke", "laptop", "full")
KERNEL = "python3"
STALE = 24 * 3600
"""Seconds after which a stage that a killed run left behind is removed."""


class NotebookFailed(LockstepError, RuntimeError):
    """A notebook's cell raised, or a kernel died."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameter:
    name: str
    type: str
    default: Any
    help: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A notebook, known without running it."""

    name: str
    """`00_quickstart`, `gba/figure_6_switching`."""
    path: Path
    paper: str
    """The folder's name, empty for a notebook of no one paper."""
    title: str
    profiles: tuple[str, ...]

    @property
    def executed(self) -> Path:
        return paths.reports() / f"{self.name}.ipynb"

    @property
    def page(self) -> Path:
        return paths.reports() / f"{self.name}.html"

    @property
    def failed(self) -> Path:
        return paths.reports() / f"{self.name}.failed.ipynb"


# Finding


def experiments() -> list[Experiment]:
    """Every notebook of the repository."""
    folder = paths.notebooks()
    found = [*folder.glob("*.ipynb"), *folder.glob("*/*.ipynb")]
    return [_experiment(path) for path in sorted(found) if not path.name.startswith(".") and path.parent.name[0] != "."]


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
        profiles=_profiles(nb),
    )


def _profiles(nb: dict) -> tuple[str, ...]:
    """The keys of the notebook's `PROFILES = {...}`; all of them where it has none."""
    for cell in nb["cells"]:
        if cell["cell_type"] == "code" and (found := re.search(r"^PROFILES\s*=", source(cell), re.MULTILINE)):
            try:
                nodes = ast.parse(source(cell)[found.start() :]).body
                return tuple(str(ast.literal_eval(key)) for key in nodes[0].value.keys)  # type: ignore[attr-defined]
            except (SyntaxError, ValueError, AttributeError, TypeError):
                return PROFILES
    return PROFILES


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


# Parameters


def parameters(path: str | os.PathLike) -> dict[str, Parameter]:
    """What the cell tagged `parameters` declares: literals, one per line, typed, with a comment."""
    for number, cell in enumerate(read(path)["cells"], 1):
        if "parameters" in cell.get("metadata", {}).get("tags", []):
            return _declared(source(cell), f"{path}, cell {number}")
    return {}


def _declared(text: str, where: str) -> dict[str, Parameter]:
    try:
        body = ast.parse(text).body
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    except (SyntaxError, tokenize.TokenError) as error:
        raise LockstepError(f"{where}: the parameters cell is not Python: {error}") from error
    found = {}
    for node in body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        try:
            assert isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and node.value
            value = ast.literal_eval(node.value)
        except (AssertionError, ValueError) as error:
            what = f"line {node.lineno} is no literal (papermill would not recompute it)"
            raise LockstepError(f"{where}: {what}; write name: type = literal  # what it is") from error
        kind = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else type(value).__name__
        line = node.end_lineno or node.lineno
        found[target.id] = Parameter(name=target.id, type=kind, default=value, help=comments.get(line, ""))
    return found


_TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (float, int), "bool": (bool,)}
_TYPES |= {"list": (list, tuple), "dict": (dict,)}


def check_parameters(experiment: Experiment, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, if the notebook declares every one of them and each has its type."""
    declared = parameters(experiment.path)
    checked = {}
    for name, value in values.items():
        if name not in declared:
            raise unknown_option(f"notebook {experiment.name}", name, declared)
        kind = declared[name].type.partition("[")[0]
        valid = _TYPES.get(kind)
        if valid and (not isinstance(value, valid) or (isinstance(value, bool) and kind != "bool")):
            what = f"must be {declared[name].type}, not {value!r} ({type(value).__name__})"
            raise BadOption(
                f"notebook {experiment.name}: parameter {name!r} {what}; {declared[name].help}".rstrip("; ")
            )
        checked[name] = float(value) if kind == "float" else list(value) if kind == "list" else value
    return checked


def parse_parameters(experiment: Experiment, pairs: Iterable[str]) -> dict[str, Any]:
    """`["seeds=5", "protocols=[gba, sync]"]` from a command line, read by the types that the notebook declares."""
    import yaml

    declared = parameters(experiment.path)
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise BadOption(f"{pair!r}: a parameter is given as name=value; {nearest(name, declared)}")
        if name in declared and declared[name].type == "str":
            values[name] = text
            continue
        try:
            value = yaml.safe_load(text)
            if name in declared and declared[name].type == "float" and isinstance(value, str):
                value = float(value)  # YAML takes 1e-3 for text
        except (yaml.YAMLError, ValueError) as error:
            raise BadOption(f"parameter {name!r}: cannot read {text!r}") from error
        values[name] = value
    return check_parameters(experiment, values)


# Running


def run(name: str, profile: str = "smoke", parameters: Mapping[str, Any] | None = None) -> Path:
    """Execute one notebook; the path of the executed one. Nothing half-written is left, whatever happens."""
    chosen = resolve(name)
    if len(chosen) != 1:
        raise BadOption(f"{name!r} stands for {len(chosen)} notebooks; run_all takes them")
    experiment = chosen[0]
    if profile not in experiment.profiles:
        raise unknown(f"profile of {experiment.name}:", profile, experiment.profiles)
    given = dict(parameters or {})
    if given.setdefault("profile", profile) != profile:
        raise BadOption(f"profile {profile!r} and parameter profile={given['profile']!r} differ; give one of them")
    values = check_parameters(experiment, given)
    _need_kernel()
    paths.check_writable(experiment.executed.parent)
    extra = {key: value for key, value in values.items() if key != "profile"}
    options = "".join(f" -p {key}={_shell(value)}" for key, value in extra.items())
    command = f"python -m lib run {experiment.name} --profile {profile}{options}"
    with _stage() as stage, _environment({paths.STAGE: str(stage), paths.COMMAND: command}):
        started = time.time()
        nb = _execute(experiment, values, stage)
        facts = {"name": experiment.name, "profile": profile, "parameters": extra, "command": command}
        nb.metadata["lockstep"] = facts | {"seconds": round(time.time() - started, 1)}
        return _publish(experiment, nb, stage)


def run_all(name: str = "all", profile: str = "smoke", parameters: Mapping[str, Any] | None = None) -> list[Path]:
    """Execute every notebook that the name stands for; those that fail are named together at the end."""
    chosen = resolve(name)
    for experiment in chosen:
        check_parameters(experiment, dict(parameters or {}))
    done, failures = [], []
    for experiment in chosen:
        try:
            done.append(run(experiment.name, profile, parameters))
        except LockstepError as error:
            if len(chosen) == 1:
                raise
            failures.append(str(error))
    if failures:
        raise NotebookFailed(f"{len(failures)} of {len(chosen)} notebooks failed:\n" + "\n".join(failures))
    return done


def _shell(value: Any) -> str:
    import shlex

    return shlex.quote(value if isinstance(value, str) else json.dumps(value))


def _need_kernel() -> None:
    advice = "install it with: python -m pip install papermill nbconvert ipykernel"
    try:
        import papermill  # noqa: F401
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    except ImportError as error:
        raise LockstepError(f"notebooks need papermill and Jupyter ({error}); {advice}") from error
    try:
        KernelSpecManager().get_kernel_spec(KERNEL)
    except NoSuchKernel as error:
        advice = "python -m pip install ipykernel && python -m ipykernel install --sys-prefix"
        raise LockstepError(f"there is no Jupyter kernel {KERNEL!r} here; install it with: {advice}") from error


@contextmanager
def _stage() -> Iterator[Path]:
    """A folder on the reports' file system, gone afterwards."""
    folder = paths.check_writable(paths.reports())
    for old in folder.glob(".stage-*"):
        if time.time() - old.stat().st_mtime > STALE:
            shutil.rmtree(old, ignore_errors=True)
    stage = Path(tempfile.mkdtemp(dir=folder, prefix=".stage-"))
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """What the kernel inherits: the same folders, and the same `lib`, installed or not."""
    package = str(Path(__file__).resolve().parent.parent)
    search = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    places = {"LOCKSTEP_REPORTS": str(paths.reports()), "LOCKSTEP_ROOT": str(paths.root()), "PYTHONPATH": search}
    values = {**values, **places}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _execute(experiment: Experiment, values: dict[str, Any], stage: Path) -> Any:
    """The executed notebook. An interrupt shuts the kernel down (nbclient) and goes on to the caller."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.engines import NBClientEngine, papermill_engines

    cells = [i for i, cell in enumerate(read(experiment.path)["cells"]) if cell["cell_type"] == "code"]
    output = stage / "notebook.ipynb"
    with Progress(len(cells), experiment.name, "cells") as progress:

        class Engine(NBClientEngine):
            """nbclient, with our progress line for papermill's bar."""

            @classmethod
            def execute_managed_notebook(cls, nb_man, kernel_name, **options):  # type: ignore[no-untyped-def]
                complete = nb_man.cell_complete

                def counted(cell, **more):  # type: ignore[no-untyped-def]
                    complete(cell, **more)
                    injected = "injected-parameters" in cell.metadata.get("tags", [])
                    progress.advance(cell.cell_type == "code" and not injected)

                nb_man.cell_complete = counted
                return super().execute_managed_notebook(nb_man, kernel_name, **options)

        papermill_engines.register("lockstep", Engine)
        try:
            nb = papermill.execute_notebook(
                str(experiment.path),
                str(output),
                parameters=values,
                engine_name="lockstep",
                kernel_name=KERNEL,
                language="python",
                progress_bar=False,
                cwd=str(experiment.path.parent),
                extra_arguments=["--IPKernelApp.log_level=40"],
            )
        except papermill.PapermillExecutionError as error:
            kept = paths.write_bytes_atomic(experiment.failed, output.read_bytes())
            cell = _number(experiment.path, error.source)
            what = f"notebook {experiment.name}, cell {cell}: {error.ename}: {error.evalue}"
            raise NotebookFailed(f"{what}\n  as far as it came: {kept}") from error
        except (DeadKernelError, CellTimeoutError) as error:
            kept = paths.write_bytes_atomic(experiment.failed, output.read_bytes()) if output.exists() else "nothing"
            what = f"notebook {experiment.name}: the kernel died (out of memory?): {error}"
            raise NotebookFailed(f"{what}\n  as far as it came: {kept}") from error
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
