"""A rule, a workload, a cluster or a schedule of the user's own Python file, named on the command line as a registered one is."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from lib.errors import BadOption, unknown


def is_file(text: str) -> bool:
    """Whether it stands for something in a Python file of the user's: mine.py, mine.py:Mine."""
    return text.partition(":")[0].endswith(".py")


def load(text: str, what: str, kinds: type | tuple[type, ...]) -> Any:
    """What a user's own file holds: the class or the object after the colon, or the only class there that is of these kinds."""
    name, _, wanted = text.partition(":")
    path = Path(name).expanduser().resolve()
    module = _module(path)
    if wanted:
        if not hasattr(module, wanted):
            raise unknown(f"{what} of {name}:", wanted, [each for each in vars(module) if not each.startswith("_")])
        found = getattr(module, wanted)
        if not isinstance(found, kinds) and not (isinstance(found, type) and issubclass(found, kinds)):
            raise BadOption(f"{text}: {wanted} is no {what}")
        return found
    own = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
    own = [each for each in own if issubclass(each, kinds)]
    if len(own) != 1:
        those = " or ".join(f"{name}:{each.__name__}" for each in own) or f"{name} has none"
        raise BadOption(f"{name}: which {what}? {those}")
    return own[0]


def _module(path: Path) -> Any:
    """Import the file as a module of its own name; modules in its folder can be imported by this process and those it starts."""
    known = sys.modules.get(path.stem)
    if known is not None:
        if getattr(known, "__file__", None) and Path(known.__file__).resolve() == path:
            return known
        raise BadOption(f"{path}: there is another module called {path.stem!r}; give the file another name")
    if not path.is_file():
        raise BadOption(f"{path}: there is no such file")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[path.stem]
        raise BadOption(f"{path}: cannot be imported: {type(error).__name__}: {error}") from error
    return module
