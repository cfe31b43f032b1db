"""What a claim is, and the strict reader of `claims.yaml`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Predicate

from lib import paths
from lib.errors import BadField, BadOption, LockstepError
from lib.options.checked import Checked, Count, Finite
from lib.options.document import load as load_yaml

NEUTRAL = {"order": 0.0, "ratio": 1.0, "value": 0.0, "trend": 0.0, "bound": None}
Text = Annotated[str, Predicate(str.strip)]
Figure = Annotated[float, Finite]


class BadClaim(LockstepError, ValueError):
    """A claim that cannot be judged as it is written."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim(Checked):
    """One claim; made as it is written, or not at all."""

    id: Text
    """The name that the claim keeps everywhere, as in EXPERIMENTS.md."""
    notebook: Text
    """The notebook beside the file, which judges the claim."""
    sentence: Text
    """What is claimed, in our words."""
    place: Text
    """Where the paper says it."""
    paper: dict
    """The paper's figures, by name."""
    kind: Literal["order", "ratio", "value", "bound", "trend"]
    """order, ratio, value, bound or trend."""
    metric: Text
    """The column of the results that is compared."""
    subject: Text
    """Whom the claim is about, as in the results' column `subject`."""
    reference: Text | None = None
    """Whom the subject is compared with."""
    over: Text | None = None
    """The column that a trend's slope is taken over."""
    relation: Literal[">=", "<=", "within", "report"]
    """>=, <=, within or report."""
    target: Figure | None = None
    """What `within` is measured from."""
    margin: Figure | None = None
    """The rule's boundary."""
    reason: Text
    """Why this margin (or why the figure cannot be judged)."""
    seeds: Count
    """The least number of seeds for a verdict."""
    scale: dict
    """`paper`: the paper's scale; `ours`: ours."""

    def __post_init__(self):
        for name, problem in self._problems():
            raise BadField("claim", (name,), f": {problem}")

    def _problems(self) -> Iterator[tuple[str, str]]:
        """Fields that make the claim one that cannot be judged, or cannot fail."""
        within, judged = self.relation == "within", self.relation != "report"
        for name, kinds in (("reference", ("order", "ratio")), ("over", ("trend",))):
            if judged and self.kind in kinds and getattr(self, name) is None:
                yield name, f"is missing: a claim of kind {self.kind!r} needs it"
        if self.over is not None and self.kind != "trend":
            yield "over", f"only a trend has it, not a claim of kind {self.kind!r}"
        if self.kind == "bound" and self.reference is not None:
            yield "reference", "a bound has none; compare with kind 'order' or 'ratio'"
        if self.kind == "bound" and within:
            yield "relation", "a bound is '>=' or '<='; for a band use kind 'value'"
        if judged == (self.margin is None):
            yield (
                "margin",
                "is missing; what is judged needs it" if judged else "a figure that is only reported has none",
            )
        if within and self.centre is None:
            yield "target", "is missing: 'within' needs what the margin is measured from"
        if not within and self.target is not None:
            yield "target", "only 'within' has one; the other relations compare with the margin"
        if (within or (judged and self.kind == "ratio")) and self.margin <= 0:
            yield "margin", f"must be greater than 0 for {'within' if within else 'a ratio'}: such a rule cannot fail"
        if {*self.scale} != {"paper", "ours"}:
            yield "scale", "must have exactly 'paper' and 'ours'"
        try:
            json.dumps([self.paper, self.scale], allow_nan=False)
        except (TypeError, ValueError) as error:
            yield "paper", f"only text, finite numbers, lists and mappings can be kept ({error})"

    @property
    def neutral(self) -> float | None:
        return None if self.kind == "value" and self.reference is None else NEUTRAL[self.kind]

    @property
    def centre(self) -> float | None:
        return self.neutral if self.target is None else self.target

    @property
    def hash(self) -> str:
        """Of everything that the claim says."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def rule(self) -> str:
        """The rule as a reader would write it."""
        x = self.metric
        if self.kind == "trend":
            x = f"slope of {x} over {self.over}"
        x = f"{x}({self.subject})"
        if self.reference is not None:
            x += f" {'/' if self.kind == 'ratio' else '−'} {self.metric}({self.reference})"
        if self.relation == "within":
            return f"{x} = {self.centre:g} ± {self.margin:g}"
        sign = {">=": "≥", "<=": "≤"}.get(self.relation)
        return f"{x} {sign} {self.margin:g}" if sign else f"{x}, not judged"


def load(folder: str | Path | None = None) -> dict[str, Claim]:
    """Every claim of `folder` (the notebooks' by default) by id; the first thing that is wrong is an error."""
    folder = Path(folder) if folder is not None else paths.notebooks()
    claims: dict[str, Claim] = {}
    origins: dict[str, Path] = {}
    for path in sorted([*folder.glob("claims.yaml"), *folder.glob("*/claims.yaml")]):
        prefix = "" if path.parent == folder else f"{path.parent.name}/"
        for where, claim in _claims(path, prefix):
            if claim.id in claims:
                raise BadClaim(f"{where}: claim {claim.id!r}: the id is taken by {origins[claim.id]}")
            claims[claim.id], origins[claim.id] = claim, path
    return claims


def _claims(path: Path, prefix: str) -> Iterator[tuple[str, Claim]]:
    """A file's claims with their places, checked; every error names file, line, claim and field."""
    try:
        document = load_yaml(path)
    except BadOption as error:
        raise BadClaim(f'{error} (is a relation such as ">=" in quotes?)') from error
    if not isinstance(document.data or [], list):
        raise BadClaim(f"{path}:1: a list of claims is expected, each starting with '- id: ...'")
    for place, item in enumerate(document.data or []):
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
