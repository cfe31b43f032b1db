"""Names and the classes that they stand for, imported with their first use: names are checked and listed without torch."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from lib.errors import unknown, unknown_option


class Registry(Mapping[str, type]):
    """Name -> class. Iteration, length and `in` import nothing."""

    def __init__(self, what: str, homes: Mapping[str, str]):
        """`what` the names stand for, in a word; name -> `module:Class`."""
        self.what, self.homes = what, homes

    def __getitem__(self, name: str) -> type:
        if name not in self.homes:
            raise unknown(self.what, name, self.homes)
        module, _, kind = self.homes[name].partition(":")
        return getattr(importlib.import_module(module), kind)

    def __contains__(self, name: object) -> bool:
        return name in self.homes

    def __iter__(self) -> Iterator[str]:
        return iter(self.homes)

    def __len__(self) -> int:
        return len(self.homes)

    def sentence(self, name: str) -> str:
        """The first sentence of the class's docstring, from its source."""
        module, _, kind = self.homes[name].partition(":")
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
