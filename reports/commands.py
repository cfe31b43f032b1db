"""The commands that run notebooks and show claims: `lockstep run`, `report`, `claims`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from lib.command_line import PAIRS
from lib.errors import BadOption, unknown
from lib.workloads import PROFILES


def lists() -> dict[str, dict[str, str]]:
    from reports import runner

    return {"notebooks": {page.name: page.title for page in runner.experiments()}}


def add_to(add: Callable[..., Any]) -> None:
    run = add("run", _run, "run notebooks and write their pages and the index")
    run("name", metavar="EXPERIMENT|PAPER|all", help="a notebook, all of a paper's, or all")
    run("--profile", choices=PROFILES, default="smoke", help="how long the runs are")
    run("-p", "--parameter", help="a notebook's parameter; repeatable", **PAIRS)
    sealed = "judge a whole paper's committed rules once, on new seeds, and record that it was done"
    run("--sealed", action="store_true", help=sealed)
    complete = "leave out notebooks whose results are complete: same profile, parameters, notebook, claims and lib"
    run("--resume", action="store_true", help=complete)
    add("report", _report, "write the index of all reports anew from what has been run")
    claims = add("claims", _claims, "show claims with their verdicts, as published and as run here")
    claims("of", nargs="?", default="", metavar="PAPER|ID", help="of one paper or page, or one claim (default all)")
    claims("--failed", action="store_true", help="only those that were judged and did not hold, there or here")
    claims("--json", action="store_true", help="print them as JSON")


def _run(options: argparse.Namespace) -> None:
    from lib import seeds
    from reports import runner
    from reports.claims import sealed_runs

    parameters = {}
    for experiment in runner.resolve(options.name):
        parameters = runner.parse_parameters(experiment, options.parameter)
    if options.sealed:
        if parameters or options.profile == "smoke":
            raise BadOption("a sealed run is what is published: at laptop or full, without parameters of its own")
        os.environ[seeds.DRAWN] = str(sealed_runs.draw(options.name, options.resume))
    from reports import index  # which imports pandas, not needed to find a wrong name

    print(index.build(options.profile, options.name, parameters, options.resume))


def _report(options: argparse.Namespace) -> None:
    from reports import index

    print(index.index())


def _claims(options: argparse.Namespace) -> None:
    """Every case as it was published, and as it was run here."""
    from lib import paths
    from reports import claims
    from reports.summary_text import MISSED

    found = {"published": claims.kept(paths.reference()), "here": claims.verdicts()}
    known, table = (claims.table(verdicts) for verdicts in found.values())
    known = known.set_index(["id", "case"])[["case_verdict", "ours", "low", "high"]].add_suffix(", published")
    table = table.join(known.loc[~known.index.duplicated()], on=["id", "case"])
    mine = (
        table["id"].eq(options.of)
        | table["notebook"].eq(options.of)
        | table["notebook"].str.startswith(f"{options.of}/")
    )
    if options.of and not mine.any():
        names = {*table["notebook"], *table["id"]}
        ahead = options.of.partition(next((mark for mark in "./" if mark in options.of), "/"))[0]
        near = {name for name in names if name.startswith((f"{ahead}.", f"{ahead}/"))}
        raise unknown(
            "paper, page or claim", options.of, near or {name.partition("/")[0] for name in table["notebook"]}
        )
    table = table[mine] if options.of else table
    if options.failed:
        table = table[table[["case_verdict", "case_verdict, published"]].isin(MISSED).any(axis=1)]
    if options.json:
        print(table.to_json(orient="records", indent=1))
        return
    figures = ["ours", "low", "high"]
    columns = ["id", "kind", "case", *known, "case_verdict", *(figures if table["ours"].notna().any() else [])]
    shown = table[columns].rename(columns={"case_verdict, published": "published", "case_verdict": "here"})
    print(
        shown.rename(columns=lambda name: name.removesuffix(", published")).to_string(
            index=False, na_rep="", float_format="{:.3g}".format
        )
    )
    if options.of or options.failed:
        return
    told = {where: claims.counts(verdicts) for where, verdicts in found.items()}
    for kind in dict.fromkeys(kind for counts in told.values() for kind in counts):
        print(
            f"{kind}: " + "; ".join(f"{where} {claims.tally(of.get(kind, {})) or 'none'}" for where, of in told.items())
        )
