"""`import lockstep` is `import lib`, under the name of the distribution: the same modules, each of them once."""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import lib

if not Path(lib.__file__ or "none").with_name("command_line.py").exists():  # Python looks into the current folder first
    raise ImportError(f"{lib.__file__} is another package called lib; start Python in a folder that has none")


class Alias(MetaPathFinder, Loader):
    """Imports `lockstep.x` as the module `lib.x`."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name.startswith("lockstep.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module("lib" + spec.name.removeprefix("lockstep"))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = module.__spec__.loader_state  # the import system has put the alias's in its place


sys.meta_path.insert(0, Alias())
sys.modules["lockstep"] = lib
