"""Slowdowns from plain data, strictly: an error names the field's path and what would be right there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from numbers import Real
from pathlib import Path
from typing import Any

import yaml

from lib.cluster.slowdowns.base import BadField, Slowdown
from lib.cluster.slowdowns.batchwise import Empirical, Lognormal, Steady
from lib.cluster.slowdowns.presets import PRESETS, get
from lib.cluster.slowdowns.product import Product
from lib.cluster.slowdowns.shared_machines import Shared
from lib.cluster.slowdowns.timed import Bursts, Day, Transient
from lib.errors import BadOption, nearest

SLOWDOWNS: dict[str, type[Slowdown]] = {
    kind.name: kind for kind in (Lognormal, Steady, Empirical, Transient, Bursts, Day, Shared, Product)
}


def from_dict(data: Any, where: str = "slowdown") -> Slowdown:
    """A slowdown from `{name: kind, field: value, ...}`; from a preset's name, or `{name: preset, scale: 0.001}`; from the name
    of a YAML file with either, as `python -m data_prep trace` writes it; or from a number, which is the sigma of a lognormal
    one. `where` is the data's place in its file, for errors."""
    if isinstance(data, Slowdown):
        return data
    data = _number(data)
    if isinstance(data, Real) and not isinstance(data, bool):
        data = {"name": Lognormal.name, "sigma": float(data)}
    elif isinstance(data, str) and data.endswith((".yaml", ".yml")):
        return from_dict(_loaded(data, where), data)
    elif isinstance(data, str):
        data = {"name": data}
    if not isinstance(data, Mapping):
        raise BadOption(f"{where}: expected a slowdown's name and fields, or a number; found {data!r}")
    if "name" not in data:
        raise BadOption(f"{where}.name: missing; one of {', '.join(sorted({*SLOWDOWNS, *PRESETS}))}")
    name, values = data["name"], {key: value for key, value in data.items() if key != "name"}
    if isinstance(name, str) and name in PRESETS:
        _check(name, values, ("scale",), (), where)
        return _made(lambda scale=1.0: get(name, scale), values, where)
    if not isinstance(name, str) or name not in SLOWDOWNS:
        raise BadOption(f"{where}.name: no slowdown is called {name!r}; {nearest(str(name), [*SLOWDOWNS, *PRESETS])}")
    kind = SLOWDOWNS[name]
    needed = [field.name for field in fields(kind) if field.default is MISSING]
    _check(name, values, [field.name for field in fields(kind)], needed, where)
    if kind is Product and isinstance(values["parts"], (list, tuple)):
        values["parts"] = [from_dict(part, f"{where}.parts[{place}]") for place, part in enumerate(values["parts"])]
    return _made(kind, values, where)


def _loaded(path: str, where: str) -> Any:
    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise BadOption(f"{where}: {path} cannot be read: {error}") from error
    return found["slowdown"] if isinstance(found, Mapping) and [*found] == ["slowdown"] else found


def _check(name: str, values: Mapping[str, Any], known: Any, needed: Any, where: str) -> None:
    for key in values:
        if key not in known:
            raise BadOption(f"{where}.{key}: {name} has no such field; {nearest(key, known)}")
    for key in needed:
        if key not in values:
            raise BadOption(f"{where}.{key}: missing; {name} needs it")


def _made(kind: Any, values: Mapping[str, Any], where: str) -> Slowdown:
    try:
        return kind(**{key: _number(value) for key, value in values.items()})
    except BadField as error:
        raise BadOption(f"{where}.{error.field}: {error.problem}") from error


def _number(value: Any) -> Any:
    """YAML 1.1 takes 1e-3 for a word."""
    if isinstance(value, (list, tuple)):
        return [_number(each) for each in value]
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value
