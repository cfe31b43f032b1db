"""The code that a run depends on: the definitions that its classes and its way through lib refer to, and theirs.

Files are parsed and followed by the names in them, definition by definition: lib's modules, and the user's, which are those
that are neither installed packages nor the standard library. So another protocol, another workload in the same file, a plot,
a comment or a docstring are no part of it; a rule's constant, a kernel, and a function of the user's module that a model calls
are. Names over-approximate: a local variable that is called as a function of its module is taken for it.

What the code does not name is not seen: what is put in its place at run time, found under a computed name, or read from a
file. `lib/results/memory.py` has the classes of notebooks, which have no file.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
import sysconfig
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from lib.errors import LockstepError

LEFT_OUT = (
    *("lib.errors", "lib.paths", "lib.progress", "lib.registry", "lib.reporting", "lib.measure", "lib.options"),
    *("lib.cluster.slowdowns.reading", "lib.training.given"),
    *("lib.results.closure", "lib.results.key", "lib.results.memory", "lib.results.provenance", "lib.results.run:Run"),
)
"""What says, shows, keeps or reads; what was read is in the configuration."""
ASKED = ("lib.store.checkpoint", "lib.switching", "lib.training.watch")
"""Taken only where a root lies in them: every run's code names them, few runs go there."""
NO_NUMBERS = {"pandas", "pyarrow", "pydantic", "yaml"}
"""Packages that hold or check what others compute: their versions make no other run."""
DISTRIBUTIONS = {"sklearn": "scikit-learn"}
"""Packages that are installed under another name; to look for the others' takes seconds."""
STARTED = time.time()

Chain = tuple[str, ...]
"""A dotted name: `torch.nn.Module`."""


@dataclass(eq=False)
class Statement:
    """A statement of a module's top level."""

    node: ast.stmt
    binds: frozenset[str]

    @cached_property
    def hash(self) -> str:
        for node in ast.walk(self.node):
            body = getattr(node, "body", None)
            if isinstance(body, list):  # a constant that stands alone is a docstring, or nothing
                body[:] = [each for each in body if not _idle(each)]
        return hashlib.sha256(ast.dump(self.node).encode()).hexdigest()

    @cached_property
    def names(self) -> frozenset[Chain]:
        """What it refers to; annotations say nothing of what is done."""
        found: set[Chain] = set()
        left = [self.node]
        while left:
            node = left.pop()
            if chain := _chain(node):
                found.add(chain)
                continue
            skipped = ("annotation", "returns")
            for name, value in ast.iter_fields(node):
                if name not in skipped:
                    left += [
                        each for each in (value if isinstance(value, list) else [value]) if isinstance(each, ast.AST)
                    ]
        return frozenset(found)


@dataclass(eq=False)
class Source:
    """A module as its file says it."""

    name: str
    path: Path
    text: str
    stamp: tuple[int, int]
    bound: dict[str, list[Statement]] = field(default_factory=dict)
    """Name -> the statements that bind it."""
    imports: dict[str, set[tuple[str, str | None]]] = field(default_factory=dict)
    """Name -> the modules, or the names in modules, that it is imported from, anywhere in the file."""
    effects: list[Statement] = field(default_factory=list)
    """Statements that bind no name: they are carried out whatever is used."""
    needs: set[str] = field(default_factory=set)
    """Modules whose effects are carried out with its own."""

    def __post_init__(self):
        tree = ast.parse(self.text)
        package = self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]
        for node in tree.body:
            if _for_types(node) or _idle(node):
                continue
            self._import(node, package)
            if isinstance(node, ast.Import | ast.ImportFrom):
                continue
            statement = Statement(node, frozenset(_binds(node)))
            for name in statement.binds:
                self.bound.setdefault(name, []).append(statement)
            if not statement.binds:
                self.effects.append(statement)

    def _import(self, statement: ast.stmt, package: str) -> None:
        inner: list[ast.AST] = [statement]
        while inner:
            node = inner.pop()
            if _for_types(node):
                continue
            if isinstance(node, ast.Import):
                for alias in node.names:
                    target = alias.name if alias.asname else alias.name.partition(".")[0]
                    self.imports.setdefault(alias.asname or target, set()).add((target, None))
                    self.needs.add(alias.name)
            elif isinstance(node, ast.ImportFrom):
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                self.needs.add(base)
                for alias in node.names:
                    # What a package imports from itself is a module in it.
                    target = (f"{base}.{alias.name}", None) if base == self.name else (base, alias.name)
                    self.imports.setdefault(alias.asname or alias.name, set()).add(target)
            else:
                kinds = ast.stmt | ast.ExceptHandler | ast.match_case
                inner += [each for each in ast.iter_child_nodes(node) if isinstance(each, kinds)]

    @property
    def statements(self) -> Iterator[Statement]:
        for statements in self.bound.values():
            yield from statements
        yield from self.effects


