"""The strict reader of `claims.yaml` and `calibrations.yaml`: the first fault is an error that names file, record and field."""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lib import paths
from lib.errors import BadField, BadOption
from lib.options import yaml_source
from reports.claims.calibration import Calibration
from reports.claims.claim import BadClaim, Claim


def load() -> dict[str, Claim]:
    """Every claim of the notebooks by id."""
    claims: dict[str, Claim] = {}
    for path, prefix in _files("claims.yaml"):
        for claim in _load(path, prefix, Claim):
            if claim.id in claims:
                raise BadClaim(f"{path}: claim {claim.id!r}: the id is taken by {claims_file(claims[claim.id])}")
            claims[claim.id] = claim
    return claims


def of_notebook(notebook: str) -> list[Claim]:
    """The claims that a notebook judges."""
    return [claim for claim in load().values() if claim.notebook == notebook]


def calibrations() -> list[Calibration]:
    """Every record of what a constant was fitted to."""
    return [record for path, prefix in _files("calibrations.yaml") for record in _load(path, prefix, Calibration)]


def claims_file(claim: Claim) -> str:
    """The path of a claim's file, from the repository's root."""
    return "/".join(filter(None, ("notebooks", claim.folder, "claims.yaml")))


def parsed(text: str, prefix: str) -> Mapping[str, Claim]:
    """All claims of a file's text by id; none where the text has a fault."""
    try:
        return {claim.id: claim for claim in _records(text, prefix, Claim, "claims.yaml")}
    except BadClaim:
        return {}


def _files(name: str) -> Iterator[tuple[Path, str]]:
    """The files of a name, each with the prefix of its notebooks' names."""
    folder = paths.notebooks()
    for path in sorted([*folder.glob(name), *folder.glob(f"*/{name}")]):
        yield path, "" if path.parent == folder else f"{path.parent.name}/"


def _load(path: Path, prefix: str, kind: type[Claim | Calibration]) -> tuple[Any, ...]:
    try:
        return _records(path.read_text(encoding="utf-8"), prefix, kind, str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise BadClaim(f"{path}: cannot be read as text: {error}") from error


@cache
def _records(text: str, prefix: str, kind: type[Claim | Calibration], source: str) -> tuple[Any, ...]:
    """A text's records, with their folder. Kept, since an index asks for every claim once for each page."""
    try:
        data = yaml_source.parse(text, source)
    except BadOption as error:
        raise BadClaim(f'{error} (is a relation such as ">=" in quotes?)') from error
    return tuple(_with_folder(prefix, record) for record in _read(data, kind, source))


def _with_folder(prefix: str, record: Claim | Calibration) -> Claim | Calibration:
    if isinstance(record, Claim):
        return dataclasses.replace(record, notebook=prefix + record.notebook)
    return dataclasses.replace(record, notebooks=tuple(prefix + name for name in record.notebooks))


def _read(data: Any, kind: type[Claim | Calibration], source: str) -> Iterator[Any]:
    """A file's records, checked; every error names file, record and field."""
    if not isinstance(data or [], list):
        raise BadClaim(f"{source}: a list is expected, in which each item starts with '-'")
    first, name = next(iter(kind.__dataclass_fields__)), kind.__name__.lower()
    for place, item in enumerate(data or [], 1):
        if not isinstance(item, dict):
            raise BadClaim(f"{source}: item {place}: a {name} is a mapping that starts with '{first}:', not {item!r}")
        try:
            if empty := [field for field, value in item.items() if value is None]:
                raise BadField(name, (empty[0],), ": is empty; give it a value or leave it out")
            yield kind.read(item)
        except BadField as error:
            record = repr(item[first]) if first in item else f"{place} (no {first})"
            raise BadClaim(f"{source}: {name} {record}: {error.place}{error.problem}") from error
