"""The code that a run depends on: the modules of its classes and of its way through lib, and all that these import.

Followed are lib's modules and the user's, which are those that are neither installed nor the standard library. An import counts
wherever it stands in a file, in a function too, but not under TYPE_CHECKING; what is named by a string, as registries name
protocols and drivers, leads nowhere. A module counts as a whole, without its comments and docstrings. lib's packages are doors:
`from lib.cluster.slowdowns import Diurnal` leads to where Diurnal is defined, and to nothing beside it.

What is put in its place at run time, imported under a computed name, or read from a file is not seen. `lib/results/memory.py`
has the classes of notebooks, which have no file.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import sysconfig
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from lib.errors import LockstepError
from lib.results.provenance import version

LEFT_OUT = (
    *("lib.errors", "lib.paths", "lib.progress", "lib.registry", "lib.reporting", "lib.measure", "lib.options"),
    *("lib.cluster.slowdowns.reading", "lib.training.given"),
    *(f"lib.results.{name}" for name in ("closure", "files", "key", "memory", "provenance", "run")),
)
"""What says, shows, keeps or reads; what was read is in the configuration."""
ASKED = ("lib.store.checkpoint", "lib.switching", "lib.training.watch")
"""Taken only where a root lies in them: every run's code imports them, few runs go there."""
NO_NUMBERS = {"annotated_types", "pandas", "pyarrow", "pydantic", "yaml"}
"""Packages that hold or check what others compute: their versions make no other run."""
DISTRIBUTIONS = {"PIL": "pillow"}
"""Packages that are installed under another name; to look for the others' takes seconds."""
STARTED = time.time()


@dataclass(frozen=True, eq=False)
class Source:
    """A module as its file says it."""

    name: str
    path: Path
    text: str
    hash: str
    """Of its syntax tree."""
    imports: tuple[tuple[str, str | None, str], ...]
    """A module, what is imported from it (None: the module itself), and the name that it gets here."""


def of(
    roots: Collection[str], followed: Callable[[str], bool] | None = None
) -> tuple[dict[str, str], dict[str, str | None]]:
    """What modules lead to, by their names: each module's hash, and the installed packages' versions. `followed` says which
    modules are looked at, if not all that a run depends on."""
    out = (*LEFT_OUT, *(each for each in ASKED if not any(_within(root, each) for root in roots)))
    followed = followed or (lambda name: not left_out(name, out))
    found: dict[str, Source] = {}
    packages: set[str] = set()
    left: list[tuple[str, str | None]] = [(root, None) for root in roots]
    met: set[tuple[str, str | None]] = set()
    while left:
        name, inner = left.pop()
        if name in found or (name, inner) in met or not followed(name):
            continue
        met.add((name, inner))
        known = source(name)
        if known is None:
            packages.update({name.partition(".")[0]} - sys.stdlib_module_names if not own(name) else ())
        elif name.partition(".")[0] == "lib" and known.path.name == "__init__.py":
            left += [(module, what) for module, what, alias in known.imports if inner in (None, alias)]
        else:
            found[name] = known
            left += [(module, what) for module, what, _ in known.imports]
            left += [(name.rpartition(".")[0], "")] if "." in name else []  # it is imported first
    for known in found.values():
        _tell_changed(known)
    versions = {name: _version(name) for name in sorted(packages - NO_NUMBERS)}
    return {name: found[name].hash for name in sorted(found)}, versions


@cache
def whole() -> str:
    """A hash of all of lib's code and data but for what shows results: what a notebook's results may follow from."""
    package = Path(__file__).parents[1]
    code = []
    for path in sorted(package.rglob("*.py")):
        name = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        if not left_out(name):
            code.append(source(name).hash)
    data = (path for path in sorted(package.rglob("*.yaml")) if path.parent.parent.name != "reporting")
    code += [path.read_text(encoding="utf-8") for path in data]
    return hashlib.sha256("".join(code).encode()).hexdigest()


def left_out(name: str, out: tuple[str, ...] = LEFT_OUT) -> bool:
    return any(_within(name, each) for each in out)


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


_sources: dict[str, tuple[Any, Source | None]] = {}


