"""What stands behind a registered name, from its source: what it is, whose idea, and its options, as a reader would find them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from lib.options.checked import shown

WIDE, INDENT = 100, "      "


def described(thing: Any) -> str:
    """An object that was made of a name: its class's text, and a line for each option with its default and what it says."""
    kind = type(thing)
    about = [inspect.cleandoc(kind.__doc__ or ""), *([kind.cite] if getattr(kind, "cite", "") else [])]
    notes = dict(note for each in reversed(kind.__mro__[:-1]) for note in _notes(each))
    lines = []
    for field in fields(kind):
        if field.init:
            lines.append(f"  {field.name} = {shown(getattr(thing, field.name))}")
            lines += textwrap.wrap(notes.get(field.name, ""), WIDE, initial_indent=INDENT, subsequent_indent=INDENT)
    return "\n\n".join([*about, "\n".join(["options:", *lines] if lines else ["no options"])])


def _notes(kind: type) -> Iterator[tuple[str, str]]:
    """What stands below each field of the class, on one line."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            yield field.target.id, " ".join(str(text.value.value).split())
