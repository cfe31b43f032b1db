"""Every class of options in lib."""

import importlib
import pkgutil
from collections.abc import Iterator

import lib
from lib.options.checked import Checked


def kinds() -> set[type[Checked]]:
    for module in pkgutil.walk_packages(lib.__path__, "lib."):
        if module.name != "lib.__main__":
            importlib.import_module(module.name)
    return {kind for kind in _below(Checked) if kind.__module__.startswith("lib.")}


def _below(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)
