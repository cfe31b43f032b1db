"""The name under which a run is saved and found again: its configuration, the code that makes it, the packages' versions.

The code is lib's engine as a whole; of each class that the configuration holds, the module of lib that defines it, those of
its bases, and what these import from the same folder; and of a user's own classes and functions the compiled code in memory with
everything that it names. So an edit of another protocol, of a plot or of a comment leaves a run as it is, and an edit of a
driver makes every run anew. A file counts where a field of the workload names it. A path that is put together at run time is not
seen: after such a change, `force=True` trains anew.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import joblib
import numpy as np

from lib.results.provenance import PACKAGES, version

LIB = Path(__file__).parents[1]
CHOSEN = ("protocols", "tasks")
"""Folders of which a run counts only what its classes lead to."""
SHARED = ("tasks/workload", "tasks/batch", "tasks/flat_model", "tasks/metrics")
"""Modules of these folders that every run uses."""
SHOWN = (
    "__main__",
    "command_line",
    "errors",
    "options",
    "paths",
    "progress",
    "workloads",
    "results/key",
    "results/provenance",
)
"""What reads, names and shows, and decides no number."""
LARGE = 64 * 2**20
"""Bytes from which a file is known by its size and time instead of its content."""


def key(configuration: Mapping[str, Any], things: Iterable[Any]) -> str:
    """`things`: the objects that the configuration describes."""
    code = Code()
    parts = {
        "configuration": configuration,
        "engine": engine(),
        "own": [(describe(kind), _hash("\0".join(code.of(kind)))) for kind in kinds(things)],
        "modules": {name: _module(name) for name in sorted(code.modules)},
        "packages": {name: version(name) for name in PACKAGES},
    }
    return _hash(json.dumps(parts, sort_keys=True, default=plain))[:24]


@cache
def engine() -> str:
    """A hash of the code and data of lib that carry every run out."""
    named = {path: path.relative_to(LIB).with_suffix("").as_posix() for path in sorted(LIB.rglob("*.py"))}
    counted = (path for path, name in named.items() if name in SHARED or not _within(name, (*CHOSEN, *SHOWN)))
    return _hash("".join(map(_parsed, counted)))


@cache
def _module(name: str) -> list[str]:
    """The hashes of a module of a chosen folder, and of all that it imports from those folders."""
    left, found = [name], {}
    while left:
        path = LIB.parent / (left.pop().replace(".", "/") + ".py")
        if path not in found and path.is_file() and _within(path.relative_to(LIB).as_posix(), CHOSEN):
            found[path] = _parsed(path)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lib."):
                    left += [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
    return sorted(found.values())


@cache
def _parsed(path: Path) -> str:
    """A hash of a file's code, as it was when this process first read it."""
    return _hash(bare(path.read_text(encoding="utf-8")))


def bare(text: str) -> str:
    """A module's syntax without comments and docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            constants = [each for each in body if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)]
            body[:] = [each for each in body if each not in constants]
    return ast.dump(tree)


class Code:
    """The compiled code of classes and functions, with what it names; lib's own is left to `modules`."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        """lib's modules that were met."""
        self._met: set[int] = set()

    def of(self, thing: Any) -> Iterator[str]:
        function = _unwrapped(thing)
        if isinstance(function, ModuleType):
            yield function.__name__
        elif isinstance(function, (FunctionType, type)):
            yield from self._definition(function)
        else:
            yield from self._definition(type(thing))
            with suppress(Exception):  # pickle raises anything; of an open file or a generator the kind alone is taken
                yield joblib.hash(thing)

    def _definition(self, thing: type | FunctionType) -> Iterator[str]:
        if id(thing) in self._met:
            return
        self._met.add(id(thing))
        module = thing.__module__ or ""
        yield name_of(thing)
        if module.startswith("lib."):
            self.modules.add(module)
        elif not _of_user(module):
            return
        elif isinstance(thing, FunctionType):
            documented = thing.__doc__ is not None and thing.__code__.co_consts[:1] == (thing.__doc__,)
            yield _instructions(thing.__code__, skip=documented)
            for value in (*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()):
                yield from self.of(value)
            for name in sorted(_names(thing.__code__) & thing.__globals__.keys()):
                yield from (name, *self._named(thing.__globals__[name], _names(thing.__code__)))
            for cell in thing.__closure__ or ():
                with suppress(ValueError):  # it is still empty
                    yield from self.of(cell.cell_contents)
        else:
            for base in thing.__bases__:
                yield from self._definition(base)
            for name, value in sorted(vars(thing).items()):
                if not name.startswith("__") or isinstance(_unwrapped(value), FunctionType):
                    yield from (name, *self.of(value))

    def _named(self, value: Any, names: set[str]) -> Iterator[str]:
        """What a name stands for; of a user's module what the code takes from it."""
        yield from self.of(value)
        if isinstance(value, ModuleType) and _of_user(value.__name__) and not value.__name__.startswith("lib."):
            for name in sorted(names & vars(value).keys()):
                yield from (name, *self.of(vars(value)[name]))


