"""The name under which a run is saved and found again: its configuration, the code that makes it, the packages' versions.

The code is lib's engine as a whole; of each class that the configuration holds, the module of lib that defines it, those of
its bases, and what these import from the same folder; and of a user's own classes and functions the compiled code in memory with
everything that it names. So an edit of another protocol, of a plot or of a comment leaves a run as it is, and an edit of a
driver makes every run anew. A file counts where a field of the workload names it. A path that is put together at run time is not
seen: after such a change, `force=True` trains anew.
"""

import ast
import hashlib
import inspect
import json
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Set
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
SHARED = ("tasks/workload", "tasks/flat_model", "tasks/metrics")
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
        "modules": {name: _hashes_of_module(name) for name in sorted(code.modules)},
        "packages": {name: version(name) for name in PACKAGES},
    }
    return _hash(json.dumps(parts, sort_keys=True, default=json_default))[:24]


@cache
def engine() -> str:
    """A hash of the code and data of lib that carry every run out."""
    named = {path: path.relative_to(LIB).with_suffix("").as_posix() for path in sorted(LIB.rglob("*.py"))}
    counted = (path for path, name in named.items() if name in SHARED or not _within(name, (*CHOSEN, *SHOWN)))
    return _hash("".join(map(_syntax_hash, counted)))


@cache
def _hashes_of_module(name: str) -> list[str]:
    """The hashes of a module of a chosen folder, and of all that it imports from those folders."""
    left, found = [name], {}
    while left:
        path = LIB.parent / (left.pop().replace(".", "/") + ".py")
        if path not in found and path.is_file() and _within(path.relative_to(LIB).as_posix(), CHOSEN):
            found[path] = _syntax_hash(path)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lib."):
                    left += [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
    return sorted(found.values())


@cache
def _syntax_hash(path: Path) -> str:
    """A hash of a file's code, as it was when this process first read it."""
    return _hash(syntax_without_docs(path.read_text(encoding="utf-8")))


def syntax_without_docs(text: str) -> str:
    """A module's syntax without comments and docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            constants = [each for each in body if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)]
            body[:] = [each for each in body if each not in constants]
    return dump(tree)


def dump(tree: ast.AST) -> str:
    """The same text from every Python: that of 3.11, which shows empty lists and knows no type parameters."""
    shown = {"show_empty": True} if sys.version_info >= (3, 13) else {}
    return ast.dump(tree, **shown).replace(", type_params=[]", "")


class Code:
    """The compiled code of classes and functions, with what it names; lib's own is left to `modules`."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        """lib's modules that were met."""
        self._met: set[int] = set()

    def of(self, thing: Any, names: Set[str] = frozenset()) -> Iterator[str]:
        """`names`: what the code that names a module takes from it."""
        thing = _unwrap(thing)
        if isinstance(thing, ModuleType):
            yield thing.__name__
            own = _is_user_code(thing.__name__) and not thing.__name__.startswith("lib.")
            for name in sorted(names & vars(thing).keys()) if own else ():
                yield from (name, *self.of(vars(thing)[name]))
            return
        if not isinstance(thing, (FunctionType, type)):
            with suppress(Exception):  # pickle raises anything; of an open file or a generator the kind alone is taken
                yield joblib.hash(thing)
            thing = type(thing)
        if id(thing) in self._met:
            return
        self._met.add(id(thing))
        yield name_of(thing)
        module = thing.__module__ or ""
        if module.startswith("lib."):
            self.modules.add(module)
        elif _is_user_code(module):
            yield from self._function(thing) if isinstance(thing, FunctionType) else self._class(thing)

    def _function(self, function: FunctionType) -> Iterator[str]:
        code, names = function.__code__, _names(function.__code__)
        yield _instructions(code, function.__doc__)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            yield from self.of(value)
        for name in sorted(names & function.__globals__.keys()):
            yield from (name, *self.of(function.__globals__[name], names))
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # it is still empty
                yield from self.of(cell.cell_contents)

    def _class(self, kind: type) -> Iterator[str]:
        for base in kind.__bases__:
            yield from self.of(base)
        for name, value in sorted(vars(kind).items()):
            if not name.startswith("__") or isinstance(_unwrap(value), FunctionType):
                yield from (name, *self.of(value))


def _unwrap(value: Any) -> Any:
    """The function in a method, a property, a compiled kernel, or a wrapper that says what it wraps."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, (cached_property, partial)):
        value = value.func
    return value if isinstance(value, type) else inspect.unwrap(value)


def _names(code: CodeType) -> set[str]:
    return {*code.co_names}.union(*(_names(each) for each in code.co_consts if isinstance(each, CodeType)))


def _instructions(code: CodeType, docstring: str | None = None) -> str:
    """A function's compiled code and constants, without its docstring."""
    constants = [_constant(each) for each in code.co_consts if each is not docstring]
    return "\0".join([code.co_code.hex(), repr(code.co_names), *constants])


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _instructions(value)
    # The order of a set of strings differs from process to process.
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)


@cache
def _is_user_code(module: str) -> bool:
    """Whether a module is neither installed nor of the standard library."""
    top = module.partition(".")[0]
    if top == "__main__" or top in sys.stdlib_module_names:
        return top == "__main__"  # a notebook's cells or a script, wherever what started them is installed
    place = getattr(sys.modules.get(top), "__file__", None)
    paths = sysconfig.get_paths()
    return not (place and any(Path(place).is_relative_to(paths[name]) for name in ("stdlib", "purelib", "platlib")))


def file_digests(thing: Any) -> dict[str, str]:
    """Each file, or prepared folder, that a field of a configuration object names -> the digest of what lies there."""
    texts = {str(each) for each in parts(thing) if isinstance(each, (str, Path))}
    texts = {text for text in texts if 0 < len(text) < 1000 and "\n" not in text and "\0" not in text}
    found = {text: content_digest(Path(text)) for text in sorted(texts)}
    return {text: digest for text, digest in found.items() if digest}


def content_digest(path: Path) -> str:
    """The digest of a file, or of a prepared folder's manifest, which holds that of every file; "" of anything else."""
    with suppress(OSError):  # a name that is too long
        path = path / "manifest.json" if path.is_dir() else path
        if path.is_file():
            status = path.stat()
            if status.st_size > LARGE:
                return _hash(f"{status.st_size} {status.st_mtime_ns}")
            return hashlib.sha256(path.read_bytes()).hexdigest()
    return ""


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


def parts(thing: Any) -> Iterator[Any]:
    """A configuration object and all that it holds."""
    yield thing
    if is_dataclass(thing) and not isinstance(thing, type):
        thing = [getattr(thing, field.name) for field in fields(thing)]
    if isinstance(thing, (list, tuple, dict)):
        for each in thing.values() if isinstance(thing, dict) else thing:
            yield from parts(each)


def kinds(things: Iterable[Any]) -> Iterator[type | FunctionType]:
    """The classes of configuration objects and of what they hold, and the functions and classes that they hold."""
    for each in parts([*things]):
        if isinstance(each, (FunctionType, type)):
            yield each
        elif is_dataclass(each):
            yield type(each)


def json_default(value: Any) -> Any:
    """What JSON has no word for."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)
