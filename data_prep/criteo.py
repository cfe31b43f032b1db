"""Criteo's row: a label, thirteen integers and twenty-six categories of eight hex digits, between tabs, without a header."""

from pathlib import Path

from data_prep.lines import first_line
from data_prep.parse import HEX, LABEL, NUMBER, SKIP, Layout
from lib.errors import BadOption

INTEGERS = tuple(f"I{place}" for place in range(1, 14))
CATEGORIES = tuple(f"C{place}" for place in range(1, 27))
_NAMES = ("Label", *INTEGERS, *CATEGORIES)
_KINDS = (LABEL, *[NUMBER] * 13, *[HEX] * 26)

LAYOUT = Layout(_NAMES, _KINDS, "\t")
WITH_ID = Layout(("Id", *_NAMES), (SKIP, *_KINDS), ",", ",".join(("Id", *_NAMES)).encode())
"""The form in which the Kaggle competition gave the file: commas, a header and an id."""


def layout(path: Path) -> Layout:
    """Of the two forms, the one that the first line has."""
    first = first_line(path)
    if first == WITH_ID.header:
        return WITH_ID
    if first.count(b"\t") == 39 or not first:
        return LAYOUT
    found = first[:60].decode("utf-8", "replace")
    raise BadOption(f"{path}, line 1: {found!r}; expected 40 fields between tabs: label, 13 integers, 26 categories")
