"""What a name on the command line or in a script stands for: a registered class, or one of the user's own Python file.

A registered class is imported with its first use: names are checked and listed without torch.
"""

import ast
import importlib
import importlib.util
import inspect
import sys
import textwrap
from collections import UserDict
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from lib.errors import BadOption, unknown, unknown_option

WIDTH, INDENT = 100, "      "


class Registry(UserDict[str, type]):
    """Name -> class. Iteration, length and `in` import nothing."""

    def __init__(self, what: str, homes: Mapping[str, str]):
        """`what` the names stand for, in a word; name -> `module:Class`."""
        super().__init__(homes)
        self.what = what

    def __getitem__(self, name: str) -> type:
        if name not in self:
            raise unknown(self.what, name, self)
        module, _, kind = self.data[name].partition(":")
        return getattr(importlib.import_module(module), kind)

    def sentence(self, name: str) -> str:
        """The first sentence of the class's docstring, from its source."""
        module, _, kind = self.data[name].partition(":")
        path = Path(importlib.util.find_spec(module.partition(".")[0]).origin).parent
        tree = ast.parse(path.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text(encoding="utf-8"))
        (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind)
        return " ".join(ast.get_docstring(found).split(". ")[0].split("\n\n")[0].split()).rstrip(".") + "."

    def make(self, name: str, **options: Any) -> Any:
        """An instance; an unknown name or option is an error that names the nearest valid ones."""
        kind = self[name]
        valid = [field.name for field in fields(kind)]
        for option in options:
            if option not in valid:
                raise unknown_option(f"{self.what} {name!r}", option, valid)
        return kind(**options)


def is_user_file(text: str) -> bool:
    """Whether it stands for something in a Python file of the user's: mine.py, mine.py:Mine."""
    return text.partition(":")[0].endswith(".py")


def load_from_user_file(text: str, what: str, kinds: type | tuple[type, ...]) -> Any:
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
        return _check_complete(found, text)
    own = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
    own = [each for each in own if issubclass(each, kinds)]
    if len(own) != 1:
        those = " or ".join(f"{name}:{each.__name__}" for each in own) or f"{name} has none"
        raise BadOption(f"{name}: which {what}? {those}")
    return _check_complete(own[0], text)


def _check_complete(found: Any, text: str) -> Any:
    """What was found; an error where it is a class that lacks a method of its contract."""
    if isinstance(found, type) and (lacking := getattr(found, "__abstractmethods__", ())):
        base = next(each for each in found.__mro__ if min(lacking) in vars(each))
        raise BadOption(f"{text}: {found.__name__} has no {', '.join(sorted(lacking))}, as {base.__name__} demands")
    return found


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
    except (Exception, SystemExit) as error:
        del sys.modules[path.stem]
        raise BadOption(f"{path}: cannot be imported: {type(error).__name__}: {error}") from error
    return module


def help_text(thing: Any) -> str:
    """Describe an object: its class's text, and a line for each option with its default and what it does."""
    from lib.options.checked import show_value  # a list of names does not need pydantic

    kind = type(thing)
    about = [inspect.cleandoc(kind.__doc__ or ""), *([kind.cite] if getattr(kind, "cite", "") else [])]
    texts = dict(field_descriptions(kind))
    lines = []
    for field in fields(kind):
        lines.append(f"  {field.name} = {show_value(getattr(thing, field.name))}")
        lines += textwrap.wrap(texts.get(field.name, ""), WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)
    return "\n\n".join([*about, "\n".join(["options:", *lines] if lines else ["no options"])])


def field_descriptions(kind: type) -> Iterator[tuple[str, str]]:
    """Each field of a class and of its bases with the text below it, on one line; a class's own come last."""
    for each in reversed(kind.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                yield field.target.id, " ".join(str(text.value.value).split())
