"""Plain data of a checkpoint: any tree of containers, dataclasses, random streams and arrays as JSON and a list of arrays.

Nothing is pickled: what is read is numbers, text, dataclasses of this package and those that the reader names, so a stranger's
file can make nothing else. Everything comes back equal and of the same type: tuples as tuples, sets as sets, integer keys as
integers, floats with all their bits, generators where they were. (A library that structures by annotations would need a typed
class for every part's state and every rule's memory.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from itertools import chain
from types import NoneType
from typing import Any

import numpy as np

from lib.errors import BadOption

TAG = "$"
_PLAIN = (NoneType, bool, int, float, str)
_BITS = {kind.__name__: kind for kind in (np.random.Philox, np.random.PCG64, np.random.PCG64DXSM, np.random.SFC64)}


def pack(thing: Any, arrays: list[np.ndarray], path: str = "") -> Any:
    """`thing` as JSON; its arrays are appended to `arrays`."""

    def all_of(items: Iterable) -> list:
        return [pack(item, arrays, f"{path}/{number}") for number, item in enumerate(items)]

    def named(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        return {name: pack(item, arrays, f"{path}/{name}") for name, item in items}

    kind = type(thing)
    if kind in _PLAIN:
        return thing
    if kind is list:
        columns = _columns(thing)
        return {TAG: "rows", "of": columns} if columns else all_of(thing)
    if kind is dict and TAG not in thing and all(type(key) is str for key in thing):
        return named(thing.items())
    if kind is np.ndarray:
        if thing.dtype.kind not in "biuf" or thing.dtype.itemsize > 8 or not thing.dtype.isnative:
            raise BadOption(f"{path}: an array of {thing.dtype} cannot be saved; numbers and booleans can")
        arrays.append(np.ascontiguousarray(thing).reshape(thing.shape))
        return {TAG: "array", "of": str(len(arrays) - 1)}
    if isinstance(thing, np.generic):
        return {TAG: "scalar", "of": pack(np.asarray(thing), arrays, path)}
    if is_dataclass(kind):
        return {TAG: name_of(kind), "of": named((f.name, getattr(thing, f.name)) for f in fields(kind) if f.init)}
    if kind is np.random.Generator and type(thing.bit_generator).__name__ in _BITS:
        return {TAG: "Generator", "of": pack(thing.bit_generator.state, arrays, path)}
    if kind is tuple:
        return {TAG: "tuple", "of": all_of(thing)}
    if kind is slice:
        return {TAG: "slice", "of": all_of((thing.start, thing.stop, thing.step))}
    if kind in (set, frozenset):
        return {TAG: kind.__name__, "of": all_of(_ordered(thing))}
    if kind in (dict, Counter):
        return {TAG: kind.__name__, "of": all_of(chain.from_iterable(thing.items()))}
    raise BadOption(f"{path or 'it'}: a {kind.__module__}.{kind.__qualname__} cannot be saved")


def unpack(thing: Any, arrays: Mapping[str, np.ndarray], kinds: Mapping[str, type]) -> Any:
    """What `pack` was given; `arrays` are by their numbers, dataclasses of other packages come from `kinds` by their names."""
    if isinstance(thing, list):
        return [unpack(item, arrays, kinds) for item in thing]
    if not isinstance(thing, dict):
        return thing
    if TAG not in thing:
        return {key: unpack(item, arrays, kinds) for key, item in thing.items()}
    kind, contents = thing[TAG], unpack(thing["of"], arrays, kinds)
    if kind == "array":
        return arrays[contents]
    if kind in _MAKERS:
        return _MAKERS[kind](contents)
    return _dataclass(kind, kinds)(**contents)


def name_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _dataclass(name: str, kinds: Mapping[str, type]) -> type:
    module, _, kind = name.partition(":")
    found = kinds.get(name)
    if found is None and module.partition(".")[0] == __name__.partition(".")[0]:
        found = getattr(import_module(module), kind, None)
    if not is_dataclass(found):
        known = ", ".join(sorted(kinds)) or "none"
        raise BadOption(f"it holds a {name}, which the reader did not name; it named: {known}")
    return found


def _generator(state: dict[str, Any]) -> np.random.Generator:
    bits = _BITS[state["bit_generator"]]()
    bits.state = state
    return np.random.Generator(bits)


def _pairs(items: list) -> dict:
    """A dictionary of keys and values in turn."""
    return dict(zip(items[::2], items[1::2], strict=True))


_MAKERS = {
    "scalar": lambda array: array[()],
    "rows": lambda columns: list(zip(*columns, strict=True)),
    "tuple": tuple,
    "slice": lambda parts: slice(*parts),
    "set": set,
    "frozenset": frozenset,
    "dict": _pairs,
    "Counter": lambda items: Counter(_pairs(items)),
    "Generator": _generator,
}


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
