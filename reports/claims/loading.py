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
    origins: dict[str, Path] = {}
    for path, prefix in _files("claims.yaml"):
        for claim in _load(path, Claim):
            if claim.id in claims:
                raise BadClaim(f"{path}: claim {claim.id!r}: the id is taken by {origins[claim.id]}")
            claims[claim.id], origins[claim.id] = _with_folder(prefix, claim), path
    return claims


def of_notebook(notebook: str) -> list[Claim]:
    """The claims that a notebook judges."""
    return [claim for claim in load().values() if claim.notebook == notebook]


def calibrations() -> list[Calibration]:
    """Every record of what a constant was fitted to."""
    return [
        dataclasses.replace(record, notebooks=tuple(prefix + name for name in record.notebooks))
        for path, prefix in _files("calibrations.yaml")
        for record in _load(path, Calibration)
    ]


def claims_file(claim: Claim) -> str:
    """The path of a claim's file, from the repository's root."""
    return "/".join(filter(None, ("notebooks", claim.folder, "claims.yaml")))


@cache
def parsed(text: str, prefix: str) -> Mapping[str, Claim]:
    """All claims of a file's text by id; none where the text has a fault."""
    try:
        claims = _read(yaml_source.parse(text, "claims.yaml"), Claim, "claims.yaml")
        return {claim.id: _with_folder(prefix, claim) for claim in claims}
    except (BadOption, BadClaim):
        return {}


def _files(name: str) -> Iterator[tuple[Path, str]]:
    """The files of a name, each with the prefix of its notebooks' names."""
    folder = paths.notebooks()
    for path in sorted([*folder.glob(name), *folder.glob(f"*/{name}")]):
        yield path, "" if path.parent == folder else f"{path.parent.name}/"


def _load(path: Path, kind: type[Claim | Calibration]) -> Iterator[Any]:
    try:
        data = yaml_source.load(path)
    except BadOption as error:
        raise BadClaim(f'{error} (is a relation such as ">=" in quotes?)') from error
    return _read(data, kind, str(path))


def _with_folder(prefix: str, claim: Claim) -> Claim:
    return dataclasses.replace(claim, notebook=prefix + claim.notebook)


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
