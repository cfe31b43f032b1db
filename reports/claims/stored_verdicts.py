"""Verdicts as files: judged in a notebook, read by the index and the command line, with what must be known of them."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib import paths
from lib.errors import LockstepError, unknown
from reports.claims import dependencies as basis
from reports.claims import sealed_runs as sealing
from reports.claims.claim import Claim
from reports.claims.judge import OUTCOMES, VERDICTS, Case, Verdict, judge
from reports.claims.loading import calibrations, load, of
from reports.claims.statistics import holm

if TYPE_CHECKING:
    import pandas as pd

CONTRACT = 2
"""Of the records; those of another are of claims that were judged otherwise, and are not read."""
FIDELITY = "fidelity.throughput"
"""The promise whose figure is the error of a predicted throughput."""


def results(runs: Mapping[str, Iterable[Any]]) -> pd.DataFrame:
    """One row for every run: subject (the key), seed, and the run's summary."""
    import pandas as pd

    each = ((subject, run) for subject, group in runs.items() for run in group)
    return pd.DataFrame(
        [{"subject": subject, "seed": int(run.provenance["seed"]), **run.summary} for subject, run in each]
    )


_KEPT = ("verdict", "detail", "profile", "command")


def file_of(claim_id: str, folder: Path | None = None) -> Path:
    """Where a folder keeps a claim's verdict."""
    return (folder or paths.results()) / "claims" / f"{claim_id.replace('/', '-')}.json"


def save(verdict: Verdict, table: pd.DataFrame, made_at: list[str]) -> Path:
    """Store a verdict with the claim as it was judged, what it rests on, and the numbers that it was judged on."""
    claim, parts = verdict.claim, basis.of(verdict.claim)
    record = {"contract": CONTRACT, **{name: getattr(verdict, name) for name in _KEPT}}
    record |= {"cases": [dataclasses.asdict(case) for case in verdict.cases]}
    record |= {"sealed": verdict.sealed, "commits": made_at, "parts": parts, "claim": dataclasses.asdict(claim)}
    rows = table[table["subject"].isin([name for each in claim.comparisons for name in each.subjects])]
    metrics = dict.fromkeys(each.metric for each in claim.comparisons)
    columns = dict.fromkeys(["subject", "seed", *([claim.over] if claim.over else []), *metrics, *claim.regime])
    record["results"] = json.loads(rows[[*columns]].to_json(orient="records", double_precision=15))
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    return paths.write_text_atomic(file_of(claim.id), text + "\n")


def record(table: pd.DataFrame, notebook: str, profile: str = "", runs: Any = ()) -> list[Verdict]:
    """Judge every claim of a notebook (none can be left out) and store the verdicts. `runs` are those that the table was made
    of, a list or a mapping to lists: their commits must hold the rules already."""
    if not (mine := of(notebook)):
        raise unknown("notebook with claims", notebook, {claim.notebook for claim in load().values()})
    from reports.runner.notebook_parameters import repeat  # notebooks know claims

    command, made_at = repeat(notebook), basis.commits(basis.flatten(runs))
    fitted = [each for each in calibrations() if notebook in each.notebooks]
    verdicts = [dataclasses.replace(judge(claim, table, profile, fitted), command=command) for claim in mine]
    for verdict in verdicts:
        save(verdict, table, made_at)
    error = _error(paths.reports())
    return [_remarked(each, made_at, error) for each in verdicts]


def stored(claim: Claim) -> Verdict:
    """The claim's verdict as the reports have it; *not run* when there is none."""
    path = file_of(claim.id, paths.reports())
    kept = _read(path, claim.notebook) if path.exists() else None
    if kept is None:
        older = "what is stored was judged under another contract" if path.exists() else ""
        return Verdict(claim=claim, verdict="not run", detail=older)
    verdict, made_at, parts = kept
    changed = tuple(basis.changed(parts, basis.of(claim)))
    return _remarked(dataclasses.replace(verdict, claim=claim, changed=changed), made_at, _error(paths.reports()))


def kept(folder: Path) -> list[Verdict]:
    """The verdicts that a folder holds, each with its claim as it was judged, whatever the claims say today."""
    found = (_read(path, "its notebook") for path in sorted((folder / "claims").glob("*.json")))
    error = _error(folder)
    return corrected(_remarked(verdict, made_at, error) for verdict, made_at, _ in filter(None, found))


