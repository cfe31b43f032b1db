"""The commands that compare, advise, calibrate and check a history: `lockstep compare`, `advise`, `calibrate`, `check`."""

import argparse
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lib.command_line import OPTION, PAIRS, check_names, pair
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
    advise = add("advise", _advise, "try every protocol, and compare the fastest few")
    advise("--first", default="sync", metavar="PROTOCOL", help="what you have now, or know best (default sync)")
    advise("--keep", type=int, default=4, help="how many are compared with it (default 4)")
    ends = "time: the fastest to the goal; quality: the fastest of those that are not measurably below the first"
    advise("--priority", choices=("time", "quality"), default="time", help=ends + " (default time)")
    cli_options.flags(advise)
    advise("-o", "--option", help=OPTION, **PAIRS)
    check = add("check", _check, "judge a pipeline's history: what no serial run would have shown")
    history = "a .parquet or .csv file, as notebooks/oac/access_history.py describes it and runs leave it"
    check("history", metavar="HISTORY", help=history)
    calibrate = add("calibrate", _calibrate, "measure this machine and write a virtual cluster of its kind")
    calibrate("--out", default="cluster.yaml", help="the file (default cluster.yaml)")
    calibrate("--quick", action="store_true", help="seconds instead of half a minute, and rougher")


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
    for each in found.depends_on(options.priority):
        print(f"- {each}")
    for each in found.doubts():
        print(f"doubt: {each}")


def _asked(options: argparse.Namespace, protocols: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The workload, and the options of a comparison."""
    workload = cli_options.workload(options)
    for protocol in protocols:
        check_names(workload, protocol, options.cluster)
    return workload, cli_options.comparison_options(options, protocols[0], dict(pair(text) for text in options.option))


def _told(found: "Comparison", figure: str | None) -> None:
    print(found.table().to_string(index=False))
    print("best rate: as a multiple of the workload's own, which all use for 'at one rate'; age: in updates")
    print(textwrap.fill(found.verdict(), 100))
    if figure:
        found.figure().savefig(figure)


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
