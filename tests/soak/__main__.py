"""Random cases from the command line.

python -m tests.soak --seed 7 --runs 1000
python -m tests.soak --cluster local --runs 300
python -m tests.soak --of histories --runs 200
python -m tests.soak --kills 50
"""

import argparse
import sys
from collections.abc import Sequence

from lib.command_line import run_command
from tests.soak import KINDS, Found, kills, soak


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description="Run random cases and check what the kit guarantees."
    )
    of = "whole runs, pipelines and their histories, or these on threads that overlap (default runs)"
    parser.add_argument("--of", choices=tuple(KINDS), default="runs", help=of)
    parser.add_argument("--seed", type=int, default=0, help="seed of the cases (default 0)")
    parser.add_argument("--runs", type=int, default=100, help="how many (default 100)")
    clusters = ("virtual", "local", "ray")
    parser.add_argument("--cluster", choices=clusters, default="virtual", help="where (default virtual)")
    parser.add_argument("--seconds", type=float, help="begin none after so long")
    parser.add_argument("--kills", type=int, help="instead: kill so many trainings and notebooks, and let them go on")
    parser.set_defaults(command=_soak)
    return run_command(parser.parse_args(arguments))


def _soak(options: argparse.Namespace) -> int:
    if options.kills:
        found = list(kills.kill(options.seed, options.kills))
        print(*found, f"{options.kills} kills, {len(found)} findings", sep="\n")
        return int(bool(found))
    try:
        counts = soak(options.seed, options.runs, options.cluster, of=options.of, seconds=options.seconds)
    except Found as found:
        print(found)
        return 1
    for name, count in counts.most_common():
        print(f"{name:40}{count}")
    print(f"{sum(count for name, count in counts.items() if not name.startswith('refused'))} cases, no finding")
    return 0


if __name__ == "__main__":
    sys.exit(main())
