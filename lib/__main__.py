"""Lockstep: how training workers keep in step, compared under one interface.

examples:
  python -m lib list
  python -m lib train ctr-synthetic gba virtual -o workers=32 -o slowdown=0.6 -o iota=4
  python -m lib train criteo-deepfm gba+all-reduce virtual -o lr=0.003 -o speeds=[1,1,0.5,2] -o store.max_rows=10000
  python -m lib train ctr-synthetic mine.py:MyRule virtual -o 'row_optimizer={name: adagrad, lr: 0.1}'
  python -m lib train fb15k-237-distmult sync local --profile full --data FB15k-237 -o workers=1
  python -m lib run 00_quickstart --profile laptop -p seeds=5
  python -m lib run all --profile laptop --resume
  python -m lib claims --json
  python -m lib calibrate --out this_machine.yaml
  python -m lib train ctr-synthetic sync machine.yaml   # as calibrate writes it
  python -m lib train criteo-deepfm gba virtual --profile laptop --data FOLDER   # planted data without --data
  python -m lib train criteo-deepfm gba virtual -o slowdown=alibaba-shared-2018   # or a file of yours: data_prep trace
  python -m lib bench store
  python -m lib soak --seed 7 --runs 1000
  python -m lib soak --of store
  python -m lib mutate
  python -m data_prep --list   # real data: where raw files are; then RAW -> prepared files
  python -m data_prep trace FILE
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lib.errors import BadOption, LockstepError, unknown


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
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
        prog="python -m lib",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name, command, help):
        sub = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        sub.set_defaults(command=command)
        return sub

    add("list", _list, "show the workloads, protocols, clusters and notebooks that there are")

    train = add("train", _train, "train once and print the summary")
    train.add_argument("workload", help="a registered name, see `list`; or mine.py:Mine, a class of a file of yours")
    train.add_argument("protocol", help="a registered name; or two, ROWS+DENSE; or mine.py:Mine")
    train.add_argument(
        "cluster", help="virtual, local or ray; or machine.yaml, as `calibrate` writes it; or mine.py:Mine"
    )
    train.add_argument("--seed", type=int, default=0, help="seed of the run (default 0)")
    train.add_argument("--samples", type=int, help="samples of the pass (default: the workload's)")
    train.add_argument("--profile", choices=("smoke", "laptop", "full"), help="the workload's size (default smoke)")
    train.add_argument(
        "--data", metavar="FOLDER", help="real data instead of planted, passed once at most; --samples for more"
    )
    train.add_argument("--force", action="store_true", help="train anew even if the run is saved already")
    train.add_argument("--json", action="store_true", help="print the summary as JSON")
    train.add_argument(
        "-o",
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of whatever has it, or of a part of it; repeatable",
    )

    run = add("run", _run, "run notebooks and write their pages and the index")
    run.add_argument("name", metavar="EXPERIMENT|PAPER|all", help="a notebook, all of a paper's, or all")
    run.add_argument("--profile", choices=("smoke", "laptop", "full"), default="smoke", help="how long the runs are")
    run.add_argument(
        "-p",
        "--parameter",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a notebook's parameter; repeatable",
    )
    run.add_argument(
        "--resume",
        action="store_true",
        help="leave out notebooks whose results are complete: same profile, parameters, notebook, claims and lib",
    )

    report = add("report", _report, "write the index of all reports anew from what has been run")
    report.add_argument(
        "--reference",
        action="store_true",
        help="publish the laptop profile's results: reports/reference/ and the table in the README",
    )
    claims = add("claims", _claims, "show every claim with its verdict")
    claims.add_argument("--json", action="store_true", help="print them as JSON")
    bench = add("bench", _bench, "measure speed against a peer or a limit")
    bench.add_argument(
        "name",
        help="store (against torch, fbgemm, memory, a file's copy) or virtual (100 and 1000 workers, against a bare loop)",
    )
    bench.add_argument("--quick", action="store_true", help="store: its smallest tables alone, in less than a minute")
    calibrate = add(
        "calibrate", _calibrate, "measure this machine and write a specification for virtual clusters of its kind"
    )
    calibrate.add_argument("--out", default="cluster.yaml", help="the file (default cluster.yaml)")
    calibrate.add_argument("--quick", action="store_true", help="seconds instead of half a minute, and rougher")
    soak = add("soak", _soak, "run random cases and hold them against what the kit guarantees")
    soak.add_argument(
        "--of",
        choices=("runs", "pipelines", "store"),
        default="runs",
        help="what: whole runs, pipelines and their histories, or calls on a table (default runs)",
    )
    soak.add_argument("--seed", type=int, default=0, help="seed of the cases (default 0)")
    soak.add_argument("--runs", type=int, default=100, help="how many (default 100)")
    soak.add_argument("--first", type=int, default=0, help="number of the first one (default 0)")
    soak.add_argument(
        "--cluster", choices=("virtual", "local", "ray"), default="virtual", help="where (default virtual)"
    )
    soak.add_argument("--seconds", type=float, help="begin none after so long")
    soak.add_argument("--kills", type=int, help="instead: kill so many trainings and notebooks, and let them go on")
    mutate = add("mutate", _mutate, "plant known faults, one at a time, and say which test notices each")
    mutate.add_argument("names", nargs="*", metavar="FAULT", help="of tests/faults.yaml (default: all)")
    mutate.add_argument("--processes", type=int, default=1, help="copies that are tested at once (default 1)")
    mutate.add_argument("--out", help="a file for the findings, as JSON")
    add("doctor", _doctor, "show what this machine has: cores, memory, GPU, Ray, versions")
    return parser


def _list(options: argparse.Namespace) -> None:
    from lib import cluster, protocols, workloads
    from lib.reporting import notebooks

    for title, registry in (("workloads", workloads.ALL), ("protocols", protocols.ALL), ("clusters", cluster.ALL)):
        print(f"{title}:")
        for name in registry:
            family = f"[{registry[name].family}] " if title == "protocols" else ""
            print(f"  {name:22}{family}{registry.sentence(name)}")
    print("notebooks:")
    for experiment in notebooks.experiments():
        print(f"  {experiment.name:32}{experiment.title}")


def _train(options: argparse.Namespace) -> None:
    _check_names(options.workload, options.protocol, options.cluster)
    import lib

    pairs = dict(_pair(text) for text in options.option)
    flags = ("seed", "samples", "force", "profile", "data")
    for name in pairs.keys() & set(flags):
        raise BadOption(f"{name} has a flag of its own: --{name}")
    given = {name: value for name in flags if (value := getattr(options, name)) is not None}
    run = lib.train(options.workload, options.protocol, options.cluster, **given, **pairs)
    summary = {**run.summary, "digest": run.digest}
    if options.json:
        print(json.dumps(summary, indent=1))
        return
    for name, value in summary.items():
        if value is not None and not isinstance(value, (dict, list)):
            print(f"{name:24}{value:,.5g}" if isinstance(value, float) else f"{name:24}{value}")


def _run(options: argparse.Namespace) -> None:
    from lib import reporting as report
    from lib.reporting import notebooks

    experiments = notebooks.resolve(options.name)
    parameters = {}
    for experiment in experiments:
        parameters = notebooks.parse_parameters(experiment, options.parameter)
    print(report.build(options.profile, options.name, parameters, options.resume))


def _report(options: argparse.Namespace) -> None:
    from lib import reporting as report

    print(report.publish() if options.reference else report.index())


def _claims(options: argparse.Namespace) -> None:
    from lib.reporting import claims

    verdicts = claims.verdicts()
    table = claims.table(verdicts)
    if options.json:
        print(table.to_json(orient="records", indent=1))
        return
    columns = ["id", "kind", "verdict", "case", "case_verdict", "ours", "low", "high"]
    print(table[[name for name in columns if name in table]].to_string(index=False, na_rep=""))
    for kind, counts in claims.counts(verdicts).items():
        print(f"{kind}: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in claims.VERDICTS if counts[verdict]))


def _bench(options: argparse.Namespace) -> None:
    from lib.measure import bench

    if options.quick and options.name != "store":
        raise BadOption(f"--quick is an option of the benchmark store, not of {options.name}")
    table = bench.run(options.name, **({"profile": "quick"} if options.quick else {}))
    print(table.to_string(index=False, na_rep=""))


def _calibrate(options: argparse.Namespace) -> None:
    from lib.measure import calibrate

    calibrate.calibrate(options.out, quick=options.quick)
    print(options.out)


def _soak(options: argparse.Namespace) -> int:
    from lib.soak import soak

    if options.kills:
        from lib.soak import kills

        found = list(kills.kill(options.seed, options.kills))
        print(*found, f"{options.kills} kills, {len(found)} findings", sep="\n")
        return int(bool(found))
    more = {"of": options.of, "first": options.first, "seconds": options.seconds}
    soaked = soak(options.seed, options.runs, options.cluster, **more)
    for line in soaked.told():
        print(line)
    return 1 if soaked.findings else 0


def _mutate(options: argparse.Namespace) -> None:
    from lib.measure import mutate

    findings = []
    for finding in mutate.mutate(mutate.chosen(options.names), options.processes):
        findings.append(finding)
        print(f"{finding.name}: {finding.noticed_by or 'SURVIVED'}", flush=True)
    survived = [finding.name for finding in findings if finding.noticed_by is None]
    if options.out:
        Path(options.out).write_text(json.dumps(mutate.result(findings), indent=1) + "\n")
    if survived:
        raise LockstepError(f"{len(survived)} of {len(findings)} faults were not noticed: {', '.join(survived)}")


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
