"""What a notebook shows besides figures: tables and cards as plain HTML, which carries no script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lib.reporting import claims as _claims
from lib.reporting.claims.basis import flatten
from lib.reporting.drawn import drawn
from lib.reporting.markup import Fragment, flat, number, parts
from lib.reporting.notebooks import repeat

if TYPE_CHECKING:
    import pandas as pd

    from lib.reporting.claims import Case, Claim, Verdict
    from lib.reporting.claims.calibration import Determined


def settings(**values: Any) -> Fragment:
    """The settings that a notebook runs with: `settings(workers=workers, samples=samples)`."""
    html = parts().heading("Settings") + parts().facts(values)
    return Fragment(html, "\n".join(f"{name} = {value!r}" for name, value in values.items()))


def claims(notebook: str) -> Fragment:
    """What a notebook's claims say and by which rule they are judged, with the paper's scale beside ours, and what was fitted."""
    mine = [claim for claim in _claims.load().values() if claim.notebook == notebook]
    rows = [[parts().named(claim), claim.place, claim.rule, claim.reason, claim.seeds] for claim in mine]
    scales = dict.fromkeys((claim.scale["paper"], claim.scale["ours"]) for claim in mine)
    header = ["Claim", "Place", "Rule", "Why so", "Least seeds"]
    caption = "As this run found them; beside the verdicts stands what git says of when they were written."
    html = parts().heading("What is claimed") + parts().table(header, rows, caption)
    html += parts().table(["The paper's scale", "Ours"], scales, "Scale: ours is a replication in shape, not in size.")
    fitted = [record for record in _claims.calibrations() if notebook in record.notebooks]
    if fitted:
        told = [
            [
                parts().code(each.constant),
                flat(each.value),
                each.fitted_to,
                "; ".join(map(_determined, each.determines)) or "–",
            ]
            for each in fitted
        ]
        header = ["Constant", "Value", "Fitted to", "What that decides, which is not judged"]
        html += parts().table(header, told, "Calibration of the modelled cluster.")
    return Fragment(html, "\n".join(f"{claim.id}: {claim.rule}" for claim in mine))


def _determined(each: Determined) -> str:
    return f"{each.metric} of {' and '.join(filter(None, (each.subject, each.reference)))}"


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


def ours(case: Case, every: bool) -> str:
    """What was found: the mean with its interval, or with the range of the runs where each of them is judged."""
    if case.ours is None:
        return "–"
    if case.low is None or case.low == case.high:
        return number(case.ours)
    ends = f"{number(case.low)}, {number(case.high)}"
    return f"{number(case.ours)} (range {ends})" if every else f"{number(case.ours)} [{ends}]"


def verdict_table(verdicts: Iterable[Verdict], caption: str = "") -> str:
    """Verdicts with what they were judged by, each above a row for each of its cases; negative ones are shown like the others."""
    rows: list[list[Any]] = []
    for verdict in verdicts:
        claim, cases = verdict.claim, verdict.cases
        about = [parts().named(claim, claim.rule), parts().verdict(verdict)]
        if len(cases) == 1:
            rows.append([*about, *_measured(claim, cases[0])])
            continue
        said = "; ".join(f"{case}: {flat(paper)}" for case, paper in claim.cases.items() if paper is not None)
        rows.append([*about, "–", "", "" if cases else said or "–", ""])
        rows += [[case.case, parts().chip(case.verdict, case.detail), *_measured(claim, case)] for case in cases]
    return parts().table(["Claim", "Verdict", "Ours", "Picture", "The paper", "Seeds"], rows, caption)


def _measured(claim: Claim, case: Case) -> list[Any]:
    """A row's cells from what was found on."""
    return [ours(case, claim.every), drawn(claim, case), "–" if case.paper is None else flat(case.paper), case.n]


def verdicts(verdicts: Iterable[Verdict]) -> Fragment:
    """The claims' verdicts."""
    verdicts = list(verdicts)
    caption = (
        "[ ]: 95 % interval of the mean over the seeds; a range is from the least to the greatest run. Pictures: the mark and "
        "its line are ours, hollow is the paper's value, dashed no effect, the band what satisfies the rule."
    )
    html = parts().heading("Verdicts") + verdict_table(verdicts, caption)
    told = [
        f"{v.claim.id}: {v.text}{f', {ours(v.cases[0], v.claim.every)}' if len(v.cases) == 1 else ''}" for v in verdicts
    ]
    return Fragment(html, "\n".join(told))


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
