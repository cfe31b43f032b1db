"""YAML as all files and options here are read: 1e-3 is a number, a date is text, a name stands once in a mapping.

Errors of the syntax name the file, the line and the column; those of a field name the file and the field's path.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from lib.errors import BadField, BadOption
from lib.options.checked import Checked

MOST_VALUES = 100_000
"""More values are refused: a few lines of aliases may stand for billions."""


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """YAML 1.1 without dates, and with numbers as Python writes them: 010 and 1:30 are none."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, form) for tag, form in known if tag.rpartition(":")[2] not in ("timestamp", "int", "float")]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_WHOLE = r"(?:0|[1-9](?:_?\d)*)"
for _tag, _form in {
    "int": _WHOLE,
    "float": rf"(?:{_WHOLE}\.\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|{_WHOLE}[eE][-+]?\d+|\.(?:inf|nan))",
}.items():
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"[-+]?{_form}$"), [*"-+.0123456789"])


def load(path: str | Path) -> Any:
    """What a file's only document holds."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(f"{path}: cannot be read as text: {error}") from error
    return parse(text, str(path))


def parse(text: str, source: str) -> Any:
    """What a text's only document holds; errors name `source`."""
    try:
        loader = Loader(text)
        if node := loader.get_single_node():
            _check(node, {})
        return loader.construct_document(node) if node else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        raise BadOption(f"{where}: not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        raise BadOption(f"{source}: not YAML: {' '.join(str(error).split())}") from error


def value(text: str) -> Any:
    """What a word of the command line stands for: 32 a number, [64, 32] a list, {name: adam} a mapping, true a truth value."""
    return parse(text, f"cannot read {text!r}")


def read(kind: type[Checked], data: Any, source: str | Path) -> Any:
    """Make an object from a file's data; errors name the file."""
    try:
        return kind.read(data)
    except BadField as error:
        raise BadOption(f"{source}: {error.place or kind.error_label()}{error.problem}") from error
    except BadOption as error:
        raise BadOption(f"{source}: {error}") from error


def _check(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Count the values that a node stands for, aliases written out. Refuse too many, what stands in itself, and names of a
    mapping that stand twice or are no text."""
    if id(node) not in sizes:
        sizes[id(node)], names = MOST_VALUES, set()  # as long as it is not counted: what stands in itself has no end
        size = 1
        for item in node.value if isinstance(node, yaml.CollectionNode) else ():
            key, part = item if isinstance(item, tuple) else (None, item)
            if key is not None and (not isinstance(key, yaml.ScalarNode) or key.value in names):
                named = isinstance(key, yaml.ScalarNode)
                problem = f"{key.value!r} stands here twice" if named else "a name is expected here"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            names |= {key and key.value}
            size += _check(part, sizes)
        if size > MOST_VALUES:
            problem = f"written out, this would be more than {MOST_VALUES:,} values"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        sizes[id(node)] = size
    return sizes[id(node)]
