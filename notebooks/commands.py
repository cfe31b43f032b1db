"""The commands that compare, advise, calibrate and check a history: `lockstep compare`, `advise`, `calibrate`, `check`."""

import argparse
import json
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lib import BadOption
from lib.command_line import OPTION, PAIRS, check_names, parse_options
from notebooks.advisor import cli_options

if TYPE_CHECKING:
    from notebooks.advisor.comparison import Comparison


def lists() -> dict[str, dict[str, str]]:
    return {}


def add_to(add: Callable[..., Any]) -> None:
    compare = add("compare", _compare, "train under several protocols, and say which is faster and what that costs")
    compare("protocols", nargs="+", metavar="PROTOCOL", help="as for train; the others are compared with the first")
    cli_options.flags(compare)
    compare("-o", "--option", help=OPTION, **PAIRS)
    advise = add("advise", _advise, "try every protocol, compare the fastest few, and say which to use")
    advise("--first", default="sync", metavar="PROTOCOL", help="the protocol that you use now (default sync)")
    advise(
        "--keep",
        type=int,
        default=4,
        help="how many of the fastest are compared with it, besides the best of each family (default 4)",
    )
    advise("--json", action="store_true", help="print the answer and everything that it rests on as JSON")
    cli_options.flags(advise)
    advise("-o", "--option", help=OPTION, **PAIRS)
    explain = add("explain", _explain, "say where the time of a run goes, by worker and by cause")
    explain("workload", nargs="?", help="as for train; the run is simulated")
    explain("protocol", nargs="?", help="as for train")
    explain("cluster", nargs="?", default="virtual", help="virtual, or a machine.yaml (default virtual)")
    explain("--trace", metavar="FILE", help="instead of a run: the step times of your job, as for advise")
    explain(
        "--columns",
        metavar="worker=A,time=B,took=C",
        help="the trace's columns of these; took=C:ms if C is in milliseconds",
    )
    explain("--perfetto", metavar="FILE", help="save the run's trace for ui.perfetto.dev")
    explain("-o", "--option", help=OPTION, **PAIRS)
    check = add("check", _check, "check a pipeline's history for what no sequential run could show")
    history = "a .parquet or .csv file, as notebooks/oac/access_history.py describes it and runs leave it"
    check("history", metavar="HISTORY", help=history)
    traces = add("traces", _traces, "make the protocols' reference traces again, and compare them with the stored ones")
    traces("protocols", nargs="*", metavar="PROTOCOL", help="these alone")
    traces("--write", action="store_true", help="store what comes out")
    calibrate = add("calibrate", _calibrate, "measure this machine and write a virtual cluster of its kind")
    calibrate("--out", default="cluster.yaml", help="the file (default cluster.yaml)")
    calibrate("--quick", action="store_true", help="seconds instead of half a minute, and rougher")


def _compare(options: argparse.Namespace) -> None:
    import lib

    workload, given = _setting(options, options.protocols)
    found = lib.compare(options.protocols, workload, options.cluster, **given)
    _show(found)
    print(textwrap.fill(found.verdict(), 100))
    if options.figure:
        found.figure().savefig(options.figure)


def _advise(options: argparse.Namespace) -> None:
    import lib
    from notebooks.advisor.trial import FEW

    workload, given = _setting(options, [options.first])
    found = lib.advise(workload, options.cluster, first=options.first, keep=options.keep, **given)
    if options.figure:
        found.comparison.figure().savefig(options.figure)
    if options.json:
        print(json.dumps(found.to_json(), indent=1))
        return
    _print("Assumed: " + "; ".join(f"{name}: {value}" for name, value in found.assumed.items()) + ".")
    print(
        f"\nOne run of each protocol on the tuning seed; time to the goal and final metric compared with {options.first}'s:"
    )
    tried = found.tried.assign(rate=[f"{rate:.3g}×" for rate in found.tried["rate"]])
    print(tried.round({"time": 3, "difference": 4}).to_string(index=False, na_rep="never"))
    for name, why in found.refused.items():
        print(f"{name} cannot run there: {why}")
    print("rate: a multiple of the workload's own, the best that was tried; as: the protocol with the identical run")
    print("\nThe fastest of these and the best of each family, on other seeds:")
    _show(found.comparison)
    doubts = [f"Doubt: {each}" for each in found.doubts()]
    print()
    for each in [*doubts, *found.comparison.answer()] if found.updates < FEW else [*found.comparison.answer(), *doubts]:
        _print(each)
    print()
    for each in found.depends_on():
        _print(each)


def _setting(options: argparse.Namespace, protocols: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The workload, and the options of a comparison."""
    workload = cli_options.workload(options)
    for protocol in protocols:
        check_names(workload, protocol, options.cluster)
    return workload, cli_options.comparison_options(options, protocols[0], parse_options(options.option))


def _show(found: "Comparison") -> None:
    print(found.table().to_string(index=False))
    print(
        f"best rate: as a multiple of the workload's own; time: to {found.target}; age: in updates; [a, b]: 95 % interval"
    )
    print("Time is simulated unless the cluster is local or ray; its order is to be trusted only beyond 10 %.\n")


def _print(text: str) -> None:
    print(textwrap.fill(text, 100))


def _explain(options: argparse.Namespace) -> None:
    from notebooks.advisor.explain import explain, explain_trace

    if options.trace:
        from data_prep.traces.command import pairs
        from data_prep.traces.formats import read_trace

        found = explain_trace(read_trace(options.trace, columns=pairs(options.columns) if options.columns else None))
    elif options.workload is None or options.protocol is None:
        raise BadOption("explain: give a workload and a protocol, as for `lockstep train`, or --trace FILE")
    else:
        check_names(options.workload, options.protocol, options.cluster)
        given = parse_options(options.option)
        found = explain(options.workload, options.protocol, options.cluster, **given)
        if options.perfetto:
            import lib

            run = lib.train(options.workload, options.protocol, options.cluster, gradients=False, save=False, **given)
            print(f"saved {run.perfetto(options.perfetto)}; open it at ui.perfetto.dev")
    for table in (found.causes, found.workers):
        shown = table.assign(
            **{name: [f"{100 * x:.1f} %" for x in table[name]] for name in table.columns.drop("lost", errors="ignore")}
        )
        print(shown.to_string(float_format="{:.4g} s".format), end="\n\n")
    print(
        "share: of the run's time. By worker: lost if only this worker is slow; saved if it is as fast as the others."
    )
    for each in found.sentences():
        _print(each)


def _check(options: argparse.Namespace) -> int:
    from notebooks.oac import access_history as history
    from notebooks.oac import anomalies

    stages = {stage: anomalies.check(accesses) for stage, accesses in history.load(options.history).items()}
    for stage, found in stages.items():
        print(f"stage {stage}: " * (len(stages) > 1) + anomalies.report(found))
    return int(any(found["anomalies"] for found in stages.values()))


def _calibrate(options: argparse.Namespace) -> None:
    from notebooks.calibration.calibrate import calibrate

    calibrate(options.out, quick=options.quick)
    print(options.out)


def _traces(options: argparse.Namespace) -> int:
    from lib.protocols import ALL
    from notebooks.conformance import traces

    different = 0
    for name in options.protocols or ALL:
        now = traces.record(name)
        if options.write:
            traces.write(name, now)
        elif found := traces.differences(traces.read(name), now):
            different += 1
            print(f"{name}: {'; '.join(found)}")
    print(f"{len(options.protocols or ALL)} traces, {different} that differ")
    return int(bool(different))
