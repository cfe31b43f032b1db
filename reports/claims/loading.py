"""The strict reader of `claims.yaml` and `calibrations.yaml`: the first fault is an error with its place."""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lib import paths
from lib.errors import BadField, BadOption
from lib.options.yaml_source import Document, parse
from lib.options.yaml_source import load as load_yaml
from reports.claims.calibration import Calibration
from reports.claims.claim import BadClaim, Claim


def load() -> dict[str, Claim]:
    """Every claim of the notebooks by id."""
    claims: dict[str, Claim] = {}
    origins: dict[str, Path] = {}
    for path, prefix in _files("claims.yaml"):
        for where, claim in _read(_document(path), Claim):
            if claim.id in claims:
                raise BadClaim(f"{where}: claim {claim.id!r}: the id is taken by {origins[claim.id]}")
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
        for _, record in _read(_document(path), Calibration)
    ]


def claims_file(claim: Claim) -> str:
    """The path of a claim's file, from the repository's root."""
    return "/".join(filter(None, ("notebooks", claim.folder, "claims.yaml")))


@cache
def parsed(text: str, prefix: str) -> Mapping[str, Claim]:
    """All claims of a file's text by id; none where the text has a fault."""
    try:
        return {claim.id: _with_folder(prefix, claim) for _, claim in _read(parse(text, "claims.yaml"), Claim)}
    except (BadOption, BadClaim):
        return {}


def _files(name: str) -> Iterator[tuple[Path, str]]:
    """The files of a name, each with the prefix of its notebooks' names."""
    folder = paths.notebooks()
    for path in sorted([*folder.glob(name), *folder.glob(f"*/{name}")]):
        yield path, "" if path.parent == folder else f"{path.parent.name}/"


def _document(path: Path) -> Document:
    try:
        return load_yaml(path)
    except BadOption as error:
        raise BadClaim(f'{error} (is a relation such as ">=" in quotes?)') from error


def _with_folder(prefix: str, claim: Claim) -> Claim:
    return dataclasses.replace(claim, notebook=prefix + claim.notebook)


def _read(document: Document, kind: type[Claim | Calibration]) -> Iterator[tuple[str, Any]]:
    """A file's records with their places, checked; every error names file, line, record and field."""
    if not isinstance(document.data or [], list):
        raise BadClaim(f"{document.source}:1: a list is expected, in which each item starts with '-'")
    first, name = next(iter(kind.__dataclass_fields__)), kind.__name__.lower()
    for place, item in enumerate(document.data or []):
        if not isinstance(item, dict):
            raise BadClaim(f"{document.where(place)}: a {name} is a mapping that starts with '{first}:', not {item!r}")
        try:
            if empty := [field for field, value in item.items() if value is None]:
                raise BadField(name, (empty[0],), ": is empty; give it a value or leave it out")
            yield document.where(place), kind.read(item)
        except BadField as error:
            where = f"{document.where(place, *error.path)}: {name} {item.get(first, f'(no {first})')!r}"
            raise BadClaim(f"{where}: {error.place}{error.problem}") from error
