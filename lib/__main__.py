"""Lockstep: how training workers keep in step, compared under one interface.

examples:
  python -m lib list
  python -m lib help gba
  python -m lib train ctr-synthetic gba virtual -o workers=32 -o slowdown=0.6 -o iota=4
  python -m lib train criteo-deepfm gba+all-reduce virtual -o lr=0.003 -o speeds=[1,1,0.5,2] -o store.max_rows=10000
  python -m lib train ctr-synthetic mine.py:MyRule virtual -o 'row_optimizer={name: adagrad, lr: 0.1}'
  python -m lib train fb15k-237-distmult sync local --profile full --data FB15k-237 -o workers=1
  python -m lib compare sync gba s-easgd -o workers=16 -o slowdown=alibaba-shared-2018
  python -m lib advise --workers 16 --slow 4@2x --network 10Gbit/s --model dlrm
  python -m lib advise --data FOLDER --workers 16 --step 5ms --trace steps.csv --columns worker=rank,took=seconds
  python -m lib train kg-synthetic oac local -o accesses=true   # its history, judged
  python -m lib check HISTORY   # anybody's, or a run's accesses.parquet
  python -m lib run 00_quickstart --profile laptop -p seeds=5
  python -m lib run all --profile laptop --resume
  python -m lib claims gba --failed
  python -m lib calibrate --out this_machine.yaml
  python -m lib train ctr-synthetic sync machine.yaml   # as calibrate writes it
  python -m lib train criteo-deepfm gba virtual --profile laptop --data FOLDER   # planted data without --data
  python -m lib train criteo-deepfm gba virtual -o slowdown=alibaba-shared-2018   # or a file of yours: data_prep trace
  python -m data_prep --list   # real data: where raw files are; then RAW -> prepared files
  python -m data_prep trace FILE
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lib.errors import BadOption, LockstepError, unknown
from lib.measure import asked
from lib.workloads import PROFILES

if TYPE_CHECKING:
    from lib.measure.compared import Comparison


def main(arguments: Sequence[str] | None = None) -> int:
    return carried_out(_parser().parse_args(arguments))


def carried_out(options: argparse.Namespace) -> int:
    """The command that was given, and its exit code; what is wrong is told in a line."""
    try:
        return options.command(options) or 0
    except LockstepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; everything that was saved before is whole", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lib", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    pairs = {"action": "append", "default": [], "metavar": "NAME=VALUE"}

    def add(name, command, help):
        """The command's `add_argument`."""
        sub = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        sub.set_defaults(command=command)
        return sub.add_argument

    add("list", _list, "show the workloads, protocols, clusters and notebooks that there are")
    add("help", _help, "show what a name of `list` is, and its options")("name", help="a protocol, workload or cluster")

    train = add("train", _train, "train once and print the summary")
    train("workload", help="a registered name, see `list`; or mine.py:Mine, a class of a file of yours")
    train("protocol", help="a registered name; or two, ROWS+DENSE; or mine.py:Mine")
    train("cluster", help="virtual, local or ray; or machine.yaml, as `calibrate` writes it; or mine.py:Mine")
    train("--seed", type=int, default=0, help="seed of the run (default 0)")
    train("--seeds", type=int, help="so many runs, from --seed on: a line each, and the mean with its 95 %% interval")
    train("--samples", type=int, help="samples of the pass (default: the workload's)")
    train("--profile", choices=PROFILES, help="the workload's size (default smoke)")
    train("--data", metavar="FOLDER", help="real data instead of planted, passed once at most; --samples for more")
    train("--force", action="store_true", help="train anew even if the run is saved already")
    train("--json", action="store_true", help="print the summary as JSON")
    option = "an option of whatever has it, or of a part of it; repeatable. Quantities may have units: "
    option += "network=10Gbit/s worker.latency=50us 'worker.launch=2 ms' server.memory=25GB/s store.max_bytes=2GiB"
    train("-o", "--option", help=option, **pairs)

    compare = add("compare", _compare, "train under several protocols, and say who is sooner and what that costs")
    compare("protocols", nargs="+", metavar="PROTOCOL", help="as for train; the others are held against the first")
    asked.flags(compare)
    compare("-o", "--option", help=option, **pairs)
    advise = add("advise", _advise, "try every protocol, and compare the few that were soonest")
    advise("--first", default="sync", metavar="PROTOCOL", help="what you have now, or know best (default sync)")
    advise("--keep", type=int, default=4, help="how many are compared with it (default 4)")
    ends = "time: who is soonest at the goal; quality: the soonest of those that are not measurably below the first"
    advise("--priority", choices=("time", "quality"), default="time", help=ends + " (default time)")
    asked.flags(advise)
    advise("-o", "--option", help=option, **pairs)

    check = add("check", _check, "judge a pipeline's history: what no serial run would have shown")
    check(
        "history", metavar="HISTORY", help="a .parquet or .csv file, as lib/results/history.py says and runs leave it"
    )

    run = add("run", _run, "run notebooks and write their pages and the index")
    run("name", metavar="EXPERIMENT|PAPER|all", help="a notebook, all of a paper's, or all")
    run("--profile", choices=PROFILES, default="smoke", help="how long the runs are")
    run("-p", "--parameter", help="a notebook's parameter; repeatable", **pairs)
    complete = "leave out notebooks whose results are complete: same profile, parameters, notebook, claims and lib"
    sealed = "judge a whole paper's committed rules, once, on seeds that nobody has seen, and note that it was done"
    run("--sealed", action="store_true", help=sealed)
    run("--resume", action="store_true", help=complete)

    add("report", _report, "write the index of all reports anew from what has been run")
    claims = add("claims", _claims, "show claims with their verdicts, as published and as run here")
    claims("of", nargs="?", default="", metavar="PAPER|ID", help="of one paper or page, or one claim (default all)")
    claims("--failed", action="store_true", help="those alone that were judged and did not hold, there or here")
    claims("--json", action="store_true", help="print them as JSON")
    specification = "measure this machine and write a specification for virtual clusters of its kind"
    calibrate = add("calibrate", _calibrate, specification)
    calibrate("--out", default="cluster.yaml", help="the file (default cluster.yaml)")
    calibrate("--quick", action="store_true", help="seconds instead of half a minute, and rougher")
    add("doctor", _doctor, "show what this machine has: cores, memory, GPU, Ray, versions")
    return parser


