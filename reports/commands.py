"""The commands that run notebooks and show claims: `lockstep run`, `report`, `claims`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lib.command_line import PAIRS
from lib.errors import BadOption, unknown
from lib.workloads import PROFILES

if TYPE_CHECKING:
    import pandas as pd


def lists() -> dict[str, dict[str, str]]:
    """What `lockstep list` shows of the notebooks."""
    from reports import runner

    return {"notebooks": {page.name: page.title for page in runner.experiments()}}


def add_to(add: Callable[..., Any]) -> None:
    """Add the commands to `lockstep`."""
    run = add("run", _run, "run notebooks and write their pages and the index")
    run("name", metavar="EXPERIMENT|PAPER|all", help="a notebook, all of a paper's, or all")
    run("--profile", choices=PROFILES, default="smoke", help="how long the runs are")
    run("-p", "--parameter", help="a notebook's parameter; repeatable", **PAIRS)
    cost = "say what the page would cost, by short runs in the place of its runs: nothing is trained to its end"
    run("--estimate", action="store_true", help=cost)
    sealed = "judge a whole paper's committed rules once, on new seeds, and record that it was done"
    run("--sealed", action="store_true", help=sealed)
    complete = "leave out notebooks whose results are complete: same profile, parameters, notebook, claims and lib"
    run("--resume", action="store_true", help=complete)
    add("report", _report, "write the index of all reports anew from what has been run")
    claims = add("claims", _claims, "show claims with their verdicts, as published and as run here")
    claims("of", nargs="?", default="", metavar="PAPER|ID", help="of one paper or page, or one claim (default all)")
    claims("--failed", action="store_true", help="only those that were judged and did not hold, there or here")
    plan = "how many seeds find each effect nine times in ten, by the spread of stored runs"
    claims("--plan", action="store_true", help=plan)
    claims("--json", action="store_true", help="print them as JSON")


def _run(options: argparse.Namespace) -> None:
    from lib import seeds
    from reports import runner
    from reports.claims import sealed_runs

    parameters = {}
    for experiment in runner.resolve(options.name):
        parameters = runner.parse_parameters(experiment, options.parameter)
    if options.estimate:
        from reports.runner.estimate import estimate

        for experiment in runner.resolve(options.name):
            print(estimate(experiment.name, options.profile, parameters))
        return
    if options.sealed:
        if parameters or options.profile == "smoke":
            raise BadOption("a sealed run is what is published: at laptop or full, without parameters of its own")
        os.environ[seeds.DRAWN] = str(sealed_runs.draw(options.name, options.resume))
    from reports import index  # which imports pandas, not needed to find a wrong name

    print(index.build(options.profile, options.name, parameters, options.resume))


def _report(options: argparse.Namespace) -> None:
    from reports import index

    print(index.write_index())


def _claims(options: argparse.Namespace) -> None:
    """Print every case with its published verdict and that of this machine's run, and count them."""
    from lib import paths
    from reports import claims

    published, here = claims.verdicts(paths.reference()), claims.verdicts()
    columns = ["word", "share", "share_low", "share_high", "ours"]
    known = claims.table(published).drop_duplicates(["id", "case"]).set_index(["id", "case"])[[*columns, "plan"]]
    table = claims.table(here).join(known.add_suffix(", published"), on=["id", "case"])
    table = _chosen(table, options.of)
    if options.failed:
        bad = (*claims.AGAINST, claims.SHELF)
        table = table[table[["word", "word, published"]].isin(bad).any(axis=1)]
    if options.plan:
        needed = table["plan"].fillna(table["plan, published"]).dropna().astype(int).rename("needed")
        shown = table[["id", "case", "seeds"]].join(needed, how="inner")
        print("no stored run says what spread there is: run a pilot" if shown.empty else shown.to_string(index=False))
        return
    if options.json:
        print(table.to_json(orient="records", indent=1))
        return
    figures = ["ours", "share"] if table["ours"].notna().any() else []
    shown = table[["id", "kind", "case", *(f"{name}, published" for name in columns), "word", *figures]]
    shown = shown.rename(columns={"word, published": "published", "word": "here"})
    shown = shown.rename(columns=lambda name: name.removesuffix(", published"))
    print(shown.to_string(index=False, na_rep="", float_format="{:.3g}".format))
    if not options.of and not options.failed:
        counts = {"published": claims.counts(published), "here": claims.counts(here)}
        for kind in counts["published"] | counts["here"]:
            tallies = (f"{place} {claims.tally(found.get(kind, {})) or 'none'}" for place, found in counts.items())
            print(f"{kind}: {'; '.join(tallies)}")


def _chosen(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows of a paper, a page or a claim; all of them for no name."""
    if not name:
        return table
    found = table[table["id"].eq(name) | table["notebook"].eq(name) | table["notebook"].str.startswith(f"{name}/")]
    if found.empty:
        first = name.partition("." if "." in name else "/")[0]
        near = {each for each in (*table["notebook"], *table["id"]) if each.startswith((f"{first}.", f"{first}/"))}
        raise unknown("paper, page or claim", name, near or {each.partition("/")[0] for each in table["notebook"]})
    return found
