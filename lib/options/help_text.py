"""The help of a registered name, from its source: what it is, whose idea, and its options."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from lib.options.checked import shown

WIDTH, INDENT = 100, "      "


def describe(thing: Any) -> str:
    """Describe an object: its class's text, and a line for each option with its default and what it does."""
    kind = type(thing)
    about = [inspect.cleandoc(kind.__doc__ or ""), *([kind.cite] if getattr(kind, "cite", "") else [])]
    texts = dict(notes(kind))
    lines = []
    for field in fields(kind):
        lines.append(f"  {field.name} = {shown(getattr(thing, field.name))}")
        lines += textwrap.wrap(texts.get(field.name, ""), WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)
    return "\n\n".join([*about, "\n".join(["options:", *lines] if lines else ["no options"])])


def notes(kind: type) -> Iterator[tuple[str, str]]:
    """Each field of a class and of its bases with the text below it, on one line; a class's own come last."""
    for each in reversed(kind.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                yield field.target.id, " ".join(str(text.value.value).split())