def _list(options: argparse.Namespace) -> None:
    from lib import cluster, protocols, workloads
    from lib.reporting import notebooks

    for title, registry in (("workloads", workloads.ALL), ("protocols", protocols.ALL), ("clusters", cluster.ALL)):
        print(f"{title}:")
        wide = 2 + max(map(len, registry))
        for name in registry:
            family = f"{registry[name].family:10}" if title == "protocols" else ""
            print(f"  {name:{wide}}{family}{registry.sentence(name)}")
    print("notebooks:")
    pages = notebooks.experiments()
    wide = 2 + max(len(page.name) for page in pages)
    for page in pages:
        print(f"  {page.name:{wide}}{page.title}")


def _help(options: argparse.Namespace) -> None:
    from lib import cluster, protocols, workloads
    from lib.options.described import described

    registries = (workloads.ALL, protocols.ALL, cluster.ALL)
    for registry in registries:
        if options.name in registry:
            made = workloads.get if registry is workloads.ALL else registry.make
            print(described(made(options.name)))
            return
    raise unknown("name", options.name, [name for registry in registries for name in registry])


def _train(options: argparse.Namespace) -> None:
    _check_names(options.workload, options.protocol, options.cluster)
    import lib
    from lib.results import anomalies

    pairs = dict(_pair(text) for text in options.option)
    flags = ("seed", "samples", "force", "profile", "data")
    for name in pairs.keys() & set(flags):
        raise BadOption(f"{name} has a flag of its own: --{name}")
    given = {name: value for name in flags if (value := getattr(options, name)) is not None}
    if options.seeds is not None:
        _train_seeds(options, given, pairs)
        return
    run = lib.train(options.workload, options.protocol, options.cluster, **given, **pairs)
    summary = {**run.summary, "digest": run.digest}
    if options.json:
        print(json.dumps(summary, indent=1))
        return
    for name, value in summary.items():
        if value is not None and not isinstance(value, (dict, list)):
            print(f"{name:24}{value:,.5g}" if isinstance(value, float) else f"{name:24}{value}")
    for leg in summary.get("legs", [summary]):
        if "anomalies" in leg:
            print(anomalies.verdict(leg))


def _train_seeds(options: argparse.Namespace, given: dict[str, Any], pairs: dict[str, Any]) -> None:
    """A line for each seed, then the mean of each figure with its 95 % interval."""
    import pandas as pd

    import lib
    from lib.reporting.claims.statistics import interval

    if options.seeds < 2:
        raise BadOption(f"--seeds is {options.seeds}; expected 2 or more")
    what = {name: getattr(options, name) for name in ("workload", "protocol", "cluster")}
    first = given.pop("seed")
    runs = lib.sweep([{**what, **given, **pairs, "seed": seed} for seed in range(first, first + options.seeds)])
    table = pd.DataFrame([{k: v for k, v in run.summary.items() if type(v) in (int, float)} for run in runs])
    table = table.loc[:, table.nunique() > 1]  # what no seed changes is not a result
    table.index = pd.RangeIndex(first, first + options.seeds, name="seed")
    ends = {name: dict(zip(("mean", "low", "high"), interval(table[name]), strict=True)) for name in table}
    if options.json:
        print(json.dumps({"runs": table.reset_index().to_dict("records"), "figures": ends}, indent=1))
        return
    print(table.to_string(float_format="{:,.5g}".format))
    for name, found in ends.items():
        print(f"{name:24}{found['mean']:,.5g} [{found['low']:,.5g}, {found['high']:,.5g}]")


