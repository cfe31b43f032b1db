"""Claims as data: what a paper says, the rule that decides whether it holds here, and the verdict that code gave.

A claim stands in `notebooks/claims.yaml` or `notebooks/<paper>/claims.yaml`, one item of a list each, written before
the run. From every seed comes one number x:

| kind  | x, per seed                                                                    | neutral            |
|-------|--------------------------------------------------------------------------------|--------------------|
| order | subject's metric - reference's, of the same seed                               | 0                  |
| ratio | subject's metric / reference's, of the same seed                               | 1                  |
| value | subject's metric, less the reference's where one is named                      | 0 with a reference |
| trend | slope of the subject's metric over `over` (least squares), less the reference's | 0                  |
| bound | subject's metric                                                               | none               |

The rule is read as it stands: `x >= margin`, `x <= margin`, or, for `within`, `|x - target| <= margin` (target: the
neutral value unless given). The interval is the 95 % t-interval of x's mean over the seeds; for a bound, which speaks
of every run, it is the least and the greatest x. With `seeds: 1` (an exact example) it is the one number.

| verdict        | when                                                                                         |
|----------------|----------------------------------------------------------------------------------------------|
| replicated     | the whole interval satisfies the rule                                                        |
| direction only | none of it does, but all of it lies on the side of neutral on which the margin (target) lies |
| not replicated | none of it does, nor is the direction right; for a bound: one run breaks it                  |
| inconclusive   | the interval straddles the rule's boundary, seeds are too few, or a metric is not finite     |
| out of scale   | the relation is `report`: an absolute figure of the paper's machines; both, no judgement     |
| not run        | no verdict has been stored                                                                   |

A verdict is stored with the claim's hash, so that a claim that was changed after its run shows.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import paths
from .errors import LockstepError, nearest, unknown

if TYPE_CHECKING:
    import pandas as pd

VERDICTS = ("replicated", "direction only", "not replicated", "inconclusive", "out of scale", "not run")
NEUTRAL = {"order": 0.0, "ratio": 1.0, "value": 0.0, "trend": 0.0, "bound": None}
RELATIONS = (">=", "<=", "within", "report")
CONFIDENCE = 0.95


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    claim: Claim
    verdict: str
    ours: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    """Seeds that the interval is taken over."""
    detail: str = ""
    profile: str = ""
    command: str = ""
    """What the runner was asked for, with any parameter that differs from the notebook's."""
    changed: bool = False
    """The claim was changed after its run."""

    @property
    def text(self) -> str:
        return f"{self.verdict} (claim changed since its run)" if self.changed else self.verdict


# Loading


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


# Judging


def interval(values: Iterable[float]) -> tuple[float, float, float]:
    """Mean, and the ends of its 95 % t-interval (NaN for a single value)."""
    import numpy as np
    from scipy import stats

    values = np.asarray(list(values), dtype=float)
    mean = float(values.mean())
    if len(values) < 2:
        return mean, math.nan, math.nan
    if (values == values[0]).all():  # equal numbers have no spread, whatever rounding makes of their mean
        return float(values[0]), float(values[0]), float(values[0])
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return mean, mean - half, mean + half


def judge(claim: Claim, results: pd.DataFrame, profile: str = "") -> Verdict:
    """The verdict on one claim from a table with a row for every run: subject, seed and the metrics."""
    needed = ["subject", "seed", claim.metric, *([claim.over] if claim.over else [])]
    for column in needed:
        if column not in results.columns:
            raise BadClaim(f"claim {claim.id!r}: the results have no column {column!r}; {nearest(column, results)}")
    numbers = _per_seed(claim, results, claim.subject)
    detail = []
    if claim.reference is not None:
        reference = _per_seed(claim, results, claim.reference)
        if alone := sorted(set(numbers) ^ set(reference)):
            detail.append(f"seeds without a partner left out: {', '.join(map(str, alone))}")
        shared = sorted(set(numbers) & set(reference))
        if claim.kind == "ratio":
            numbers = {seed: numbers[seed] / reference[seed] if reference[seed] else math.nan for seed in shared}
        else:
            numbers = {seed: numbers[seed] - reference[seed] for seed in shared}
    n = len(numbers)
    if infinite := [seed for seed, x in numbers.items() if not math.isfinite(x)]:
        detail.append(f"{claim.metric} is not finite or cannot be compared for seed {', '.join(map(str, infinite))}")
        verdict = "out of scale" if claim.relation == "report" else "inconclusive"
        return Verdict(claim=claim, verdict=verdict, n=n, detail="; ".join(detail), profile=profile)
    if not n:
        return Verdict(claim=claim, verdict="inconclusive", detail="; ".join(detail), profile=profile)

    ours, low, high = interval(numbers.values())
    if claim.kind == "bound":
        low, high = min(numbers.values()), max(numbers.values())
    elif n == 1 and claim.seeds == 1:
        low = high = ours
    verdict, why = _decide(claim, low, high, n)
    detail.append(why)
    finite = {name: None if math.isnan(end) else end for name, end in (("low", low), ("high", high))}
    return Verdict(
        claim=claim, verdict=verdict, ours=ours, **finite, n=n, detail="; ".join(filter(None, detail)), profile=profile
    )


