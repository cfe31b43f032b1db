"""The parameters that a notebook declares, and values for them that are checked before a kernel starts."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from lib import paths
from lib.errors import BadField, BadOption, LockstepError, nearest, unknown_option
from lib.options import document
from lib.options.checked import Count, Natural, checked
from lib.seeds import drawn
from reports.runner.notebook_files import Experiment, read, resolve, source


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameter:
    type: str
    default: Any
    help: str


def parameters(path: str | os.PathLike) -> dict[str, Parameter]:
    """What the cell tagged `parameters` declares: literals, one per line, typed, with a comment."""
    for number, cell in enumerate(read(path)["cells"], 1):
        if "parameters" in cell.get("metadata", {}).get("tags", []):
            return _declared(source(cell), f"{path}, cell {number}")
    return {}


def _declared(text: str, where: str) -> dict[str, Parameter]:
    try:
        body = ast.parse(text).body
    except SyntaxError as error:
        raise LockstepError(f"{where}: the parameters cell is not Python: {error}") from error
    found = {}
    for node in body:
        try:
            (target,) = node.targets if isinstance(node, ast.Assign) else [node.target]
            name, value = target.id, ast.literal_eval(node.value)
        except (AttributeError, TypeError, ValueError) as error:  # it names no one thing, or no literal
            what = f"line {node.lineno} is no literal (papermill would not recompute it)"
            raise LockstepError(f"{where}: {what}; write name: type = literal  # what it is") from error
        kind = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else type(value).__name__
        told = text.splitlines()[node.end_lineno - 1].partition(" # ")[2]
        found[name] = Parameter(type=kind, default=value, help=told)
    return found


_TYPES = {"str": str, "int": int, "float": float, "bool": bool, "list": tuple[Any, ...], "dict": dict}


def check_parameters(experiment: Experiment, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, if the notebook declares every one of them and each has its type. A whole number is 0 or more, and at least 1
    where it is by default: it counts something."""
    declared = parameters(experiment.path)
    given = {}
    for name, value in values.items():
        if name not in declared:
            raise unknown_option(f"notebook {experiment.name}", name, declared)
        wanted: Any = _TYPES.get(declared[name].type.partition("[")[0], Any)
        if wanted is int and declared[name].default >= 0:
            wanted = Count if declared[name].default else Natural
        try:
            value = checked(wanted, value, f"notebook {experiment.name}", f"parameter {name!r}")
        except BadField as error:
            raise BadOption(f"{error}; {declared[name].help}".rstrip("; ")) from None
        given[name] = list(value) if isinstance(value, tuple) else value
    return given


def parse_parameters(experiment: Experiment, pairs: Iterable[str]) -> dict[str, Any]:
    """`["seeds=5", "protocols=[gba, sync]"]` from a command line, read by the types that the notebook declares."""
    declared = parameters(experiment.path)
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise BadOption(f"{pair!r}: a parameter is given as name=value; {nearest(name, declared)}")
        values[name] = text if name in declared and declared[name].type == "str" else document.value(text)
    return check_parameters(experiment, values)


def command(name: str, profile: str, parameters: Mapping[str, Any]) -> str:
    """What to type to run a notebook with these parameters."""

    def shell(value: Any) -> str:
        return shlex.quote(value if isinstance(value, str) else json.dumps(value))

    options = "".join(f" -p {key}={shell(value)}" for key, value in parameters.items())
    if drawn():
        return f"python -m lib run {name.partition('/')[0]} --profile {profile} --sealed"
    return f"python -m lib run {name} --profile {profile}{options}"


def repeat(name: str) -> str:
    """The command that repeats the notebook that runs here: as the runner was told, or with the values of its parameters now."""
    if told := os.environ.get(paths.COMMAND):
        return told
    here = vars(sys.modules["__main__"])
    declared = parameters(resolve(name)[0].path)
    values = {key: here.get(key, parameter.default) for key, parameter in declared.items()}
    profile = values.pop("profile", "smoke")
    return command(name, profile, {key: value for key, value in values.items() if value != declared[key].default})
