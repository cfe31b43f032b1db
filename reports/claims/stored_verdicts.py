"""Verdicts as files: judged in a notebook, read by the index and the command line, with remarks for their readers."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib import paths
from lib.errors import LockstepError, unknown
from reports.claims import dependencies, sealed_runs
from reports.claims.claim import Claim
from reports.claims.judge import OUTCOMES, VERDICTS, Case, Verdict, judge
from reports.claims.loading import calibrations, load, of_notebook
from reports.claims.statistics import holm

if TYPE_CHECKING:
    import pandas as pd

CONTRACT = 2
"""The records' version; a record of another one was judged by other rules and is not read."""
FIDELITY = "fidelity.throughput"
"""The promise whose figure is the error of a predicted throughput."""
FIELDS = ("verdict", "detail", "profile", "command")
"""What a record has of a verdict beside its claim and cases."""


def results(runs: Mapping[str, Iterable[Any]]) -> pd.DataFrame:
    """One row for every run: subject (the key), seed, and the run's summary."""
    import pandas as pd

    each = ((subject, run) for subject, group in runs.items() for run in group)
    return pd.DataFrame(
        [{"subject": subject, "seed": int(run.provenance["seed"]), **run.summary} for subject, run in each]
    )


def verdict_file(claim_id: str, folder: Path | None = None) -> Path:
    """Where a folder, by default that of a notebook's results, has a claim's verdict."""
    return (folder or paths.results()) / "claims" / f"{claim_id.replace('/', '-')}.json"


def save(verdict: Verdict, table: pd.DataFrame, made_at: list[str]) -> Path:
    """Store a verdict with the claim as it was judged, what it rests on, and the numbers that it was judged on."""
    claim = verdict.claim
    rows = table[table["subject"].isin([name for each in claim.comparisons for name in each.subjects])]
    metrics = dict.fromkeys(each.metric for each in claim.comparisons)
    columns = dict.fromkeys(["subject", "seed", *([claim.over] if claim.over else []), *metrics, *claim.regime])
    record = {
        "contract": CONTRACT,
        **{name: getattr(verdict, name) for name in FIELDS},
        "cases": [dataclasses.asdict(case) for case in verdict.cases],
        "sealed": verdict.sealed,
        "commits": made_at,
        "parts": dependencies.parts_of(claim),
        "claim": dataclasses.asdict(claim),
        "results": json.loads(rows[[*columns]].to_json(orient="records", double_precision=15)),
    }
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    return paths.write_text_atomic(verdict_file(claim.id), text + "\n")


def record(table: pd.DataFrame, notebook: str, profile: str = "", runs: Any = ()) -> list[Verdict]:
    """Judge every claim of a notebook, and store the verdicts.

    `runs` are those that the table was made of, a list or a mapping to lists: git must find the rules in their commits.
    """
    if not (mine := of_notebook(notebook)):
        raise unknown("notebook with claims", notebook, {claim.notebook for claim in load().values()})
    from reports.runner.notebook_parameters import repeat  # whose package imports this one

    command, made_at = repeat(notebook), dependencies.commits(dependencies.flatten(runs))
    fitted = [each for each in calibrations() if notebook in each.notebooks]
    found = [dataclasses.replace(judge(claim, table, profile, fitted), command=command) for claim in mine]
    for verdict in found:
        save(verdict, table, made_at)
    error = _clock_error(paths.reports())
    return [_with_remarks(each, made_at, error) for each in found]


def stored_verdict(claim: Claim) -> Verdict:
    """The claim's verdict in the reports folder; *not run* when there is none."""
    path = verdict_file(claim.id, paths.reports())
    found = _read(path, claim.notebook) if path.exists() else None
    if found is None:
        detail = "what is stored was judged under another contract" if path.exists() else ""
        return Verdict(claim=claim, verdict="not run", detail=detail)
    verdict, made_at, parts = found
    changed = tuple(dependencies.changes(parts, dependencies.parts_of(claim)))
    verdict = dataclasses.replace(verdict, claim=claim, changed=changed)
    return _with_remarks(verdict, made_at, _clock_error(paths.reports()))


def verdicts(paper: str | None = None) -> list[Verdict]:
    """Every claim of today, or of one paper's folder, with its verdict in the reports folder."""
    return after_holm(stored_verdict(claim) for claim in load().values() if paper in (None, claim.folder))