def _idle(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and getattr(node.test, "id", getattr(node.test, "attr", "")) == "TYPE_CHECKING"


def _binds(node: ast.AST) -> Iterator[str]:
    """The names that a statement binds where it stands."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Store):
            yield node.id
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif not isinstance(node, ast.Lambda | ast.comprehension):
        for inner in ast.iter_child_nodes(node):
            yield from _binds(inner)


def _chain(node: ast.AST) -> Chain:
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else ()


_sources: dict[str, tuple[Any, Source | None]] = {}
_found: dict[frozenset[tuple[str, str]], tuple[dict[str, Source], Closure]] = {}


@dataclass(frozen=True)
class Closure:
    """What some definitions lead to."""

    code: Mapping[str, str]
    """`module:name` -> the hashes of the statements that bind it; `module:`, of those that bind nothing."""
    packages: Mapping[str, str | None]
    """Installed packages that it refers to -> their versions."""


def of(roots: Iterable[tuple[str, str]]) -> Closure:
    """The closure of names in modules; ("module", "") is all of one. What was found before is found at once, unless a module has
    been loaded anew."""
    asked = frozenset(roots)
    sources, found = _found.get(asked, ({}, None))
    if found is None or any(source(name) is not known for name, known in sources.items()):
        walk = _Walk({module for module, _ in asked})
        for module, name in asked:
            walk.take(module, (name,) if name else ())
        found = walk.closure()
        sources = walk.sources
        _found[asked] = sources, found
    for known in sources.values():
        _tell_changed(known)
    return found


def source(name: str) -> Source | None:
    """The code of a module as it was when this process first asked, or loaded it anew; None for what is installed."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None) or module
    if name not in _sources or _sources[name][0] is not spec:
        _sources[name] = spec, _read(name, module)
    return _sources[name][1]


def own(name: str) -> bool:
    """Whether a module is lib's or the user's: neither installed nor of the standard library."""
    top = name.partition(".")[0]
    return top == "__main__" or _own(top)


class _Walk:
    def __init__(self, asked: set[str]) -> None:
        self._out = (*LEFT_OUT, *(each for each in ASKED if not any(_within(name, each) for name in asked)))
        self.sources: dict[str, Source] = {}
        self._statements: dict[Statement, str] = {}
        self._taken: set[tuple[str, Chain]] = set()
        self._packages: set[str] = set()
        self._left: list[tuple[Source, Statement]] = []

    def closure(self) -> Closure:
        while self._left:
            module, statement = self._left.pop()
            for chain in statement.names:
                self._follow(module, chain)
        code: dict[str, list[str]] = {}
        for statement, place in self._statements.items():
            code.setdefault(place, []).append(statement.hash)
        packages = {name: _version(name) for name in sorted(self._packages - NO_NUMBERS)}
        return Closure({place: "".join(sorted(code[place])) for place in sorted(code)}, packages)

    def take(self, name: str, chain: Chain) -> None:
        """What `module.a.b` stands for, seen from outside; a module as a whole where the chain is empty."""
        if (name, chain) in self._taken or left_out(name, chain, self._out):
            return
        self._taken.add((name, chain))
        module = source(name)
        if module is None:
            top = name.partition(".")[0]
            if top not in sys.stdlib_module_names and not own(name):
                self._packages.add(top)
            return
        self._touch(module)
        if not chain:
            for each in {*module.bound, *module.imports}:
                self._follow(module, (each,))
        elif not self._follow(module, chain):
            inner = f"{name}.{chain[0]}"
            if source(inner) is not None:
                self.take(inner, chain[1:])
            elif "__getattr__" in module.bound:
                value = getattr(importlib.import_module(name), chain[0], None)
                if isinstance(value, ModuleType):
                    self.take(value.__name__, chain[1:])
                elif hasattr(value, "__qualname__"):
                    module, name = place(value)
                    self.take(module, (name,))

    def _follow(self, module: Source, chain: Chain) -> bool:
        """Take what a name means inside a module; False where it is none of the module's."""
        name, rest = chain[0], chain[1:]
        statements, imports = module.bound.get(name), module.imports.get(name)
        for statement in statements or ():
            self._visit(module, statement)
        for target, attribute in imports or ():
            self.take(target, rest if attribute is None else (attribute, *rest))
        if statements or imports:
            return True
        for target, _ in module.imports.get("*", ()):
            if (starred := source(target)) is not None and name in {*starred.bound, *starred.imports}:
                self.take(target, chain)
                return True
        return False

    def _visit(self, module: Source, statement: Statement) -> None:
        if statement not in self._statements:
            self._statements[statement] = f"{module.name}:{min(statement.binds, default='')}"
            self._left.append((module, statement))

    def _touch(self, module: Source) -> None:
        """What importing the module does."""
        if module.name in self.sources:
            return
        self.sources[module.name] = module
        for statement in module.effects:
            self._visit(module, statement)
        above = module.name.rpartition(".")[0]
        for name in {*module.needs, above} - {""}:
            if not left_out(name, (), self._out) and (needed := source(name)) is not None:
                self._touch(needed)


def place(thing: Any) -> tuple[str, str]:
    """Where a class or a function is defined."""
    return thing.__module__ or "", thing.__qualname__.partition(".")[0]


def left_out(name: str, chain: Chain = (), out: tuple[str, ...] = LEFT_OUT) -> bool:
    return any(_within(name, each) for each in out) or (bool(chain) and f"{name}:{chain[0]}" in out)


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


@cache
def _own(top: str) -> bool:
    if top in sys.stdlib_module_names:
        return False
    if top not in sys.modules and not _installed_or_filed(top):
        return True  # it was made in memory
    place = _place_of(top)
    return place is not None and not any(place.is_relative_to(folder) for folder in _installed())


def _installed_or_filed(top: str) -> bool:
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False


@cache
def _installed() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return tuple(Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def _place_of(name: str) -> Path | None:
    """A module's file, or its folder where it is a package without one."""
    module = sys.modules.get(name)
    file, folders = getattr(module, "__file__", None), getattr(module, "__path__", None)
    if module is None:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, AttributeError, ValueError):
            return None
        file, folders = (spec.origin, spec.submodule_search_locations) if spec and spec.loader else (None, None)
    found = file or next(iter(folders or ()), None)
    return Path(found).resolve() if found and (Path(found).suffix == ".py" or not file) else None


def _read(name: str, module: ModuleType | None) -> Source | None:
    if not own(name) or (path := _place_of(name)) is None:
        return None
    if path.is_dir():
        return Source(name, path / "__init__.py", "", (0, 0))
    status = path.stat()
    made = Source(name, path, read(path), (status.st_mtime_ns, status.st_size))
    if module is not None and status.st_mtime > STARTED and not _as_loaded(made, module):
        raise LockstepError(
            f"{path} was changed after {name} was imported: what would run is not what the file says. Restart, or "
            f"importlib.reload({name})"
        )
    return made


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _as_loaded(made: Source, module: ModuleType) -> bool:
    """Whether the functions in memory are those of the file."""
    written, left = set(), [compile(made.text, str(made.path), "exec", dont_inherit=True)]
    while left:
        code = left.pop()
        written.add(code)
        left += [each for each in code.co_consts if isinstance(each, CodeType)]
    for name in made.bound:
        thing = vars(module).get(name)
        things = vars(thing).values() if isinstance(thing, type) and thing.__module__ == made.name else [thing]
        for each in things:
            mine = isinstance(each, FunctionType) and each.__code__.co_filename == str(module.__file__)
            if mine and each.__code__ not in written:
                return False
    return True


_told: set[Source] = set()


def _tell_changed(known: Source) -> None:
    """Somebody who edits a module and trains again expects to see it."""
    if known.name.startswith("lib.") or known in _told or not known.stamp[0]:
        return
    with suppress(OSError):
        status = known.path.stat()
        if (status.st_mtime_ns, status.st_size) != known.stamp and read(known.path) != known.text:
            _told.add(known)
            warnings.warn(
                f"{known.path} was changed after {known.name} was imported; what is trained, and found again, is the code "
                f"as it was. Restart, or importlib.reload({known.name})",
                stacklevel=2,
            )


@cache
def _version(package: str) -> str | None:
    """Of an installed package, by the name that it is imported under."""
    with suppress(PackageNotFoundError):
        return version(DISTRIBUTIONS.get(package, package)).partition("+")[0]
    return getattr(sys.modules.get(package), "__version__", None)
