"""YAML as all files and options here are read: 1e-3 is a number, a date is text, a name stands once in a mapping.

Errors name the file, the line and the column.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lib.errors import BadField, BadOption
from lib.options.checked import Checked


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """YAML 1.1 without dates, and with numbers as Python writes them."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, form) for tag, form in known if not tag.endswith(":timestamp")]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), [*"-+.0123456789"]
)


@dataclass(frozen=True)
class Document:
    """What a file holds, and where in it each part stands."""

    source: str
    data: Any
    node: yaml.Node | None

    def where(self, *steps: Hashable) -> str:
        """File, line and column of a part, or of the nearest part around it."""
        node, mark = self.node, self.node and self.node.start_mark
        for step in steps:
            parts = {}
            if isinstance(node, yaml.MappingNode):
                parts = {key.value: (key, item) for key, item in node.value}
            elif isinstance(node, yaml.SequenceNode):
                parts = {place: (item, item) for place, item in enumerate(node.value)}
            if step not in parts:
                break
            start, node = parts[step]
            mark = start.start_mark
        return f"{self.source}:{mark.line + 1}:{mark.column + 1}" if mark else self.source

    def read(self, kind: type[Checked], *steps: Hashable) -> Any:
        """Make an object from the part at these steps."""
        data = self.data
        for step in steps:
            data = data[step]
        try:
            return kind.read(data)
        except BadField as error:
            raise BadOption(
                f"{self.where(*steps, *error.path)}: {error.place or kind.owner()}{error.problem}"
            ) from error
        except BadOption as error:
            raise BadOption(f"{self.where(*steps)}: {error}") from error


def load(path: str | Path) -> Document:
    """Read a file's only document."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(f"{path}: cannot be read as text: {error}") from error
    return parse(text, str(path))


def parse(text: str, source: str) -> Document:
    """Read a text's only document; errors name `source`."""
    try:
        loader = Loader(text)
        if node := loader.get_single_node():
            _check(node)
        return Document(source, loader.construct_document(node) if node else None, node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        raise BadOption(f"{where}: not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        raise BadOption(f"{source}: not YAML: {' '.join(str(error).split())}") from error


def value(text: str) -> Any:
    """What a word of the command line stands for: 32 a number, [64, 32] a list, {name: adam} a mapping, true a truth value."""
    return parse(text, f"cannot read {text!r}").data


def _check(node: yaml.Node) -> None:
    """Refuse what stands in itself, and names of a mapping that stand twice or are no text."""
    names = set()
    for item in node.value if isinstance(node, yaml.CollectionNode) else ():
        key, part = item if isinstance(item, tuple) else (None, item)
        if key is not None and (not isinstance(key, yaml.ScalarNode) or key.value in names):
            problem = (
                f"{key.value!r} stands here twice" if isinstance(key, yaml.ScalarNode) else "a name is expected here"
            )
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
        names |= {key and key.value}
        _check(part)
