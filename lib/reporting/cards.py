"""What a notebook and the index show besides figures: tables and cards as plain HTML, which carries no script."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from lib.reporting import claims as _claims
from lib.reporting.notebooks import repeat

if TYPE_CHECKING:
    import pandas as pd

    from lib.reporting.claims import Claim, Verdict


class Fragment:
    """A piece of HTML that Jupyter displays; its text form is for terminals and for readers of the raw notebook."""

    def __init__(self, html: str, text: str = "") -> None:
        self.html, self.text = html, text

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text or "an HTML fragment"


def slug(text: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "section"


def number(value: Any) -> str:
    """Enough digits to compare, none to drown in: 0.73112, 1 234 567, 2.31."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, Real):
        return str(value)
    if not math.isfinite(value):
        return "–" if math.isnan(value) else f"{value}"
    if isinstance(value, Integral) or abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", "\u202f")
    text = f"{value:.5f}".rstrip("0").rstrip(".") if abs(value) < 1 else f"{value:.4g}"
    if value and abs(value) < 1e-4:
        text = f"{value:.2e}"
    return text.replace("-", "−")


def _inside(value: Any) -> str:
    return value.html if isinstance(value, Fragment) else escape(number(value))


def heading(text: str) -> str:
    return f'<h2 id="{slug(text)}">{escape(text)}</h2>'


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "", numeric: Iterable[int] = ()) -> str:
    """Cells are text unless they are a Fragment; `numeric` columns are set right; cells know their header."""
    right = set(numeric)

    def cell(column: int, value: Any) -> str:
        kind = ' class="num"' if column in right else ""
        return f'<td{kind} data-label="{escape(header[column])}">{_inside(value)}</td>'

    head = "".join(
        f'<th scope="col"{" class=num" if i in right else ""}>{escape(h)}</th>' for i, h in enumerate(header)
    )
    body = "\n".join(f"<tr>{''.join(cell(i, value) for i, value in enumerate(row))}</tr>" for row in rows)
    words = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f'<div class="table"><table>{words}<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def definitions(facts: Mapping[str, Any]) -> str:
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{_inside(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="facts">{rows}</dl>'


def settings(**values: Any) -> Fragment:
    """The settings that a notebook runs with: `settings(workers=workers, samples=samples)`."""
    return Fragment(heading("Settings") + definitions(values), "\n".join(f"{k} = {v!r}" for k, v in values.items()))


def claims(notebook: str) -> Fragment:
    """What a notebook's claims say and by which rule they are judged, with the paper's scale beside ours."""
    mine = [claim for claim in _claims.load().values() if claim.notebook == notebook]
    rows = [[_named(claim), claim.place, Fragment(escape(claim.rule)), claim.reason, claim.seeds] for claim in mine]
    scales = dict.fromkeys((flat(claim.scale["paper"]), flat(claim.scale["ours"])) for claim in mine)
    html = heading("What is claimed")
    html += table(["Claim", "Place", "Rule", "Why this margin", "Least seeds"], rows, "Written down before the run.")
    html += table(["The paper's scale", "Ours"], scales, "Scale: ours is a replication in shape, not in size.")
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
    html = heading("Results") + table(header, rows, caption or "Mean and 95 % interval.", range(1, len(header)))
    text = (f"{row[0]}: " + ", ".join(f"{m} {c}" for m, c in zip(metrics, row[1:], strict=False)) for row in rows)
    return Fragment(html, "\n".join(text))


def _mean(values: pd.Series) -> str:
    mean, low, _ = _claims.interval(values)
    half = mean - low
    if not math.isfinite(half):
        return number(mean)
    return f"{number(mean)} ± {number(half) if half >= 100 else number(float(f'{half:.2g}'))}"


def badge(verdict: Verdict) -> Fragment:
    note = ' <span class="changed">claim changed since its run</span>' if verdict.changed else ""
    kind = verdict.verdict.replace(" ", "-")
    return Fragment(f'<span class="verdict {kind}">{escape(verdict.verdict)}</span>{note}')


def ours(verdict: Verdict) -> str:
    if verdict.ours is None:
        return "–"
    if verdict.low is None or verdict.low == verdict.high:
        return number(verdict.ours)
    return f"{number(verdict.ours)} [{number(verdict.low)}, {number(verdict.high)}]"


def verdict_rows(verdicts: Iterable[Verdict]) -> list[list[Any]]:
    rows = []
    for verdict in verdicts:
        note = f'<span class="note">{escape(verdict.detail)}</span>' if verdict.detail else ""
        result = Fragment(badge(verdict).html + note)
        paper = flat(verdict.claim.paper) or "–"
        rows.append([_named(verdict.claim), result, ours(verdict), verdict.claim.rule, paper, verdict.n])
    return rows


VERDICT_HEADER = ["Claim", "Verdict", "Ours [interval]", "Rule", "The paper", "Seeds"]


def verdicts(verdicts: Iterable[Verdict]) -> Fragment:
    """The claims' verdicts: negative ones are shown like the others."""
    verdicts = list(verdicts)
    caption = "95 % intervals over the seeds; the rules were written before the run, the verdicts are computed."
    html = heading("Verdicts") + table(VERDICT_HEADER, verdict_rows(verdicts), caption)
    return Fragment(html, "\n".join(f"{v.claim.id}: {v.text}, {ours(v)}" for v in verdicts))


def provenance_card(runs: Any, notebook: str) -> Fragment:
    """Where a notebook's numbers come from: one run, a list, or a mapping to lists; what they share is said once."""
    runs = _flatten(runs)
    kept = [run.provenance for run in runs]
    shared = {key: value for key, value in kept[0].items() if all(other.get(key) == value for other in kept)}
    differing = [key for key in kept[0] if key not in shared]
    facts: dict[str, Any] = {"repeat with": Fragment(f"<code>{escape(repeat(notebook))}</code>")}
    for key, value in shared.items():
        facts[key.replace("_", " ")] = flat(value)
    for key in differing:
        facts[key.replace("_", " ")] = "; ".join(dict.fromkeys(flat(other.get(key)) for other in kept))
    facts["runs"] = len(runs)
    digests = table(["Run", "Seed", "Digest (sha256 of the final state)"], [_digest(run) for run in runs])
    more = f'<details class="digests"><summary>Digests of the {len(runs)} runs</summary>{digests}</details>'
    html = f'{heading("Provenance")}<section class="card">{definitions(facts)}{more}</section>'
    return Fragment(html, "\n".join(f"{key}: {value}" for key, value in facts.items()))


def _digest(run: Any) -> list[Any]:
    protocol = run.provenance.get("protocol", "")
    protocol = protocol.get("name", "") if isinstance(protocol, Mapping) else str(protocol)
    return [protocol, str(run.provenance.get("seed", "")), Fragment(f"<code>{escape(str(run.digest)[:16])}</code>")]


def _flatten(runs: Any) -> list[Any]:
    if isinstance(runs, Mapping):
        runs = runs.values()
    if hasattr(runs, "provenance"):
        return [runs]
    return [run for item in runs for run in _flatten(item)]


def _named(claim: Claim) -> Fragment:
    return Fragment(f'<code>{escape(claim.id)}</code><span class="note">{escape(claim.sentence)}</span>')


def flat(value: Any) -> str:
    """A nested mapping as one line of text: its name first, what is unset left out."""
    if isinstance(value, Mapping):
        name = str(value.get("name", ""))
        rest = [
            f"{key}".replace("_", " ") + f" {_inner(item)}"
            for key, item in value.items()
            if key != "name" and _set(item)
        ]
        return f"{name}: {', '.join(rest)}" if name and rest else name or ", ".join(rest)
    if isinstance(value, list | tuple):
        return ", ".join(map(_inner, value))
    return number(value) if isinstance(value, Real | str) else json.dumps(value, default=str)


def _inner(value: Any) -> str:
    return f"({flat(value)})" if isinstance(value, Mapping | list | tuple) and len(value) > 1 else flat(value)


def _set(value: Any) -> bool:
    return value is not None and value not in ([], (), {})
