"""Verdicts as files: judged in a notebook, read by the index and the command line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib import paths
from lib.errors import LockstepError, unknown
from lib.reporting.claims.claim import Claim, load
from lib.reporting.claims.judge import VERDICTS, Verdict, judge

if TYPE_CHECKING:
    import pandas as pd


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


def file_of(claim_id: str, folder: Path | None = None) -> Path:
    """Where a folder keeps a claim's verdict."""
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
    return paths.write_text_atomic(file_of(claim.id), text + "\n")


def record(table: pd.DataFrame, notebook: str, profile: str = "") -> list[Verdict]:
    """Judge every claim of a notebook (none can be left out) and store the verdicts."""
    mine = [claim for claim in load().values() if claim.notebook == notebook]
    if not mine:
        raise unknown("notebook with claims", notebook, {claim.notebook for claim in load().values()})
    from lib.reporting.notebooks.declared import repeat  # notebooks know claims

    command = repeat(notebook)
    verdicts = [dataclasses.replace(judge(claim, table, profile), command=command) for claim in mine]
    for verdict in verdicts:
        save(verdict, table)
    return verdicts


def stored(claim: Claim, folder: Path | None = None) -> Verdict:
    """The claim's stored verdict; *not run* when there is none."""
    path = file_of(claim.id, folder or paths.reports())
    if not path.exists():
        return Verdict(claim=claim, verdict="not run")
    verdict, judged_by = _read(path, claim.notebook)
    return dataclasses.replace(verdict, claim=claim, changed=judged_by != claim.hash)


def kept(folder: Path) -> list[Verdict]:
    """The verdicts that a folder holds, each with its claim as it was judged, whatever the claims say today."""
    return [_read(path, "its notebook")[0] for path in sorted((folder / "claims").glob("*.json"))]


def _read(path: Path, notebook: str) -> tuple[Verdict, str]:
    """A stored verdict, and the hash of the claim that was judged."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        fields = {name: record[name] for name in _KEPT}
        if record["verdict"] not in VERDICTS:
            raise ValueError(f"verdict {record['verdict']!r}")
        return Verdict(claim=Claim(**record["claim"]), **fields), record["hash"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LockstepError(f"{path}: not a stored verdict ({error}); delete it and run {notebook}") from error


def verdicts(folder: Path | None = None) -> list[Verdict]:
    """Every claim with its stored verdict."""
    return [stored(claim, folder) for claim in load().values()]


def table() -> pd.DataFrame:
    """Every claim with its verdict, a row each, as `python -m lib claims` prints it."""
    import pandas as pd

    rows = []
    for verdict in verdicts():
        claim, judged = (
            verdict.claim,
            {name: getattr(verdict, name) for name in ("ours", "low", "high", "n", "profile")},
        )
        rows.append(dataclasses.asdict(claim) | judged | {"verdict": verdict.text, "rule": claim.rule})
    columns = ["id", "verdict", "ours", "low", "high", "n", "rule", "paper", "place", "profile", "notebook", "sentence"]
    return pd.DataFrame(rows, columns=columns)
