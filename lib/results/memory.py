"""Code that has no file, as a notebook's has none: classes and functions as they are in memory.

Taken is the compiled code of a class's methods, and the functions, classes and values that it names. Of a value that cannot be
pickled (an open file, a generator) its kind alone is taken.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property, partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import joblib

from lib.results import closure


class Memory:
    """What has been met on the way from some classes."""

    def __init__(self) -> None:
        self.roots: set[str] = set()
        """The modules of what has a file, for `closure.of`."""
        self._met: set[int] = set()

    def hash(self, thing: type | FunctionType) -> str:
        return hashlib.sha256("\0".join(self._code(thing)).encode()).hexdigest()

    def _code(self, thing: Any) -> Iterator[str]:
        """A class, a function or another value that code names."""
        function = unwrapped(thing)
        if isinstance(function, (FunctionType, type)):
            yield from self._definition(function)
        elif isinstance(thing, ModuleType):
            self.roots.add(thing.__name__)
        else:
            yield from self._definition(type(thing))
            with suppress(Exception):  # which is what pickle raises
                yield joblib.hash(thing)

    def _definition(self, thing: type | FunctionType) -> Iterator[str]:
        if id(thing) in self._met:
            return
        self._met.add(id(thing))
        yield thing.__qualname__
        module = thing.__module__ or ""
        if has_file(thing):
            self.roots.add(module)
        if module.startswith("lib.") or not closure.own(module):
            self.roots.add(module)
        elif isinstance(thing, FunctionType):
            yield from self._function(thing)
        else:
            for base in thing.__bases__:
                yield from self._definition(base)
            for name, value in sorted(vars(thing).items()):
                if not name.startswith("__") or isinstance(unwrapped(value), FunctionType):
                    yield name
                    yield from self._code(value)

    def _function(self, function: FunctionType) -> Iterator[str]:
        code, given = function.__code__, function.__globals__
        documented = function.__doc__ is not None and code.co_consts[:1] == (function.__doc__,)
        yield _instructions(code, skip=documented)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            yield from self._code(value)
        for name in sorted(() if has_file(function) else _names(code) & given.keys()):  # else the file has them
            yield name
            yield from self._code(given[name])
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # it is still empty
                yield from self._code(cell.cell_contents)


def has_file(thing: type | FunctionType) -> bool:
    """Whether its name leads to its code in a file; what a function makes is another thing with each call."""
    module, top = sys.modules.get(thing.__module__), thing.__qualname__.partition(".")[0]
    named = "<locals>" not in thing.__qualname__ and hasattr(module, top)
    return named and closure.source(thing.__module__) is not None


def unwrapped(value: Any) -> Any:
    """The function in a method, a property, a compiled kernel, or a wrapper that says whom it wraps."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, (cached_property, partial)):
        value = value.func
    return value if isinstance(value, type) else inspect.unwrap(value)


def _names(code: CodeType) -> set[str]:
    return {*code.co_names}.union(*(_names(each) for each in code.co_consts if isinstance(each, CodeType)))


def _instructions(code: CodeType, skip: bool = False) -> str:
    return "\0".join([code.co_code.hex(), repr(code.co_names), *map(_constant, code.co_consts[skip:])])


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _instructions(value)
    # The order of a set of strings differs from process to process.
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)
