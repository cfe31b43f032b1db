"""Verdicts as files: what the runs gave is stored, and judged by today's rule whenever it is read.

A record also has the word of its own day. Where the rule has changed since, the reader sees today's word, marked as judged again
from the runs of that commit; the older word stays in the file.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib import paths
from lib.errors import LockstepError, unknown
from reports.claims import dependencies, sealed_runs
from reports.claims.claim import Claim
from reports.claims.judge import ALL_WORDS, SHOWN, WORDS, Case, Verdict, judge
from reports.claims.loading import calibrations, load, of_notebook

if TYPE_CHECKING:
    import pandas as pd

QUALITIES = ("auc", "ne", "logloss", "accuracy", "em", "f1", "mrr")
"""Metrics that are taken as a run's quality: a mean of evaluations, under the true probabilities where these are known."""
FIDELITY = "fidelity.throughput"
"""The target whose figure is the error of a predicted throughput."""


def results(runs: Mapping[str, Iterable[Any]]) -> pd.DataFrame:
    """One row for every run: subject (the key), seed, and the run's summary, with its qualities in place of its last metrics."""
    import pandas as pd

    rows = []
    for subject, run in ((subject, run) for subject, group in runs.items() for run in group):
        qualities = {name: run.quality(run.history_column(name)) for name in QUALITIES if name in run.summary}
        rows.append({"subject": subject, "seed": int(run.provenance["seed"]), **run.summary, **qualities})
    return pd.DataFrame(rows)


def verdict_file(claim_id: str, folder: Path | None = None) -> Path:
    """Where a folder, by default that of a notebook's results, has a claim's verdict."""
    return (folder or paths.results()) / "claims" / f"{claim_id.replace('/', '-')}.json"


def save(verdict: Verdict, table: pd.DataFrame) -> Path:
    """Store a verdict with the claim as it was judged, what it rests on, and the numbers that it was judged on."""
    claim = verdict.claim
    rows = table[table["subject"].isin([name for each in claim.comparisons for name in each.subjects])]
    over = [claim.over] if isinstance(claim.over, str) else []
    columns = dict.fromkeys(["subject", "seed", *over, *(each.metric for each in claim.comparisons), *claim.regime])
    record = {
        **{name: getattr(verdict, name) for name in ("word", "detail", "profile", "command", "sealed")},
        "cases": [dataclasses.asdict(case) for case in verdict.cases],
        "commits": verdict.commits,
        "parts": dependencies.parts_of(claim),
        "claim": dataclasses.asdict(claim),
        "results": json.loads(rows[[*columns]].to_json(orient="records", double_precision=15)),
    }
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    return paths.write_text_atomic(verdict_file(claim.id), text + "\n")


def record(table: pd.DataFrame, notebook: str, profile: str = "", runs: Any = ()) -> list[Verdict]:
    """Judge every claim of a notebook, and store the verdicts.

    `runs` are those that the table was made of, a list or a mapping to lists: git must find the rules in their commits. Runs on
    real data are not judged, since the rules were written for synthetic data.
    """
    runs = dependencies.flatten(runs)
    if any(run.provenance.get("workload", {}).get("data") for run in runs):
        return []
    if not (mine := of_notebook(notebook)):
        raise unknown("notebook with claims", notebook, {claim.notebook for claim in load().values()})
    from reports.runner.notebook_parameters import repeat  # whose package imports this one

    facts = {"command": repeat(notebook), "commits": tuple(dependencies.commits(runs))}
    fitted = [each for each in calibrations() if notebook in each.notebooks]
    found = [dataclasses.replace(judge(claim, table, profile, fitted), **facts) for claim in mine]
    for verdict in found:
        save(verdict, table)
    error = _clock_error(paths.reports())
    return [_with_remarks(each, error) for each in found]


def published(notebook: str) -> list[Verdict]:
    """What the reference has of a notebook's claims."""
    return [each for each in verdicts(paths.reference(), of=notebook) if each.word not in ("not run", "refused")]


def verdicts(folder: Path | None = None, missing: str = "", of: str = "") -> list[Verdict]:
    """Every claim of today, or those `of` a notebook, with a folder's verdict, by default the reports folder's; *not run* for
    `missing` without one."""
    at = folder or paths.reports()
    error, fitted, found = _clock_error(at), calibrations(), []
    for claim in of_notebook(of) if of else load().values():
        path = verdict_file(claim.id, at)
        if path.exists():
            mine = [each for each in fitted if claim.notebook in each.notebooks]
            found.append(_with_remarks(_read(path, claim, mine, folder is None), error))
        else:
            found.append(Verdict(claim=claim, word="not run", detail=missing))
    return found


