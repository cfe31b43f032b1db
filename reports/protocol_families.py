"""The protocols by family, and what can be said of them all: `notebooks/protocols.yaml`, whose words README and index share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from lib import paths
from lib.options.document import load


def words() -> dict[str, Any]:
    """All that the file says; of no families where there is none."""
    path = paths.notebooks() / "protocols.yaml"
    return load(path).data if path.exists() else {"families": [], "measured": "", "hangs_on": ""}


def families() -> list[dict[str, Any]]:
    """Each with its name, its colour, its members, what they have in common, and where to use them."""
    return words()["families"]


def members() -> list[str]:
    """Every protocol, in the families' order."""
    return [name for each in families() for name in each["members"]]


def about(measured: int, link: Callable[[str, str], str]) -> list[str]:
    """How so many protocols were measured, and what the answer hangs on; `link` makes of a text and a page what leads there."""
    told = (words()[name].format(measured=measured, all=len(members())) for name in ("measured", "hangs_on"))
    return [re.sub(r"\[([^]]+)\]\(([^)]+)\)", lambda found: link(*found.groups()), each) for each in told]
