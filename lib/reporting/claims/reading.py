"""The strict reader of `claims.yaml` and `calibrations.yaml`: the first thing that is wrong is an error with its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lib import paths
from lib.errors import BadField, BadOption
from lib.options.document import Document, parse
from lib.options.document import load as load_yaml
from lib.reporting.claims.calibration import Calibration
from lib.reporting.claims.claim import BadClaim, Claim


def load(folder: str | Path | None = None) -> dict[str, Claim]:
    """Every claim of `folder` (the notebooks' by default) by id."""
    claims: dict[str, Claim] = {}
    origins: dict[str, Path] = {}
    for path, prefix in _files(folder, "claims.yaml"):
        for where, claim in _claims(_document(path), prefix):
            if claim.id in claims:
                raise BadClaim(f"{where}: claim {claim.id!r}: the id is taken by {origins[claim.id]}")
            claims[claim.id], origins[claim.id] = claim, path
    return claims


def calibrations(folder: str | Path | None = None) -> list[Calibration]:
    """Every record of what a constant was fitted to."""
    found = []
    for path, prefix in _files(folder, "calibrations.yaml"):
        document = _document(path)
        for place in range(len(_items(document))):
            try:
                record = document.read(Calibration, place)
            except BadOption as error:
                raise BadClaim(str(error)) from error
            found.append(dataclasses.replace(record, notebooks=tuple(prefix + name for name in record.notebooks)))
    return found


def file_of(claim: Claim) -> str:
    """Where a claim stands, from the repository's root."""
    return "/".join(filter(None, ("notebooks", claim.folder, "claims.yaml")))


def parsed(text: str, claim_id: str, prefix: str) -> Claim | None:
    """One claim of a file's text, None where the text has no such claim that could be judged."""
    return _by_id(text, prefix).get(claim_id)


@cache
def _by_id(text: str, prefix: str) -> Mapping[str, Claim]:
    """All claims of a text, which is asked for once for each claim."""
    try:
        return {claim.id: claim for _, claim in _claims(parse(text, "claims.yaml"), prefix)}
    except (BadOption, BadClaim):
        return {}


def _files(folder: str | Path | None, name: str) -> Iterator[tuple[Path, str]]:
    """The files of a name, each with what its notebooks' names begin with."""
    folder = Path(folder) if folder is not None else paths.notebooks()
    for path in sorted([*folder.glob(name), *folder.glob(f"*/{name}")]):
        yield path, "" if path.parent == folder else f"{path.parent.name}/"


def _document(path: Path) -> Document:
    try:
        return load_yaml(path)
    except BadOption as error:
        raise BadClaim(f'{error} (is a relation such as ">=" in quotes?)') from error


def _items(document: Document) -> list[Any]:
    if not isinstance(document.data or [], list):
        raise BadClaim(f"{document.source}:1: a list is expected, in which each item starts with '-'")
    return document.data or []


def _claims(document: Document, prefix: str) -> Iterator[tuple[str, Claim]]:
    """A file's claims with their places, checked; every error names file, line, claim and field."""
    for place, item in enumerate(_items(document)):
        if not isinstance(item, dict):
            raise BadClaim(f"{document.where(place)}: a claim is a mapping that starts with 'id:', not {item!r}")
        try:
            if empty := [name for name, value in item.items() if value is None]:
                raise BadField("claim", (empty[0],), ": is empty; give it a value or leave it out")
            claim = Claim.read(item)
        except BadField as error:
            where = f"{document.where(place, *error.path)}: claim {item.get('id', '(no id)')!r}"
            raise BadClaim(f"{where}: {error.place}{error.problem}") from error
        yield document.where(place), dataclasses.replace(claim, notebook=prefix + claim.notebook)