def verdicts_in(folder: Path) -> list[Verdict]:
    """The verdicts that a folder has, each with its claim as it was judged, whatever the claims say today."""
    found = (_read(path, "its notebook") for path in sorted((folder / "claims").glob("*.json")))
    error = _clock_error(folder)
    return after_holm(_with_remarks(verdict, made_at, error) for verdict, made_at, _ in filter(None, found))


def after_holm(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts, with Holm's p among all the judged claims of each paper."""
    verdicts = list(verdicts)
    families: dict[str, dict[str, float]] = defaultdict(dict)
    for verdict in verdicts:
        if verdict.claim.kind == "paper" and verdict.p is not None and verdict.verdict in OUTCOMES["paper"]:
            families[verdict.claim.folder][verdict.claim.id] = verdict.p
    adjusted = {name: p for family in families.values() for name, p in holm(family).items()}
    return [dataclasses.replace(verdict, adjusted=adjusted.get(verdict.claim.id)) for verdict in verdicts]


def counts(verdicts: Sequence[Verdict]) -> dict[str, dict[str, int]]:
    """Count verdicts: kind -> verdict -> how many. The first kind are papers' confirmatory claims; papers' count after Holm."""
    found = {"confirmatory": Counter(each.counted for each in verdicts if each.standing == "confirmatory")}
    found |= {kind: Counter(each.counted for each in verdicts if each.claim.kind == kind) for kind in OUTCOMES}
    return {kind: {each: count[each] for each in VERDICTS if count[each]} for kind, count in found.items() if count}


def tally(found: Mapping[str, int]) -> str:
    """`2 replicated, 3 inconclusive`."""
    return ", ".join(f"{count} {verdict}" for verdict, count in found.items())


def _with_remarks(verdict: Verdict, made_at: list[str], error: float | None) -> Verdict:
    """The verdict, with remarks for its readers and its standing; `error` is the modelled clock's."""
    claim, remarks, standing = verdict.claim, [], verdict.claim.standing
    if verdict.changed:
        commit = f" of commit {made_at[0][:10]}" if made_at else ""
        remarks.append(f"changed since its run{commit}: {', '.join(verdict.changed)}")
    if claim.kind == "paper":
        late = dependencies.rule_came_later(claim, made_at)
        if late:
            remarks.append("its rule was committed after its run")
        elif late is None:
            remarks.append("whether the rule was there before the run, git cannot say")
        elif verdict.sealed is not None:
            standing = standing if standing == "foreseen" else "confirmatory"
            times = sum(record["first"] == verdict.sealed for record in sealed_runs.records(claim.folder))
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


def _clock_error(folder: Path) -> float | None:
    """The error of a predicted throughput by fidelity's verdict in that folder or, without one there, in the reference."""
    for path in (verdict_file(FIDELITY, folder), verdict_file(FIDELITY, paths.reference())):
        if path.exists() and (found := _read(path, "94_fidelity")):
            return found[0].cases[0].ours
    return None


def _read(path: Path, notebook: str) -> tuple[Verdict, list[str], dict[str, Any]] | None:
    """A stored verdict, the commits of its runs, and what it rested on; None for a record of another contract."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record.get("contract") != CONTRACT:
            return None
        if record["verdict"] not in VERDICTS:
            raise ValueError(f"verdict {record['verdict']!r}")
        verdict = Verdict(
            claim=Claim(**record["claim"]),
            cases=tuple(Case(**case) for case in record["cases"]),
            sealed=record.get("sealed"),
            **{name: record[name] for name in FIELDS},
        )
        parts = {name: record["parts"][name] for name in ("rule", "settings", "code")}
        return verdict, record["commits"], parts
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LockstepError(f"{path}: not a stored verdict ({error}); delete it and run {notebook}") from error


def table(verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """A row for every case of every claim with its verdict, as `lockstep claims` prints it."""
    import pandas as pd

    rows = []
    for verdict in verdicts:
        claim = verdict.claim
        names = ("id", "kind", "standing", "rule", "every", "place", "notebook", "sentence")
        shared = {name: getattr(claim, name) for name in names}
        shared |= {"verdict": verdict.text, "remarks": "; ".join(verdict.remarks), "profile": verdict.profile}
        unjudged = [Case(case=each.case, paper=each.paper, verdict=verdict.verdict) for each in claim.comparisons]
        for case in verdict.cases or unjudged:
            found = dataclasses.asdict(case) | {"least": None if claim.every else case.least}
            rows.append(shared | {"case_verdict": found.pop("verdict")} | found)
    return pd.DataFrame(rows)
