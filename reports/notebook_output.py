"""What a notebook shows besides figures: settings, claims, tables, verdicts and provenance, as plain HTML without scripts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lib.errors import unknown
from reports import claims as _claims
from reports.claims.dependencies import flatten
from reports.forest import row_picture
from reports.markup import Fragment, flat, parts, slug
from reports.quantities import column, label, measured_text, paper_text, part_text, plus_minus, seeds_text
from reports.runner import repeat
from reports.summary_text import sentence

if TYPE_CHECKING:
    import pandas as pd

    from reports.claims import Verdict

HOW_TO_READ = (
    "[ ]: 95 % interval of the mean over the seeds; for a check, the smallest and the largest run. In pictures the thin line is "
    "no effect, and the band is 50 to 200 % of the paper's effect, or the gain that an equivalence has to keep. Seeds, as in "
    "“8: detect 12 %”: eight seeds detect an effect of 12 % of the paper's nine times in ten."
)
RUNS_CODE = "commit of the runs' code"
"""The label of a commit whose code made a page's runs."""


def settings(**values: Any) -> Fragment:
    """The settings that a notebook runs with: `settings(workers=workers, samples=samples)`."""
    return Fragment(parts().heading("Settings") + parts().facts(values), "settings")


def claims(notebook: str) -> Fragment:
    """A notebook's claims with their rules, the paper's scale and ours, and what was fitted; shown before its runs.

    A page with verdicts leaves this out, since each verdict has its rule.
    """
    mine = _claims.of_notebook(notebook)
    rows = [[parts().named(claim), claim.place, claim.rule, claim.reason, claim.looks[0]] for claim in mine]
    scales = dict.fromkeys((claim.scale["paper"], claim.scale["ours"]) for claim in mine)
    header = ["Claim", "Place", "Rule", "Why so", "Least seeds"]
    caption = "As this run found them; git says, next to each verdict, whether its rule is older than its run."
    html = parts().heading("What is claimed") + parts().table(header, rows, caption)
    html += parts().table(["The paper's scale", "Ours"], scales, "Scale: ours is a replication in shape, not in size.")
    return Fragment(html + fitted([notebook]), "claims")


def fitted(notebooks: Collection[str]) -> str:
    """A table of what was fitted for these notebooks, and of the results that are not judged therefore; empty if nothing was."""
    rows = [
        [parts().code(each.constant), flat(each.value), each.fitted_to, "; ".join(map(str, each.determines)) or "–"]
        for each in _claims.calibrations()
        if not {*each.notebooks}.isdisjoint(notebooks)
    ]
    header = ["Constant", "Value", "Fitted to", "What that decides, which is not judged"]
    return parts().table(header, rows, "Calibration of the modelled cluster.") if rows else ""


def intervals(
    results: pd.DataFrame, metrics: Sequence[str], caption: str = "", by: str | Sequence[str] = "subject"
) -> Fragment:
    """A table of each subject's metrics with their 95 % intervals over the seeds; `by` names the columns that make a subject."""
    by = [by] if isinstance(by, str) else list(by)
    results[by]  # raises for names that are no columns, which groupby takes for one row's groups
    groups = list(results.groupby(by, sort=False))
    counts = {len(group) for _, group in groups}
    rows = [[*names, *(_mean(group[m].astype(float)) for m in metrics), len(group)] for names, group in groups]
    header = [*map(label, by), *map(label, metrics), "seeds"]
    if len(counts) == 1:  # then the caption has it
        header, rows = header[:-1], [row[:-1] for row in rows]
        caption = caption or f"Mean and 95 % interval over {counts.pop()} seeds."
    return Fragment(parts().table(header, rows, caption or "Mean and 95 % interval.", range(len(by), len(header))))


def _mean(values: pd.Series) -> str:
    mean, low, _ = _claims.interval(values)
    return plus_minus(mean, mean - low)


def table(data: pd.DataFrame, caption: str = "") -> Fragment:
    """A frame as a table: its index, unless it only counts the rows, as the first columns; a column's numbers to the same digit;
    a dash for a missing value."""
    from pandas.api import types

    names = data.index.names
    if any(name is not None for name in names) or not types.is_numeric_dtype(data.index):
        data = data.rename_axis(index=["" if name is None else name for name in names]).reset_index()
    header, cells, numeric = [], [], []
    for place, name in enumerate(data.columns):
        values = data.iloc[:, place]
        header.append(", ".join(filter(None, map(str, name))) if isinstance(name, tuple) else label(str(name)))
        if numbers := types.is_numeric_dtype(values) and not types.is_bool_dtype(values):
            numeric.append(place)
        shown = zip(values, values.isna(), strict=True)
        cells.append(column(values) if numbers else ["–" if absent else flat(x) for x, absent in shown])
    return Fragment(parts().table(header, list(zip(*cells, strict=True)), caption, numeric))


