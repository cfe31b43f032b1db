"""YAML as all files and options here are read: 1e-3 is a number, a date is text, a name stands once in a mapping.

Errors of the syntax name the file, the line and the column; those of a field name the file and the field's path.
"""

import re
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
            _check(node)
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
        raise BadOption(f"{source}: {error.place or kind.owner()}{error.problem}") from error
    except BadOption as error:
        raise BadOption(f"{source}: {error}") from error


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