def _compare(options: argparse.Namespace) -> None:
    import lib

    workload, given = _asked(options, options.protocols)
    _told(lib.compare(options.protocols, workload, options.cluster, **given), options.figure)


def _advise(options: argparse.Namespace) -> None:
    import lib

    workload, given = _asked(options, [options.first])
    found = lib.advise(workload, options.cluster, first=options.first, keep=options.keep, **given)
    print(f"a run of each on the seed of the trials; time to the goal and final metric beside {options.first}'s:")
    tried = found.tried.assign(rate=[f"{rate:.3g}×" for rate in found.tried["rate"]])
    print(tried.round({"time": 3, "difference": 4}).to_string(index=False, na_rep="never"))
    for name, why in found.refused.items():
        print(f"{name} cannot run there: {why}")
    print(
        "rate: times the workload's own, the best of those tried, which is one for who is too slow to be first; "
        "as: whose run it was, to the last bit"
    )
    print("\nthe soonest of these, and the soonest that lost nothing, on other seeds and at their own best rates:")
    _told(found.comparison, options.figure)
    choice, table = found.comparison.choice(options.priority), found.comparison.summary().set_index("protocol")
    sooner = table.loc[[choice in name.split(" = ") for name in table.index], "time, high"].iloc[0] < 1
    unsure = choice != options.first and not sooner
    print(f"\nuse {choice}{f', which is not measurably sooner than {options.first}' if unsure else ''}")
    other, why = ("quality", "the end") if options.priority == "time" else ("time", "the time to the goal alone")
    if (more := found.comparison.choice(other)) != choice:
        print(f"where {why} counts (--priority {other}): {more}")
    for each in found.hangs(options.priority):
        print(f"- {each}")
    for each in found.doubts():
        print(f"doubt: {each}")


def _asked(options: argparse.Namespace, protocols: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The workload, and the options of a comparison."""
    workload = asked.workload(options)
    for protocol in protocols:
        _check_names(workload, protocol, options.cluster)
    return workload, asked.given(options, protocols[0], dict(_pair(text) for text in options.option))


def _told(found: Comparison, figure: str | None) -> None:
    print(found.table().to_string(index=False))
    print("rates: times the workload's own, under which all are at one rate; age: of a gradient, in updates")
    print(found.verdict())
    if figure:
        found.figure().savefig(figure)


def _check(options: argparse.Namespace) -> int:
    from lib.results import anomalies, history

    legs = {leg: anomalies.judged(accesses) for leg, accesses in history.load(options.history).items()}
    for leg, judged in legs.items():
        print(f"leg {leg}: " * (len(legs) > 1) + anomalies.verdict(judged))
    return int(any(judged["anomalies"] for judged in legs.values()))


def _run(options: argparse.Namespace) -> None:
    from lib import reporting, seeds
    from lib.reporting import notebooks
    from lib.reporting.claims import sealing

    parameters = {}
    for experiment in notebooks.resolve(options.name):
        parameters = notebooks.parse_parameters(experiment, options.parameter)
    if options.sealed:
        if parameters or options.profile == "smoke":
            raise BadOption("a sealed run is what is published: at laptop or full, without parameters of its own")
        os.environ[seeds.DRAWN] = str(sealing.draw(options.name, options.resume))
    print(reporting.build(options.profile, options.name, parameters, options.resume))


def _report(options: argparse.Namespace) -> None:
    from lib import reporting

    print(reporting.index())


def _claims(options: argparse.Namespace) -> None:
    """Every case as it was published, and as it was run here."""
    from lib import paths
    from lib.reporting import claims
    from lib.reporting.short import MISSED

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


def _calibrate(options: argparse.Namespace) -> None:
    from lib.measure import calibrate

    calibrate.calibrate(options.out, quick=options.quick)
    print(options.out)


def _doctor(options: argparse.Namespace) -> None:
    from lib.measure import doctor

    for what, how in doctor.examine():
        print(f"{what:16}{how}")


def _check_names(workload: str, protocol: str, cluster: str) -> None:
    """A misspelt name is told before anything that trains is imported."""
    from lib import cluster as clusters
    from lib import protocols, workloads

    given = ((workloads.ALL, [workload]), (protocols.ALL, protocol.split("+")), (clusters.ALL, [cluster]))
    for registry, names in given:
        for name in names:
            if name not in registry and not re.search(r"\.py(:|$)|\.ya?ml$", name):
                raise unknown(registry.what, name, registry)


def _pair(text: str) -> tuple[str, Any]:
    """NAME=VALUE with the value read as YAML: 32 is a number, [64, 32] a list, true a truth value."""
    from lib.options import document

    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadOption(f"{text!r} is no NAME=VALUE")
    return name.strip().replace("-", "_"), document.value(value)


if __name__ == "__main__":
    sys.exit(main())
