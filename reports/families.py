"""The families of protocols: `notebooks/protocols.yaml`, with every registered protocol in one of them."""

from typing import Any

from lib import paths
from lib.options.yaml_source import load
from lib.protocols import ALL


def protocols() -> dict[str, Any]:
    """`notebooks/protocols.yaml`: the families, and how README and index describe the measurement."""
    path = paths.notebooks() / "protocols.yaml"
    return load(path) if path.exists() else {"families": [], "measured": "", "same": "", "depends_on": ""}


def families() -> list[dict[str, Any]]:
    """Each with its name, its colour, its members, and what they have in common. A registered protocol that the file does not
    name joins the family that takes its contract."""
    found = [each | {"members": [*each["members"]]} for each in protocols()["families"]]
    named = {name for each in found for name in each["members"]} | {"frozen"}
    for each in found:
        each["members"] += [
            name for name, rule in ALL.items() if name not in named and rule.family == each.get("takes")
        ]
    return found


def members() -> list[str]:
    """Every protocol, in the families' order."""
    return [name for each in families() for name in each["members"]]
