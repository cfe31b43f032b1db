"""What a notebook shows besides figures: settings, claims, tables, verdicts and provenance, as plain HTML without scripts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lib.errors import unknown
from reports import claims as _claims
from reports.claims import Verdict
from reports.claims.dependencies import flatten
from reports.forest import row_picture
from reports.markup import Fragment, flat, parts, slug, words
from reports.quantities import column, label, measured_text, paper_text, part_text, plus_minus, seeds_text
from reports.runner import repeat
from reports.summary_text import sentence

if TYPE_CHECKING:
    import pandas as pd

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
    rows = []
    for names, group in results.groupby(by, sort=False):
        means = [_claims.interval(group[metric].astype(float)) for metric in metrics]
        rows.append([*names, *(plus_minus(mean, mean - low) for mean, low, _ in means), len(group)])
    header = [*map(label, by), *map(label, metrics), "seeds"]
    if len(counts := {row[-1] for row in rows}) == 1:  # then the caption has it
        header, rows = header[:-1], [row[:-1] for row in rows]
        caption = caption or f"Mean and 95 % interval over {counts.pop()} seeds."
    return Fragment(parts().table(header, rows, caption or "Mean and 95 % interval.", range(len(by), len(header))))


def table(data: pd.DataFrame, caption: str = "") -> Fragment:
    """A frame as a table: its index, unless it only counts the rows, as the first columns; a column's numbers to the same digit;
    a dash for a missing value."""
    from pandas.api import types

    names = data.index.names
    if any(name is not None for name in names) or not types.is_numeric_dtype(data.index):
        data = data.rename_axis(index=["" if name is None else name for name in names]).reset_index()
    header = [", ".join(filter(None, map(str, x))) if isinstance(x, tuple) else label(str(x)) for x in data.columns]
    cells, numeric = [], []
    for place in range(len(header)):
        values = data.iloc[:, place]
        if types.is_numeric_dtype(values) and not types.is_bool_dtype(values):
            numeric.append(place)
            cells.append(column(values))
        else:
            cells.append(["–" if absent else flat(x) for x, absent in zip(values, values.isna(), strict=True)])
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
    claim, several = verdict.claim, len(verdict.cases) > 1
    if not verdict.cases:
        return [[case, "–", "", flat(paper), ""] for case, paper in claim.cases.items() if paper is not None]
    rows = []
    for case in verdict.cases:
        name = parts().case(case.case, case if several else None)
        share = parts().share(part_text(claim, case), row_picture(claim, case))
        rows.append([name, measured_text(claim, case), share, paper_text(claim, case), seeds_text(claim, case)])
    return rows


def verdicts(verdicts: Iterable[Verdict]) -> Fragment:
    """The claims' verdicts, and what was fitted for their notebooks."""
    verdicts = list(verdicts)
    if not verdicts:
        return Fragment(parts().heading("Verdicts") + "<p>Real data: shown, not judged.</p>", "not judged")
    html = parts().heading("Verdicts") + verdict_table(verdicts, words()["how_to_read"])
    return Fragment(html + fitted({verdict.claim.notebook for verdict in verdicts}), "verdicts")


def found(verdicts: Iterable[Verdict], *claim_ids: str) -> Fragment:
    """What these claims' runs gave, a sentence each; of a short run's claims what is published, in grey. Nothing of runs on real
    data, which are not judged."""
    if not (mine := {verdict.claim.id: verdict for verdict in verdicts}):
        return Fragment("")
    if missing := [each for each in claim_ids if each not in mine]:
        raise unknown("claim", missing[0], mine)
    chosen, source = [mine[each] for each in claim_ids], "Found:"
    if short := any(verdict.profile == "smoke" for verdict in chosen):
        known = {each.claim.id: each for each in _claims.published(chosen[0].claim.notebook)}
        if not (chosen := [known[each] for each in claim_ids if each in known]):
            return Fragment("")
        source = f"Found, as published (commit {chosen[0].commit}):"
    return Fragment(parts().found(source, map(sentence, chosen), short))


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
        facts[RUNS_CODE] = code.replace("+", ", with changed or new files that it does not have")
    facts |= {"runs": len(runs)} if runs else {}
    names = ((run.provenance["protocol"].get("name", ""), str(run.provenance["seed"])) for run in runs)
    digests = [[*name, parts().code(run.digest[:16])] for name, run in zip(names, runs, strict=True)]
    return Fragment(parts().heading("Provenance") + parts().provenance(facts, digests), "provenance")


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
            if several := len(names) > 1:
                differing[place] = _several(names)
            for name in names:
                label = f"{key} {name}" if several else key
                same, more = differences([each for each in found if each.get("name") == name], f"{path}{label}, ")
                if several:
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
