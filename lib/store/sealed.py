"""JSON files that tell whether they are what was written: the field "seal" is a checksum of the others."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_hexdigest

from lib.errors import Damaged


def text(data: dict[str, Any], default: Callable[[Any], Any] | None = None) -> str:
    """What a file of it holds; `default` is as json.dumps takes it."""
    plain = json.loads(json.dumps(data, default=default))
    return json.dumps({**plain, "seal": _json_checksum(plain)}, indent=1) + "\n"


def load(path: Path) -> dict[str, Any]:
    """What was written, or `Damaged` with the file's name."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        whole = data.pop("seal") == _json_checksum(data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{path} cannot be read: {error!r}") from error
    if not whole:
        raise Damaged(f"{path} is damaged: it is not what was written")
    return data


def _json_checksum(plain: dict[str, Any]) -> str:
    return xxh3_64_hexdigest(json.dumps(plain).encode())
