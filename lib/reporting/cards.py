"""What a notebook shows besides figures: tables and cards as plain HTML, which carries no script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lib.reporting import claims as _claims
from lib.reporting.markup import Fragment, flat, number, parts
from lib.reporting.notebooks import repeat

if TYPE_CHECKING:
    import pandas as pd

    from lib.reporting.claims import Verdict


def settings(**values: Any) -> Fragment:
    """The settings that a notebook runs with: `settings(workers=workers, samples=samples)`."""
    html = parts().heading("Settings") + parts().facts(values)
    return Fragment(html, "\n".join(f"{name} = {value!r}" for name, value in values.items()))


def claims(notebook: str) -> Fragment:
    """What a notebook's claims say and by which rule they are judged, with the paper's scale beside ours."""
    mine = [claim for claim in _claims.load().values() if claim.notebook == notebook]
    rows = [[parts().named(claim), claim.place, claim.rule, claim.reason, claim.seeds] for claim in mine]
    scales = dict.fromkeys((flat(claim.scale["paper"]), flat(claim.scale["ours"])) for claim in mine)
    header, caption = ["Claim", "Place", "Rule", "Why this margin", "Least seeds"], "Written down before the run."
    html = parts().heading("What is claimed") + parts().table(header, rows, caption)
    html += parts().table(["The paper's scale", "Ours"], scales, "Scale: ours is a replication in shape, not in size.")
    return Fragment(html, "\n".join(f"{claim.id}: {claim.rule}" for claim in mine))


def intervals(results: pd.DataFrame, metrics: Sequence[str], caption: str = "") -> Fragment:
    """Each subject's metrics with their 95 % intervals over the seeds."""
    groups = list(results.groupby("subject", sort=False))
    counts = {len(group) for _, group in groups}
    rows = [[name, *(_mean(group[m].astype(float)) for m in metrics), len(group)] for name, group in groups]
    header = ["protocol", *(m.upper() if len(m) < 4 else m.replace("_", " ") for m in metrics), "seeds"]
    if len(counts) == 1:  # said once, below the table
        header, rows = header[:-1], [row[:-1] for row in rows]
        caption = caption or f"Mean and 95 % interval over {counts.pop()} seeds."
    html = parts().heading("Results")
    html += parts().table(header, rows, caption or "Mean and 95 % interval.", range(1, len(header)))
    text = (f"{row[0]}: " + ", ".join(f"{m} {c}" for m, c in zip(metrics, row[1:], strict=False)) for row in rows)
    return Fragment(html, "\n".join(text))


def _mean(values: pd.Series) -> str:
    mean, low, _ = _claims.interval(values)
    half = mean - low
    if not math.isfinite(half):
        return number(mean)
    return f"{number(mean)} ± {number(half) if half >= 100 else number(float(f'{half:.2g}'))}"


def ours(verdict: Verdict) -> str:
    if verdict.ours is None:
        return "–"
    if verdict.low is None or verdict.low == verdict.high:
        return number(verdict.ours)
    return f"{number(verdict.ours)} [{number(verdict.low)}, {number(verdict.high)}]"


def verdict_table(verdicts: Iterable[Verdict], caption: str = "") -> str:
    """Verdicts with what they were judged by: negative ones are shown like the others."""
    header = ["Claim", "Verdict", "Ours [interval]", "Rule", "The paper", "Seeds"]
    rows = [
        [parts().named(v.claim), parts().verdict(v), ours(v), v.claim.rule, flat(v.claim.paper) or "–", v.n]
        for v in verdicts
    ]
    return parts().table(header, rows, caption)


def verdicts(verdicts: Iterable[Verdict]) -> Fragment:
    """The claims' verdicts."""
    verdicts = list(verdicts)
    caption = "95 % intervals over the seeds; the rules were written before the run, the verdicts are computed."
    html = parts().heading("Verdicts") + verdict_table(verdicts, caption)
    return Fragment(html, "\n".join(f"{v.claim.id}: {v.text}, {ours(v)}" for v in verdicts))


def provenance_card(runs: Any, notebook: str) -> Fragment:
    """Where a notebook's numbers come from: one run, a list, or a mapping to lists; what they share is said once."""
    runs = flatten(runs)
    kept = [run.provenance for run in runs]
    shared = {key: value for key, value in kept[0].items() if all(other.get(key) == value for other in kept)}
    differing = [key for key in kept[0] if key not in shared]
    facts: dict[str, Any] = {"repeat with": parts().code(repeat(notebook))}
    for key, value in shared.items():
        facts[key.replace("_", " ")] = flat(value)
    for key in differing:
        facts[key.replace("_", " ")] = "; ".join(dict.fromkeys(flat(other.get(key)) for other in kept))
    facts["runs"] = len(runs)
    html = parts().heading("Provenance") + parts().provenance(facts, [_digest(run) for run in runs])
    return Fragment(html, "\n".join(f"{key}: {value}" for key, value in facts.items()))


def _digest(run: Any) -> list[Any]:
    protocol = run.provenance.get("protocol", "")
    protocol = protocol.get("name", "") if isinstance(protocol, Mapping) else str(protocol)
    return [protocol, str(run.provenance.get("seed", "")), parts().code(str(run.digest)[:16])]


def flatten(runs: Any) -> list[Any]:
    """One run, a list of runs, or a mapping to either, as a list."""
    if isinstance(runs, Mapping):
        runs = runs.values()
    if hasattr(runs, "provenance"):
        return [runs]
    return [run for item in runs for run in flatten(item)]
