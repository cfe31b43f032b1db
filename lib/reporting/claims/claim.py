"""What a claim is, and the strict reader of `claims.yaml`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

from lib import paths
from lib.errors import LockstepError, nearest, unknown

NEUTRAL = {"order": 0.0, "ratio": 1.0, "value": 0.0, "trend": 0.0, "bound": None}
RELATIONS = (">=", "<=", "within", "report")


class BadClaim(LockstepError, ValueError):
    """A claim that cannot be judged as it is written."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    id: str
    """The name that the claim keeps everywhere, as in EXPERIMENTS.md."""
    notebook: str
    """The notebook beside the file, which judges the claim."""
    sentence: str
    """What is claimed, in our words."""
    place: str
    """Where the paper says it."""
    paper: dict
    """The paper's figures, by name."""
    kind: str
    """order, ratio, value, bound or trend."""
    metric: str
    """The column of the results that is compared."""
    subject: str
    """Whom the claim is about, as in the results' column `subject`."""
    reference: str | None = None
    """Whom the subject is compared with."""
    over: str | None = None
    """The column that a trend's slope is taken over."""
    relation: str
    """>=, <=, within or report."""
    target: float | None = None
    """What `within` is measured from."""
    margin: float | None = None
    """The rule's boundary."""
    reason: str
    """Why this margin (or why the figure cannot be judged)."""
    seeds: int
    """The least number of seeds for a verdict."""
    scale: dict
    """`paper`: the paper's scale; `ours`: ours."""

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
        for line, item in _items(path):
            claim = _claim(item, prefix, f"{path}:{line}")
            if claim.id in claims:
                raise BadClaim(f"{path}:{line}: claim {claim.id!r}: the id is taken by {origins[claim.id]}")
            claims[claim.id], origins[claim.id] = claim, path
    return claims


def get(name: str) -> Claim:
    claims = load()
    if name not in claims:
        raise unknown("claim", name, claims)
    return claims[name]


def _items(path: Path) -> list[tuple[int, Any]]:
    """The file's items, each with its line."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node, deep=False):  # type: ignore[no-untyped-def]
            seen: set = set()
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                if key in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"key {key!r} twice", key_node.start_mark)
                seen.add(key)
            return super().construct_mapping(node, deep)

    try:
        loader = Loader(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        data = loader.construct_document(node) if node else []
    except (OSError, UnicodeDecodeError) as error:
        raise BadClaim(f"{path}: cannot be read as UTF-8 text: {error}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise BadClaim(f'{where}: not YAML: {error.problem} (is a relation such as ">=" in quotes?)') from error
    except (yaml.YAMLError, TypeError, RecursionError) as error:
        raise BadClaim(f"{path}: not YAML: {error}") from error
    if not isinstance(data, list):
        raise BadClaim(f"{path}:1: a list of claims is expected, each starting with '- id: ...'")
    return [(child.start_mark.line + 1, item) for child, item in zip(node.value, data, strict=True)] if node else []


_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "paper": (dict, "a mapping"),
    "scale": (dict, "a mapping"),
    "seeds": (int, "a whole number"),
    "margin": ((int, float), "a number"),
    "target": ((int, float), "a number"),
}
_FIELDS = {field.name: field for field in dataclasses.fields(Claim)}


def _claim(item: Any, prefix: str, where: str) -> Claim:
    """One item, checked; every error names file, line, claim and field."""
    if not isinstance(item, dict):
        raise BadClaim(f"{where}: a claim is a mapping that starts with 'id:', not {item!r}")
    where = f"{where}: claim {item.get('id', '(no id)')!r}"

    def bad(field: str, what: str) -> BadClaim:
        return BadClaim(f"{where}: field {field!r}: {what}")

    for key in item:
        if key not in _FIELDS:
            raise bad(key, f"no such field; {nearest(key, _FIELDS)}")
    for name, field in _FIELDS.items():
        value = item.get(name)
        if value is None:
            if name in item:
                raise bad(name, "is empty; give it a value" + (" or leave it out" if field.default is None else ""))
            if field.default is not None or (name == "margin" and item.get("relation") != "report"):
                raise bad(name, "is missing; every claim needs it")
            continue
        wanted, words = _TYPES.get(name, (str, "text"))
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise bad(name, f"must be {words}, not {value!r}")
        if isinstance(value, str) and not value.strip():
            raise bad(name, "is empty; a claim needs it")
        if isinstance(value, (int, float)) and not math.isfinite(value):
            raise bad(name, f"must be finite, not {value!r}: a rule that cannot fail is no rule")
    for name, valid in (("kind", NEUTRAL), ("relation", RELATIONS)):
        if item[name] not in valid:
            raise bad(name, f"{item[name]!r} is none; {nearest(item[name], valid)}")
    if set(item["scale"]) != {"paper", "ours"}:
        raise bad("scale", f"must have exactly 'paper' and 'ours', not {', '.join(map(str, item['scale'])) or 'none'}")
    if item["seeds"] < 1:
        raise bad("seeds", f"must be at least 1, not {item['seeds']}")
    try:
        json.dumps(item, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise bad("paper", f"only text, numbers, lists and mappings can be kept ({error}); quote dates") from error

    numbers = {name: float(item[name]) for name in ("margin", "target") if item.get(name) is not None}
    claim = Claim(**{**item, **numbers, "notebook": prefix + item["notebook"]})
    for name, kinds in (("reference", ("order", "ratio")), ("over", ("trend",))):
        if claim.kind in kinds and getattr(claim, name) is None and claim.relation != "report":
            raise bad(name, f"is missing: a claim of kind {claim.kind!r} needs it")
    if claim.over is not None and claim.kind != "trend":
        raise bad("over", f"only a trend has it, not a claim of kind {claim.kind!r}")
    if claim.kind == "bound" and claim.reference is not None:
        raise bad("reference", "a bound has none; compare with kind 'order' or 'ratio'")
    if claim.kind == "bound" and claim.relation == "within":
        raise bad("relation", "a bound is '>=' or '<='; for a band use kind 'value'")
    if claim.relation == "report" and claim.margin is not None:
        raise bad("margin", "a figure that is only reported has none")
    if claim.relation == "within":
        if claim.centre is None:
            raise bad("target", "is missing: 'within' needs what the margin is measured from")
        if claim.margin is not None and claim.margin <= 0:
            raise bad("margin", f"must be greater than 0 for 'within', not {claim.margin:g}")
    elif claim.target is not None:
        raise bad("target", "only 'within' has one; the other relations compare with the margin")
    elif claim.kind == "ratio" and claim.margin is not None and claim.margin <= 0:
        raise bad("margin", f"must be greater than 0 for a ratio, not {claim.margin:g}: such a rule cannot fail")
    return claim