def _per_seed(claim: Claim, results: pd.DataFrame, subject: str) -> dict[int, float]:
    """One number for every seed of the subject: its metric, or the metric's slope."""
    import numpy as np

    rows = results[results["subject"] == subject]
    if rows.empty:
        raise unknown(f"subject of claim {claim.id!r}:", subject, results["subject"].astype(str).unique())
    numbers = {}
    for seed, group in rows.groupby("seed"):
        y = group[claim.metric].to_numpy(dtype=float)
        if claim.kind != "trend":
            if len(y) > 1:
                raise BadClaim(f"claim {claim.id!r}: {len(y)} results of {subject!r} for seed {seed}; one is expected")
            numbers[int(seed)] = float(y[0])
            continue
        x = group[claim.over].to_numpy(dtype=float)
        if len(np.unique(x)) < 2:
            raise BadClaim(
                f"claim {claim.id!r}: a slope needs two values of {claim.over!r} for {subject!r}, seed {seed}"
            )
        x = x - x.mean()
        numbers[int(seed)] = float((x * (y - y.mean())).sum() / (x * x).sum())
    return numbers


def _decide(claim: Claim, low: float, high: float, n: int) -> tuple[str, str]:
    """The verdict on an interval, and why where that is not plain."""
    if claim.relation == "report":
        return "out of scale", "an absolute figure of other machines: both are shown, none is judged"
    assert claim.margin is not None
    above = claim.margin if claim.relation == ">=" else -math.inf
    below = claim.margin if claim.relation == "<=" else math.inf
    if claim.relation == "within":
        assert claim.centre is not None
        above, below = claim.centre - claim.margin, claim.centre + claim.margin

    if claim.kind == "bound" and (low < above or high > below):
        return "not replicated", "a run breaks the bound"
    if n < max(claim.seeds, 1):
        return "inconclusive", f"too few seeds: {n} of {claim.seeds}"
    if math.isnan(low):
        return "inconclusive", "too few seeds: no interval over 1"
    if above <= low and high <= below:
        return "replicated", ""
    if high >= above and low <= below:
        return "inconclusive", "the interval straddles the rule's boundary"
    neutral, centre = claim.neutral, claim.centre
    if neutral is not None and centre is not None:
        aim = centre if claim.relation == "within" else claim.margin
        if (aim > neutral and low > neutral) or (aim < neutral and high < neutral):
            return "direction only", "the direction holds, the margin does not"
    return "not replicated", ""


# Storing


def results(runs: Mapping[str, Iterable[Any]]) -> pd.DataFrame:
    """One row for every run: subject (the key), seed, and the run's summary."""
    import pandas as pd

    rows = [
        {"subject": subject, "seed": int(run.provenance["seed"]), **run.summary}
        for subject, group in runs.items()
        for run in group
    ]
    return pd.DataFrame(rows)


_KEPT = ("verdict", "ours", "low", "high", "n", "detail", "profile", "command")


def _file(claim_id: str, folder: Path | None = None) -> Path:
    return (folder or paths.results()) / "claims" / f"{claim_id.replace('/', '-')}.json"


def save(verdict: Verdict, table: pd.DataFrame | None = None) -> Path:
    """Store a verdict with the claim as it was judged and the numbers that it was judged on."""
    claim = verdict.claim
    record = {name: getattr(verdict, name) for name in _KEPT}
    record |= {"hash": claim.hash, "claim": dataclasses.asdict(claim)}
    if table is not None:
        rows = table[table["subject"].isin([claim.subject, claim.reference])]
        columns = ["subject", "seed", *([claim.over] if claim.over else []), claim.metric]
        record["results"] = json.loads(rows[columns].to_json(orient="records", double_precision=15))
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    return paths.write_text_atomic(_file(claim.id), text + "\n")


def record(table: pd.DataFrame, notebook: str, profile: str = "") -> list[Verdict]:
    """Judge every claim of a notebook (none can be left out) and store the verdicts."""
    mine = [claim for claim in load().values() if claim.notebook == notebook]
    if not mine:
        raise unknown("notebook with claims", notebook, {claim.notebook for claim in load().values()})
    command = os.environ.get(paths.COMMAND, "")
    verdicts = [dataclasses.replace(judge(claim, table, profile), command=command) for claim in mine]
    for verdict in verdicts:
        save(verdict, table)
    return verdicts


def stored(claim: Claim, folder: Path | None = None) -> Verdict:
    """The claim's stored verdict; *not run* when there is none."""
    path = _file(claim.id, folder or paths.reports())
    if not path.exists():
        return Verdict(claim=claim, verdict="not run")
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        fields = {name: kept[name] for name in _KEPT}
        if kept["verdict"] not in VERDICTS:
            raise ValueError(f"verdict {kept['verdict']!r}")
        return Verdict(claim=claim, **fields, changed=kept["hash"] != claim.hash)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LockstepError(f"{path}: not a stored verdict ({error}); delete it and run {claim.notebook}") from error


def verdicts(folder: Path | None = None) -> list[Verdict]:
    """Every claim with its stored verdict."""
    return [stored(claim, folder) for claim in load().values()]


def table() -> pd.DataFrame:
    """Every claim with its verdict, a row each, as `python -m lib claims` prints it."""
    import pandas as pd

    columns = ["id", "verdict", "ours", "low", "high", "n", "rule", "paper", "place", "profile", "notebook", "sentence"]
    rows = []
    for verdict in verdicts():
        claim = verdict.claim
        known = {**dataclasses.asdict(claim), **{name: getattr(verdict, name) for name in ("ours", "low", "high", "n")}}
        known |= {"verdict": verdict.text, "rule": claim.rule, "profile": verdict.profile}
        rows.append([known[column] for column in columns])
    return pd.DataFrame(rows, columns=columns)