def corrected(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts, with Holm's p among all the judged claims of each paper."""
    verdicts = list(verdicts)
    families: dict[str, dict[str, float]] = defaultdict(dict)
    for verdict in verdicts:
        if verdict.claim.kind == "paper" and verdict.p is not None and verdict.verdict in OUTCOMES["paper"]:
            families[verdict.claim.folder][verdict.claim.id] = verdict.p
    adjusted = {name: p for family in families.values() for name, p in holm(family).items()}
    return [dataclasses.replace(verdict, adjusted=adjusted.get(verdict.claim.id)) for verdict in verdicts]


def counts(verdicts: Sequence[Verdict]) -> dict[str, dict[str, int]]:
    """Kind -> verdict -> how many, of those that there are; those of papers count as they stand after Holm, and first those of
    them that are confirmatory."""
    found = {"confirmatory": Counter(each.counted for each in verdicts if each.standing == "confirmatory")}
    found |= {kind: Counter(each.counted for each in verdicts if each.claim.kind == kind) for kind in OUTCOMES}
    return {kind: {each: of[each] for each in VERDICTS if of[each]} for kind, of in found.items() if of}


def tally(found: Mapping[str, int]) -> str:
    """`2 replicated, 3 inconclusive`."""
    return ", ".join(f"{count} {verdict}" for verdict, count in found.items())


def _remarked(verdict: Verdict, made_at: list[str], error: float | None) -> Verdict:
    """With what a reader must know beside it."""
    claim, remarks = verdict.claim, []
    standing = claim.standing
    if verdict.changed:
        of = f" of commit {made_at[0][:10]}" if made_at else ""
        remarks.append(f"changed since its run{of}: {', '.join(verdict.changed)}")
    if claim.kind == "paper":
        after = basis.written_after(claim, made_at)
        if after:
            remarks.append("its rule was committed after its run")
        elif after is None:
            remarks.append("whether the rule was there before the run, git cannot say")
        elif verdict.sealed is not None:
            standing = standing if standing == "foreseen" else "confirmatory"
            times = sum(record["first"] == verdict.sealed for record in sealing.records(claim.folder))
            remarks.append("of the sealed run" if times == 1 else f"its sealed seeds were drawn {times} times")
    if verdict.verdict == "not replicated" and len(claim.explanations) < 2:
        remarks.append("unexplained: two explanations are to be tested")
    margin = min((case.rests_on for case in verdict.cases if case.rests_on is not None), default=None)
    if claim.modelled and margin is not None and error is None:
        remarks.append("how exact the modelled clock is was not measured: run 94_fidelity")
    elif claim.modelled and margin is not None and margin < error:
        rests = f"it rests on a difference of {margin:.1%}, and the model's throughputs err by {error:.1%}"
        remarks.append(f"in the model only: {rests}")
    return dataclasses.replace(verdict, remarks=tuple(remarks), standing=standing)


def _error(folder: Path) -> float | None:
    """The error of a predicted throughput, as fidelity's verdict in that folder has it; without one there, as published."""
    for path in (file_of(FIDELITY, folder), file_of(FIDELITY, paths.reference())):
        kept = _read(path, "94_fidelity") if path.exists() else None
        if kept:
            return kept[0].cases[0].ours
    return None


def _read(path: Path, notebook: str) -> tuple[Verdict, list[str], dict[str, Any]] | None:
    """A stored verdict, the commits of its runs, and what it rested on; None for a record of another contract."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record.get("contract") != CONTRACT:
            return None
        fields = {name: record[name] for name in _KEPT}
        if record["verdict"] not in VERDICTS:
            raise ValueError(f"verdict {record['verdict']!r}")
        cases, sealed = tuple(Case(**case) for case in record["cases"]), record.get("sealed")
        parts = {name: record["parts"][name] for name in ("rule", "settings", "code")}
        return Verdict(claim=Claim(**record["claim"]), cases=cases, sealed=sealed, **fields), record["commits"], parts
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LockstepError(f"{path}: not a stored verdict ({error}); delete it and run {notebook}") from error


def verdicts(folder: str | None = None) -> list[Verdict]:
    """Every claim with its stored verdict, or every one of a paper's folder."""
    return corrected(stored(claim) for claim in load().values() if folder in (None, claim.folder))


def table(verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """Every case of every claim with its verdict, a row each, as `python -m lib claims` prints it."""
    import pandas as pd

    rows = []
    for verdict in verdicts:
        claim = verdict.claim
        named = ("id", "kind", "standing", "rule", "every", "place", "notebook", "sentence")
        about = {name: getattr(claim, name) for name in named}
        about |= {"verdict": verdict.text, "remarks": "; ".join(verdict.remarks), "profile": verdict.profile}
        unjudged = [Case(case=each.case, paper=each.paper, verdict=verdict.verdict) for each in claim.comparisons]
        for case in verdict.cases or unjudged:
            found = dataclasses.asdict(case) | {"least": None if claim.every else case.least}
            rows.append(about | {"case_verdict": found.pop("verdict")} | found)
    return pd.DataFrame(rows)
