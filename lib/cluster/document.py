"""Frozen dataclasses as plain data and back, strictly: an error names the field's path and what would be right there."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from lib.errors import BadOption, nearest


def to_plain(thing: Any) -> Any:
    """Dicts, lists and scalars; fields that have their default are left out."""
    if hasattr(thing, "to_dict"):
        return thing.to_dict()
    if is_dataclass(thing):
        return {
            field.name: to_plain(getattr(thing, field.name))
            for field in fields(thing)
            if getattr(thing, field.name) != _default(field)
        }
    if isinstance(thing, Mapping):
        return {str(key): to_plain(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [to_plain(item) for item in thing]
    return thing


def _default(field: Field) -> Any:
    """A field's default; what no value equals where it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def from_plain(kind: type, data: Any, path: str) -> Any:
    """An instance of a dataclass from plain data."""
    if hasattr(kind, "from_dict"):
        return kind.from_dict(data, path)
    if not isinstance(data, Mapping):
        raise BadOption(f"{path}: expected {kind.__name__}'s fields, found {data!r}")
    types_ = typing.get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}
    for name in data:
        if name not in known:
            raise BadOption(f"{path}.{name}: {kind.__name__} has no such field; {nearest(name, known)}")
    for name, field in known.items():
        if name not in data and field.default is MISSING and field.default_factory is MISSING:
            raise BadOption(f"{path}.{name}: missing; {kind.__name__} needs it")
    values = {name: _value(types_[name], value, f"{path}.{name}") for name, value in data.items()}
    try:
        return kind(**values)
    except BadOption as error:
        raise BadOption(f"{path}: {error}") from error


def _value(kind: Any, data: Any, path: str) -> Any:
    """`data` as the annotation wants it."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _one_of(arguments, data, path)
    if origin is tuple:
        if not isinstance(data, (list, tuple)):
            raise BadOption(f"{path}: expected a list, found {data!r}")
        inner = arguments[0] if arguments else Any
        return tuple(_value(inner, item, f"{path}[{number}]") for number, item in enumerate(data))
    if origin in (dict, Mapping) or kind is dict or origin is typing.get_origin(Mapping[str, str]):
        if not isinstance(data, Mapping):
            raise BadOption(f"{path}: expected names and values, found {data!r}")
        return {str(name): _value(arguments[1], value, f"{path}.{name}") for name, value in data.items()}
    if isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "from_dict")):
        return data if isinstance(data, kind) else from_plain(kind, data, path)
    if kind is float and isinstance(data, (int, float)) and not isinstance(data, bool):
        return float(data)
    if kind is float and isinstance(data, str):
        try:
            return float(data)  # YAML 1.1 takes 1e9 for a word
        except ValueError:
            pass
    if isinstance(kind, type) and (not isinstance(data, kind) or (kind is int and isinstance(data, bool))):
        raise BadOption(f"{path}: expected {kind.__name__}, found {data!r}")
    return data


def _one_of(kinds: tuple[Any, ...], data: Any, path: str) -> Any:
    if data is None and types.NoneType in kinds:
        return None
    problems = []
    for kind in (kind for kind in kinds if kind is not types.NoneType):
        try:
            return _value(kind, data, path)
        except BadOption as error:
            problems.append(error)
    # The alternative that got furthest into the data has the most to say about it.
    raise max(problems, key=lambda error: len(str(error).split(":")[0]))
