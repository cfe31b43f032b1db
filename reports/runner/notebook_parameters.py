"""The parameters that a notebook declares, and values for them that are checked before a kernel starts."""

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
from lib.options import yaml_source
from lib.options.checked import Count, Natural, checked
from lib.seeds import sealed_run_seeds
from reports.runner.notebook_files import Experiment, read, resolve, source

TYPES = {"str": str, "int": int, "float": float, "bool": bool, "list": tuple[Any, ...], "dict": dict}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameter:
    """A declared parameter: `seeds: int = 3  # how many`."""

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
        except (AttributeError, TypeError, ValueError) as error:  # several names, or no literal
            problem = f"line {node.lineno} is no literal (papermill would not recompute it)"
            raise LockstepError(f"{where}: {problem}; write name: type = literal  # what it is") from error
        kind = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else type(value).__name__
        comment = text.splitlines()[node.end_lineno - 1].partition(" # ")[2]
        found[name] = Parameter(type=kind, default=value, help=comment)
    return found


def check_parameters(experiment: Experiment, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values, each of its declared type, or raise an error that names the wrong one.

    A whole number is at least 0, and at least 1 where its default is: it counts something.
    """
    declared = parameters(experiment.path)
    accepted = {}
    for name, value in values.items():
        if name not in declared:
            raise unknown_option(f"notebook {experiment.name}", name, declared)
        kind: Any = TYPES.get(declared[name].type.partition("[")[0], Any)
        if kind is int and declared[name].default >= 0:
            kind = Count if declared[name].default else Natural
        try:
            value = checked(kind, value, f"notebook {experiment.name}", f"parameter {name!r}")
        except BadField as error:
            raise BadOption(f"{error}; {declared[name].help}".rstrip("; ")) from None
        accepted[name] = list(value) if isinstance(value, tuple) else value
    return accepted


def parse_parameters(experiment: Experiment, pairs: Iterable[str]) -> dict[str, Any]:
    """Read `["seeds=5", "protocols=[gba, sync]"]` from a command line by the types that the notebook declares."""
    declared = parameters(experiment.path)
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise BadOption(f"{pair!r}: a parameter is given as name=value; {nearest(name, declared)}")
        values[name] = text if name in declared and declared[name].type == "str" else yaml_source.value(text)
    return check_parameters(experiment, values)


def command(name: str, profile: str, values: Mapping[str, Any]) -> str:
    """What to type to run a notebook with these parameters."""
    if sealed_run_seeds():
        return f"lockstep run {name.partition('/')[0]} --profile {profile} --sealed"
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    pairs = "".join(f" -p {key}={shlex.quote(text)}" for key, text in texts.items())
    return f"lockstep run {name} --profile {profile}{pairs}"


_noted: dict[str, Any] = {}


def note_parameters(**values: Any) -> None:
    """Keep the values of parameters whose names a notebook uses for something else later."""
    _noted.update(values)


def repeat(name: str) -> str:
    """The command that repeats the notebook of this kernel: the runner's, or one with the parameters' present values."""
    if typed := os.environ.get(paths.COMMAND):
        return typed
    present = {**vars(sys.modules["__main__"]), **_noted}
    declared = parameters(resolve(name)[0].path)
    values = {key: present.get(key, parameter.default) for key, parameter in declared.items()}
    profile = values.pop("profile", "smoke")
    return command(name, profile, {key: value for key, value in values.items() if value != declared[key].default})
