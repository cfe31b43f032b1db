"""Plain data of a checkpoint: any tree of containers, dataclasses, random streams and arrays as JSON and a list of arrays.

Nothing is pickled: what is read is numbers, text and the dataclasses that the reader names, so a stranger's file can make
nothing else. Everything comes back equal and of the same type: tuples as tuples, sets as sets, integer keys as integers,
floats with all their bits, generators where they were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from lib.errors import BadOption

TAG = "$"
_PLAIN = (type(None), bool, int, float, str)
_BITS = {kind.__name__: kind for kind in (np.random.Philox, np.random.PCG64, np.random.PCG64DXSM, np.random.SFC64)}


def pack(thing: Any, arrays: list[np.ndarray], special: Callable[[str, Any], Any] | None = None, path: str = "") -> Any:
    """`thing` as JSON; its arrays are appended to `arrays`. `special(path, thing)` may give another thing to pack instead."""
    if special is not None:
        thing = special(path, thing)

    def inner(name: object, value: Any) -> Any:
        return pack(value, arrays, special, f"{path}/{name}")

    kind = type(thing)
    if kind in _PLAIN:
        return thing
    if kind is np.ndarray:
        if thing.dtype.kind not in "biufc":
            raise BadOption(f"{path}: an array of {thing.dtype} cannot be saved; numbers and booleans can")
        arrays.append(np.ascontiguousarray(thing).reshape(thing.shape))
        return {TAG: "array", "at": len(arrays) - 1}
    if isinstance(thing, np.generic):
        return {TAG: "scalar", "of": inner("scalar", np.asarray(thing))}
    if kind is list:
        if columns := _columns(thing):
            return {TAG: "rows", "of": [inner(number, column) for number, column in enumerate(columns)]}
        return [inner(number, value) for number, value in enumerate(thing)]
    if kind is tuple:
        return {TAG: "tuple", "of": [inner(number, value) for number, value in enumerate(thing)]}
    if kind is slice:
        return {
            TAG: "slice",
            "of": [inner(number, value) for number, value in enumerate((thing.start, thing.stop, thing.step))],
        }
    if kind in (set, frozenset):
        return {TAG: kind.__name__, "of": [inner("item", value) for value in _ordered(thing)]}
    if kind in (dict, Counter):
        if kind is dict and all(type(key) is str for key in thing) and TAG not in thing:
            return {key: inner(key, value) for key, value in thing.items()}
        return {TAG: kind.__name__, "of": [[inner("key", key), inner(key, value)] for key, value in thing.items()]}
    if is_dataclass(kind):
        contents = {field.name: inner(field.name, getattr(thing, field.name)) for field in fields(kind) if field.init}
        return {TAG: "object", "kind": kind.__name__, "of": contents}
    if kind is np.random.Generator and type(thing.bit_generator).__name__ in _BITS:
        return {TAG: "stream", "of": inner("state", thing.bit_generator.state)}
    raise BadOption(f"{path}: a {kind.__module__}.{kind.__qualname__} cannot be saved")


def unpack(
    thing: Any,
    arrays: list[np.ndarray],
    kinds: Mapping[str, type],
    made: Callable[[str, Any], Any] = lambda path, thing: thing,
    path: str = "",
) -> Any:
    """What `pack` was given; dataclasses come from `kinds` by their names, and `made(path, thing)` may exchange each."""

    def inner(name: object, value: Any) -> Any:
        return unpack(value, arrays, kinds, made, f"{path}/{name}")

    if isinstance(thing, list):
        return [inner(number, value) for number, value in enumerate(thing)]
    if not isinstance(thing, dict):
        return thing
    if TAG not in thing:
        return {key: inner(key, value) for key, value in thing.items()}
    match thing[TAG]:
        case "array":
            return arrays[thing["at"]]
        case "scalar":
            return inner("scalar", thing["of"])[()]
        case "rows":
            return list(zip(*(inner(number, column) for number, column in enumerate(thing["of"])), strict=True))
        case "tuple":
            return tuple(inner(number, value) for number, value in enumerate(thing["of"]))
        case "slice":
            return slice(*(inner(number, value) for number, value in enumerate(thing["of"])))
        case "set" | "frozenset" as kind:
            return {"set": set, "frozenset": frozenset}[kind](inner("item", value) for value in thing["of"])
        case "dict" | "Counter" as kind:
            pairs = ((inner("key", key), value) for key, value in thing["of"])
            return {"dict": dict, "Counter": Counter}[kind]({key: inner(key, value) for key, value in pairs})
        case "stream":
            state = inner("state", thing["of"])
            bits = _BITS[state["bit_generator"]]()
            bits.state = state
            return np.random.Generator(bits)
        case "object":
            if thing["kind"] not in kinds:
                known = ", ".join(sorted(kinds)) or "none"
                raise BadOption(f"{path} is a {thing['kind']}, which the reader did not name; it named: {known}")
            contents = {key: inner(key, value) for key, value in thing["of"].items()}
            return made(path, kinds[thing["kind"]](**contents))
    raise BadOption(f"{path} is of an unknown kind, {thing[TAG]!r}")


def by_name(kinds: Iterable[type]) -> dict[str, type]:
    return {kind.__name__: kind for kind in kinds}


def _columns(items: list) -> list[list] | None:
    """The columns of a long list of equal tuples of plain values: a tenth of the text, and of the time to read it."""
    if len(items) < 8 or type(items[0]) is not tuple or not items[0]:
        return None
    length = len(items[0])
    if any(type(item) is not tuple or len(item) != length for item in items):
        return None
    columns = [list(column) for column in zip(*items, strict=True)]
    return columns if all(type(value) in _PLAIN for column in columns for value in column) else None


def _ordered(items: Iterable) -> list:
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=repr)
