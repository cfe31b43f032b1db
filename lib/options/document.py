"""YAML as everybody here reads it: 1e-3 is a number, a date is text, a name stands once, errors name file, line and column."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lib.errors import BadField, BadOption
from lib.options.checked import Checked

Steps = tuple[Hashable, ...]


def _kind(base: type) -> type:
    """YAML 1.1, but for what it would take for a date, and for the numbers that it would take for text."""
    forms = base.yaml_implicit_resolvers.items()
    kept = {first: [(tag, form) for tag, form in known if not tag.endswith(":timestamp")] for first, known in forms}
    kind = type("Loader", (base,), {"yaml_implicit_resolvers": kept})
    number = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
    kind.add_implicit_resolver("tag:yaml.org,2002:float", number, [*"-+.0123456789"])
    return kind


_FAST, _EXACT = _kind(getattr(yaml, "CSafeLoader", yaml.SafeLoader)), _kind(yaml.SafeLoader)
"""In C, where PyYAML was built with it, which is ten times as fast; in Python, which says better where something is wrong."""


@dataclass(frozen=True)
class Document:
    """What a file holds, and where in it each part stands."""

    source: str
    data: Any
    marks: dict[Steps, yaml.Mark]

    def where(self, *steps: Hashable) -> str:
        """File, line and column of a part, or of the nearest that it is in."""
        while steps and steps not in self.marks:
            steps = steps[:-1]
        mark = self.marks.get(steps)
        return f"{self.source}:{mark.line + 1}:{mark.column + 1}" if mark else self.source

    def read(self, kind: type[Checked], *steps: Hashable) -> Any:
        """The part at these steps as an object."""
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
    """A file's only document."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(f"{path}: cannot be read as text: {error}") from error
    return parse(text, str(path))


def parse(text: str, source: str) -> Document:
    try:
        return _document(_FAST, text, source)
    except (yaml.YAMLError, TypeError, ValueError, RecursionError):
        pass
    try:
        return _document(_EXACT, text, source)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        raise BadOption(f"{where}: not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        raise BadOption(f"{source}: not YAML: {' '.join(str(error).split())}") from error


def _document(kind: type, text: str, source: str) -> Document:
    loader = kind(text)
    node = loader.get_single_node()
    marks = dict(_marks(node, ())) if node else {}
    return Document(source, loader.construct_document(node) if node else None, marks)


def value(text: str) -> Any:
    """What a word of the command line stands for: 32 a number, [64, 32] a list, {name: adam} a mapping, true a truth value."""
    return parse(text, f"cannot read {text!r}").data


def _marks(node: yaml.Node, steps: Steps) -> Iterator[tuple[Steps, yaml.Mark]]:
    """Where each part begins: a mapping's values at their names."""
    yield steps, node.start_mark
    if isinstance(node, yaml.SequenceNode):
        for place, item in enumerate(node.value):
            yield from _marks(item, (*steps, place))
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(None, None, "a name is expected here", key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(None, None, f"{key.value!r} stands here twice", key.start_mark)
            seen.add(key.value)
            yield from _marks(item, (*steps, key.value))
            yield (*steps, key.value), key.start_mark