def source(name: str) -> Source | None:
    """A module as it was when this process first asked, or loaded it anew; None for what is installed or has no file."""
    module = sys.modules.get(name)
    loaded = getattr(module, "__spec__", None) or module
    if name not in _sources or _sources[name][0] is not loaded:
        _sources[name] = loaded, _read(name, module)
    return _sources[name][1]


def _read(name: str, module: ModuleType | None) -> Source | None:
    path = _file(name) if own(name) else None
    if path is None or path.suffix != ".py":
        return None
    text = read(path)
    if module is not None and path.stat().st_mtime > STARTED and not _as_loaded(text, module):
        raise LockstepError(
            f"{path} was changed after {name} was imported: what would run is not what the file says. Restart, or "
            f"importlib.reload({name})"
        )
    tree = ast.parse(text)
    led = tuple(imports(tree, name if path.name == "__init__.py" else name.rpartition(".")[0]))
    code = hashlib.sha256(ast.dump(tree).encode()).hexdigest()
    return Source(name, path, text, code, led)


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def imports(tree: ast.Module, package: str) -> Iterator[tuple[str, str | None, str]]:
    """What a module imports; its docstrings are taken out on the way."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name, None, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                module = f"{base}.{alias.name}"
                inner = own(base) and _file(module) is not None
                yield (module, None, "") if inner else (base, alias.name, alias.asname or alias.name)
        elif not (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")):
            for part in ("body", "orelse", "handlers", "finalbody", "cases"):
                inner = getattr(node, part, None)
                if isinstance(inner, list):
                    inner[:] = [each for each in inner if not _idle(each)]
                    left += inner


def _idle(node: ast.AST) -> bool:
    """A constant that stands alone is a docstring, or nothing."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def own(name: str) -> bool:
    """Whether a module is lib's or the user's: neither installed nor of the standard library."""
    top = name.partition(".")[0]
    return top == "__main__" or _own(top)


@cache
def _own(top: str) -> bool:
    if top in sys.stdlib_module_names:
        return False
    file = _file(top)
    if file is None:  # it was made in memory
        return True
    paths = sysconfig.get_paths()
    installed = (Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return not any(file.is_relative_to(folder) for folder in installed)


def _file(name: str) -> Path | None:
    """Where a module's code is: its file, or its folder where it is a package without one. Nothing is imported for it."""
    module = sys.modules.get(name)
    above, _, last = name.rpartition(".")
    if module is not None:
        place = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
        return Path(place).resolve() if place else None
    if not above:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return None
        place = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
        return Path(place).resolve() if place else None
    package = _file(above)
    if package is None or (package.is_file() and package.name != "__init__.py"):
        return None
    folder = package if package.is_dir() else package.parent
    places = (folder / last / "__init__.py", folder / f"{last}.py", folder / last)
    return next((place for place in places if place.exists()), None)


def _as_loaded(text: str, module: ModuleType) -> bool:
    """Whether the functions in memory are those of the file."""
    written, left = set(), [compile(text, str(module.__file__), "exec", dont_inherit=True)]
    while left:
        code = left.pop()
        written.add(code)
        left += [each for each in code.co_consts if isinstance(each, CodeType)]
    things = list(vars(module).values())
    for thing in vars(module).values():
        if isinstance(thing, type) and thing.__module__ == module.__name__:
            things += vars(thing).values()
    codes = {thing.__code__ for thing in things if isinstance(thing, FunctionType)}
    return {code for code in codes if code.co_filename == module.__file__} <= written


_told: set[Source] = set()


def _tell_changed(known: Source) -> None:
    """Somebody who edits a module and trains again expects to see it."""
    if known.name.startswith("lib.") or known in _told:
        return
    with suppress(OSError):
        if read(known.path) != known.text:
            _told.add(known)
            warnings.warn(
                f"{known.path} was changed after {known.name} was imported; what is trained, and found again, is the code "
                f"as it was. Restart, or importlib.reload({known.name})",
                stacklevel=2,
            )


@cache
def _version(package: str) -> str | None:
    """Of an installed package, by the name that it is imported under."""
    found = version(DISTRIBUTIONS.get(package, package))
    return found and found.partition("+")[0]