def _unwrapped(value: Any) -> Any:
    """The function in a method, a property, a compiled kernel, or a wrapper that says what it wraps."""
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


@cache
def _of_user(module: str) -> bool:
    """Whether a module is neither installed nor of the standard library."""
    top = module.partition(".")[0]
    if top == "__main__" or top in sys.stdlib_module_names:
        return top == "__main__"  # a notebook's cells or a script, wherever what started them is installed
    place = getattr(sys.modules.get(top), "__file__", None)
    paths = sysconfig.get_paths()
    return not (place and any(Path(place).is_relative_to(paths[name]) for name in ("stdlib", "purelib", "platlib")))


def files(thing: Any) -> dict[str, str]:
    """Each file, or prepared folder, that a field of a configuration object names -> the digest of what lies there."""
    texts = {text for text in _texts(thing) if 0 < len(text) < 1000 and "\n" not in text and "\0" not in text}
    found = {text: content(Path(text)) for text in sorted(texts)}
    return {text: digest for text, digest in found.items() if digest}


def content(path: Path) -> str:
    """The digest of a file, or of a prepared folder's manifest, which holds that of every file; "" of anything else."""
    with suppress(OSError):  # a name that is too long
        path = path / "manifest.json" if path.is_dir() else path
        if path.is_file():
            status = path.stat()
            if status.st_size > LARGE:
                return _hash(f"{status.st_size} {status.st_mtime_ns}")
            return hashlib.sha256(path.read_bytes()).hexdigest()
    return ""


def _texts(thing: Any) -> Iterator[str]:
    if isinstance(thing, (str, Path)):
        yield str(thing)
    elif is_dataclass(thing):
        thing = [getattr(thing, field.name) for field in fields(thing)]
    if isinstance(thing, (dict, list, tuple)):
        for each in thing.values() if isinstance(thing, dict) else thing:
            yield from _texts(each)


def _within(name: str, folders: Iterable[str]) -> bool:
    return any(name == each or name.startswith(f"{each}/") for each in folders)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def describe(thing: Any) -> Any:
    """A configuration object as plain data: its name and its fields."""
    if isinstance(thing, (FunctionType, type)):
        return name_of(thing)
    if is_dataclass(thing):
        name = {"name": thing.name} if hasattr(thing, "name") else {}
        return {**name, **{field.name: describe(getattr(thing, field.name)) for field in fields(thing)}}
    if isinstance(thing, (list, tuple)):
        return [describe(item) for item in thing]
    if isinstance(thing, dict):
        return {str(key): describe(value) for key, value in thing.items()}
    return thing


def name_of(thing: type | FunctionType) -> str:
    """Module and name, without the function that made it: a class that travelled to another process has lost that."""
    return f"{thing.__module__}:{thing.__qualname__.rpartition('<locals>.')[2]}"


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


def plain(value: Any) -> Any:
    """What JSON has no word for."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)
