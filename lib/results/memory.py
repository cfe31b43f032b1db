"""Code that has no file, as a notebook's has none: classes and functions as they are in memory.

Taken is the compiled code of a class's methods, and the functions, classes, arrays and plain values that it names. Of any other
value (a data frame, an open file, an object) its kind alone is taken: make such a thing a field of the workload, or put it
into a module.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cached_property, partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from lib.results import closure


class Memory:
    """What has been met on the way from some classes."""

    def __init__(self) -> None:
        self.roots: set[tuple[str, str]] = set()
        """What has a file, for `closure.of`."""
        self._met: set[int] = set()

    def hash(self, thing: type | FunctionType) -> str:
        digest = hashlib.sha256()
        for part in self._code(thing):
            digest.update(part + b"\0")
        return digest.hexdigest()

    def _code(self, thing: Any) -> Iterator[bytes]:
        """A class, a function or another value that code names."""
        function = unwrapped(thing)
        if isinstance(function, (FunctionType, type)):
            yield from self._definition(function)
        elif isinstance(thing, ModuleType):
            self.roots.add((thing.__name__, ""))
        else:
            yield self._value(thing)

    def _definition(self, thing: type | FunctionType) -> Iterator[bytes]:
        if id(thing) in self._met:
            return
        self._met.add(id(thing))
        yield thing.__qualname__.encode()
        module = thing.__module__ or ""
        if filed := has_file(thing):
            self.roots.add(closure.place(thing))
        if module.startswith("lib.") or not closure.own(module):
            return
        if isinstance(thing, FunctionType):
            yield from self._function(thing, filed)
        else:
            for base in thing.__bases__:
                yield from self._definition(base)
            for name, value in sorted(vars(thing).items()):
                if not name.startswith("__") or isinstance(unwrapped(value), FunctionType):
                    yield name.encode()
                    yield from self._code(value)

    def _function(self, function: FunctionType, filed: bool) -> Iterator[bytes]:
        code = function.__code__
        documented = function.__doc__ is not None and code.co_consts[:1] == (function.__doc__,)
        yield _instructions(code, skip=documented)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            yield self._value(value)
        if not filed:  # what it names is found in the file otherwise
            for name in sorted(_names(code) & function.__globals__.keys()):
                yield name.encode()
                yield from self._code(function.__globals__[name])
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # it is still empty
                yield from self._code(cell.cell_contents)

    def _value(self, value: Any) -> bytes:
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            return repr(value).encode()
        if isinstance(value, (list, tuple)):
            return b"[" + b",".join(map(self._value, value)) + b"]"
        if isinstance(value, (set, frozenset)):
            return b"{" + b",".join(sorted(map(self._value, value))) + b"}"
        if isinstance(value, Mapping):
            return b"{" + b",".join(self._value(key) + b":" + self._value(value[key]) for key in value) + b"}"
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu().numpy()
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return f"{value.dtype.str}{value.shape}".encode() + hashlib.sha256(np.ascontiguousarray(value)).digest()
        if is_dataclass(value):
            given = self._value({field.name: getattr(value, field.name) for field in fields(value)})
            return b"".join(self._definition(type(value))) + given
        return type(value).__qualname__.encode()


def has_file(thing: type | FunctionType) -> bool:
    """Whether its name leads to its code in a file; what a function makes is another thing with each call."""
    module, name = closure.place(thing)
    if "<locals>" in thing.__qualname__:
        return False
    return not closure.own(module) or ((file := closure.source(module)) is not None and name in file.bound)


def unwrapped(value: Any) -> Any:
    """The function in a method, a property, a compiled kernel, or a wrapper that says whom it wraps."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    elif isinstance(value, (cached_property, partial)):
        value = value.func
    elif type(value).__module__.startswith("numba."):
        value = getattr(value, "py_func", value)
    return inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value


def _names(code: CodeType) -> set[str]:
    return {*code.co_names}.union(*(_names(each) for each in code.co_consts if isinstance(each, CodeType)))


def _instructions(code: CodeType, skip: bool = False) -> bytes:
    return b"\0".join([code.co_code, repr(code.co_names).encode(), *map(_constant, code.co_consts[skip:])])


def _constant(value: Any) -> bytes:
    if isinstance(value, CodeType):
        return _instructions(value)
    # The order of a set of strings differs from process to process.
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value).encode()