def _read(path: Path, claim: Claim, fitted: list[Any], compare: bool) -> Verdict:
    """What is stored of a claim's runs, judged by today's rule; with `compare` also what it rests on and has changed since."""
    with _readable(path, claim.notebook):
        stored = json.loads(path.read_text(encoding="utf-8"))
        parts = {name: stored["parts"][name] for name in ("rule", "settings", "code")}
        facts = {"profile": stored["profile"], "command": stored["command"], "sealed": stored.get("sealed")}
        commits = tuple(stored["commits"])
        again = "" if parts["rule"] == claim.hash else commits[0][:10] if commits else "unknown"
        try:
            verdict = judge(claim, stored["results"], facts["profile"], fitted, again)
        except LockstepError as error:
            why = f"today's rule needs another run of its page: {error}"
            verdict = Verdict(claim=claim, word="not run", detail=why)
        changed = tuple(dependencies.changes(parts, dependencies.parts_of(claim))) if compare else ()
        return dataclasses.replace(verdict, commits=commits, changed=changed, **facts)


@contextmanager
def _readable(path: Path, notebook: str) -> Iterator[None]:
    """Say of a file that is no stored verdict how it is made again."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise LockstepError(f"{path}: not a stored verdict ({error}); delete it and run {notebook}") from error


def false_positives(verdicts: Iterable[Verdict]) -> tuple[int, float]:
    """The number of shown effects of counted claims, and how many of them chance alone would show by expectation."""
    shown = [case for each in verdicts if each.counts for case in each.cases if case.word in SHOWN]
    risks = [case.p for case in shown if case.p is not None]
    return len(risks), sum(risks)


def counts(verdicts: Sequence[Verdict]) -> dict[str, dict[str, int]]:
    """Count words: kind -> word -> how many; of the papers' claims those that count."""
    shown = [each for each in verdicts if each.claim.kind != "paper" or each.counts or each.word == "not run"]
    found = {kind: Counter(each.word for each in shown if each.claim.kind == kind) for kind in WORDS}
    return {kind: {each: count[each] for each in ALL_WORDS if count[each]} for kind, count in found.items() if count}


def tally(found: Mapping[str, int]) -> str:
    """`2 reproduced, 3 undecided`."""
    return ", ".join(f"{count} {word}" for word, count in found.items())


def _with_remarks(verdict: Verdict, error: float | None) -> Verdict:
    """The verdict, with remarks for its readers; `error` is that of simulated time."""
    claim, remarks = verdict.claim, []
    if verdict.again:
        record = verdict_file(claim.id).relative_to(paths.results())
        runs = f"judged again, by today's rule, from runs made by the code of commit {verdict.again}"
        remarks.append(f"{runs}; its verdict of that day is in {record}")
    elif verdict.changed:
        commit = f" of commit {verdict.commit}" if verdict.commit else ""
        remarks.append(f"changed since its run{commit}: {', '.join(verdict.changed)}")
    if claim.kind == "paper" and claim.foreseen:
        remarks.append("foreseen by a formula, and not counted")
    elif claim.kind == "paper" and verdict.sealed is None:
        remarks.append("its seeds were not sealed, so that it is not counted")
    if claim.kind == "paper" and not verdict.again:
        late = dependencies.rule_came_later(claim, verdict.commits)
        times = sum(record["first"] == verdict.sealed for record in sealed_runs.records(claim.folder))
        if late is None:
            remarks.append("whether its rule is older than its run, git cannot say")
        elif late:
            remarks.append("its rule was committed after its run")
        elif verdict.sealed is not None:
            remarks.append("of the sealed run" if times == 1 else f"its sealed seeds were drawn {times} times")
    if verdict.word == "contradicted" and len(claim.explanations) < 2:
        tested = (
            "one explanation was tested, a second is" if claim.explanations else "unexplained: two explanations are"
        )
        remarks.append(f"{tested} to be tested")
    margin = min((case.rests_on for case in verdict.cases if case.rests_on is not None), default=None)
    if claim.modelled and margin is not None:
        if error is None:
            remarks.append("the error of simulated time was not measured: run 94_fidelity")
        elif margin < error:
            rests = f"in simulation only: it rests on a difference of {margin:.1%}"
            remarks.append(f"{rests}, and simulated throughputs err by {error:.1%}")
    return dataclasses.replace(verdict, remarks=tuple(remarks))


def _clock_error(folder: Path) -> float | None:
    """The error of a predicted throughput by fidelity's verdict in that folder or, without one there, in the reference."""
    for path in (verdict_file(FIDELITY, folder), verdict_file(FIDELITY, paths.reference())):
        if path.exists():
            with _readable(path, "94_fidelity"):
                return float(json.loads(path.read_text(encoding="utf-8"))["cases"][0]["ours"])
    return None


def table(verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """A row for every case of every claim with its word, as `lockstep claims` prints it."""
    import pandas as pd

    rows = []
    for verdict in verdicts:
        claim = verdict.claim
        shared = {name: getattr(claim, name) for name in ("id", "kind", "rule", "place", "notebook", "sentence")}
        shared |= {"verdict": verdict.text, "remarks": "; ".join(verdict.remarks), "profile": verdict.profile}
        unjudged = [Case(case=each.case, paper=each.paper, word=verdict.word) for each in claim.comparisons]
        for case in verdict.cases or unjudged:
            found = dataclasses.asdict(case) | {"seeds": claim.looks[-1], "plan": case.needs}
            share = zip(("share", "share_low", "share_high"), found.pop("part") or (None,) * 3, strict=True)
            rows.append(shared | found | dict(share))
    return pd.DataFrame(rows)
