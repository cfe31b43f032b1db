"""Random weather from the command line.

python -m tests.soak --seed 7 --runs 1000
python -m tests.soak --of store
python -m tests.soak --of histories --runs 200
python -m tests.soak --of histories --fault "rows are compared before they are locked"
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lib.command_line import carried_out
from tests import mutate
from tests.soak import KINDS, kills, soak


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description="Run random cases and hold them against what the kit guarantees."
    )
    parser.add_argument(
        "--of",
        choices=tuple(KINDS),
        default="runs",
        help="what: whole runs, pipelines and their histories, these of threads that meet, or calls on a table (default runs)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the cases (default 0)")
    parser.add_argument("--runs", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--first", type=int, default=0, help="number of the first one (default 0)")
    parser.add_argument(
        "--cluster", choices=("virtual", "local", "ray"), default="virtual", help="where (default virtual)"
    )
    parser.add_argument("--seconds", type=float, help="begin none after so long")
    parser.add_argument(
        "--fault", help="plant this one of tests/faults.yaml before; findings are then what is to be seen"
    )
    parser.add_argument("--kills", type=int, help="instead: kill so many trainings and notebooks, and let them go on")
    parser.set_defaults(command=_soak)
    return carried_out(parser.parse_args(arguments))


def _soak(options: argparse.Namespace) -> int:
    if options.fault:
        (fault,) = mutate.chosen([options.fault])
        given = {
            name: value
            for name, value in vars(options).items()
            if name not in ("fault", "command") and value is not None
        }
        with (
            tempfile.TemporaryDirectory(prefix="soak-fault-") as folder,
            mutate.planted(fault, mutate.copied(Path(folder))),
        ):
            flags = (text for name, value in given.items() for text in (f"--{name}", str(value)))
            environment = {**os.environ, "PYTHONPATH": folder}
            return subprocess.run([sys.executable, "-m", "tests.soak", *flags], cwd=folder, env=environment).returncode
    if options.kills:
        found = list(kills.kill(options.seed, options.kills))
        print(*found, f"{options.kills} kills, {len(found)} findings", sep="\n")
        return int(bool(found))
    more = {"of": options.of, "first": options.first, "seconds": options.seconds}
    soaked = soak(options.seed, options.runs, options.cluster, **more)
    for line in soaked.told():
        print(line)
    return 1 if soaked.findings else 0


if __name__ == "__main__":
    sys.exit(main())