def verdict_table(verdicts: Iterable[Verdict], caption: str = "") -> str:
    """Each verdict with its rule, above a row for each of its cases; those of a short run with what is published, in grey."""
    verdicts = list(verdicts)
    short = {verdict.claim.notebook for verdict in verdicts if verdict.profile == "smoke"}
    known = {each.claim.id: each for name in sorted(short) for each in _claims.published(name)}
    groups = []
    for v in verdicts:
        published = known.get(v.claim.id)
        names = ("entry", f"k-{v.claim.kind}", f"v-{slug(v.word)}", *["k-counted"] * v.counts)
        rows = _cases(v) + [[parts().published(name), *row] for name, *row in (_cases(published) if published else ())]
        groups.append((names, parts().judged(v, published), rows))
    return parts().entries(["Case", "Ours", "Share of the paper's effect", "The paper", "Seeds"], groups, caption)


def _cases(verdict: Verdict) -> list[list[Any]]:
    """A row for each case, with a word of its own where there are several; without cases, the paper's figures."""
    claim, cases = verdict.claim, verdict.cases
    if not cases:
        return [[case, "–", "", flat(paper), ""] for case, paper in claim.cases.items() if paper is not None]
    named = [parts().case(case.case, case if len(cases) > 1 else None) for case in cases]
    shares = [parts().share(part_text(claim, case), row_picture(claim, case)) for case in cases]
    texts = [(measured_text(claim, case), paper_text(claim, case), seeds_text(claim, case)) for case in cases]
    return [[name, ours, share, *more] for name, share, (ours, *more) in zip(named, shares, texts, strict=True)]


def verdicts(verdicts: Iterable[Verdict]) -> Fragment:
    """The claims' verdicts, and what was fitted for their notebooks."""
    verdicts = list(verdicts)
    if not verdicts:
        return Fragment(parts().heading("Verdicts") + "<p>Real data: shown, not judged.</p>", "not judged")
    html = parts().heading("Verdicts") + verdict_table(verdicts, HOW_TO_READ)
    html += fitted({verdict.claim.notebook for verdict in verdicts})
    return Fragment(html, "verdicts")


def found(verdicts: Iterable[Verdict], *claim_ids: str) -> Fragment:
    """What these claims' runs gave, a sentence each; of a short run's claims what is published, in grey. Nothing of runs on real
    data, which are not judged."""
    if not (mine := {verdict.claim.id: verdict for verdict in verdicts}):
        return Fragment("")
    if missing := [each for each in claim_ids if each not in mine]:
        raise unknown("claim", missing[0], mine)
    chosen = [mine[each] for each in claim_ids]
    if short := any(verdict.profile == "smoke" for verdict in chosen):
        known = {each.claim.id: each for each in _claims.published(chosen[0].claim.notebook)}
        chosen = [known[each] for each in claim_ids if each in known]
    source = f"Found, as published (commit {chosen[0].commit}):" if short and chosen else "Found:"
    return Fragment(parts().found(source, map(sentence, chosen), short) if chosen else "")


def provenance_card(runs: Any, notebook: str) -> Fragment:
    """Where a notebook's numbers come from: what its runs share, and how they differ; without runs, this machine.

    `runs` is one run, a list, or a mapping to lists.
    """
    from lib.results.provenance import machine

    runs = flatten(runs)
    shared, differing = differences([run.provenance for run in runs] or [machine()])
    facts: dict[str, Any] = {"repeat with": parts().code(repeat(notebook))}
    facts |= {key.replace("_", " "): flat(value) for key, value in shared.items()} | differing
    if code := str(facts.pop("commit", "")):
        more = ", with changed or new files that it does not have"
        facts[RUNS_CODE] = f"{code[:-1]}{more}" if code.endswith("+") else code
    facts |= {"runs": len(runs)} if runs else {}
    html = parts().heading("Provenance") + parts().provenance(facts, [_digest(run) for run in runs])
    return Fragment(html, "provenance")


def differences(values: Sequence[Mapping[str, Any]], path: str = "") -> tuple[dict[str, Any], dict[str, str]]:
    """What mappings share and, by the names that lead there, all the values in which they differ."""
    shared, differing = {}, {}
    for key in dict.fromkeys(key for value in values for key in value):
        found = [value.get(key) for value in values]
        place = f"{path}{key}".replace("_", " ")
        if all(each == found[0] for each in found):
            shared[key] = found[0]
        elif all(isinstance(each, Mapping) for each in found):
            names = list(dict.fromkeys(each.get("name") for each in found))
            if len(names) > 1:
                differing[place] = _several(names)
            for name in names:
                label = f"{key} {name}" if len(names) > 1 else key
                same, more = differences([each for each in found if each.get("name") == name], f"{path}{label}, ")
                if len(names) > 1:
                    same.pop("name")
                shared |= {label: same} if same else {}
                differing |= more
        else:
            differing[place] = _several(found)
    return shared, differing


def _several(values: Sequence[Any]) -> str:
    """Each value once; successive whole numbers as their first and last."""
    if all(isinstance(x, int) for x in values):
        numbers = sorted(set(values))
        if numbers[-1] - numbers[0] == len(numbers) - 1 > 1:
            return f"{numbers[0]} to {numbers[-1]}"
    return "; ".join(dict.fromkeys("–" if x is None else flat(x) for x in values))


def _digest(run: Any) -> list[Any]:
    name, seed = run.provenance["protocol"].get("name", ""), run.provenance["seed"]
    return [name, str(seed), parts().code(run.digest[:16])]
