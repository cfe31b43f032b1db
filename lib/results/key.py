"""The name under which a run is saved and found again: what was asked for, the code that makes it, and the packages' versions.

A run is made anew when its configuration, a file that it reads (`lib/results/files.py`), a module that it leads to
(`lib/results/closure.py`) or the version of an installed package that these import has changed, and for no other reason: an
edit of another protocol, of a plot or of a comment leaves it as it is. torch, numpy and numba decide the last bits of a run, so
another version of one makes another run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import Any

from lib.results import closure, files
from lib.results.memory import Memory
from lib.results.run import plain


def key(configuration: dict[str, Any], things: Iterable[Any], way: Iterable[str]) -> str:
    """`things`: the objects that the configuration describes; `way`: the modules that carry the run out."""
    memory = Memory()
    code = [(describe(kind), memory.hash(kind)) for kind in kinds(things)]
    modules, packages = closure.of({*way, *memory.roots})
    parts = {"configuration": configuration, "memory": code, "code": modules, "packages": packages}
    own = (closure.source(name) for name in modules if name.partition(".")[0] not in ("lib", "notebooks"))
    parts["files"] = [files.read_by(each.text, each.path) for each in own]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=plain).encode()).hexdigest()[:24]


def describe(thing: Any) -> Any:
    """A configuration object as plain data: its name and its fields."""
    if isinstance(thing, (FunctionType, type)):
        return f"{thing.__module__}:{thing.__qualname__}"
    if is_dataclass(thing):
        name = {"name": thing.name} if hasattr(thing, "name") else {}
        return {**name, **{field.name: describe(getattr(thing, field.name)) for field in fields(thing)}}
    if isinstance(thing, (list, tuple)):
        return [describe(item) for item in thing]
    if isinstance(thing, dict):
        return {str(key): describe(value) for key, value in thing.items()}
    return thing


def unlike(one: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The options in which two configurations differ, by their whole names, with both values; None where one lacks it."""
    one, other = (_options(json.loads(json.dumps(each, default=plain))) for each in (one, other))
    names = sorted(one.keys() | other.keys())
    return {name: (one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)}


def _options(given: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(given, dict):
        return {name.lstrip("."): given}
    return {whole: value for inner, each in given.items() for whole, value in _options(each, f"{name}.{inner}").items()}


def kinds(things: Iterable[Any]) -> Iterator[type | FunctionType]:
    """The classes of configuration objects and of what they hold, and the functions and classes that they hold."""
    for thing in things:
        if isinstance(thing, (FunctionType, type)):
            yield thing
        elif is_dataclass(thing):
            yield type(thing)
            yield from kinds(getattr(thing, field.name) for field in fields(thing))
        elif isinstance(thing, (list, tuple)):
            yield from kinds(thing)
        elif isinstance(thing, dict):
            yield from kinds(thing.values())
