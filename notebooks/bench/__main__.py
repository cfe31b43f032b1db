"""Benchmarks from the command line: ratios against a peer or a limit, measured in one run.

python -m notebooks.bench store --quick
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lib.__main__ import carried_out
from lib.errors import BadOption
from notebooks import bench


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m notebooks.bench", description="Measure speed.")
    parser.add_argument(
        "name",
        help="store (against torch, fbgemm, memory, a file's copy) or virtual (100 and 1000 workers, against a bare loop)",
    )
    parser.add_argument("--quick", action="store_true", help="store: its smallest tables alone, in less than a minute")
    parser.set_defaults(command=_measure)
    return carried_out(parser.parse_args(arguments))


def _measure(options: argparse.Namespace) -> None:
    if options.quick and options.name != "store":
        raise BadOption(f"--quick is an option of the benchmark store, not of {options.name}")
    table = bench.run(options.name, **({"profile": "quick"} if options.quick else {}))
    print(table.to_string(index=False, na_rep=""))


if __name__ == "__main__":
    sys.exit(main())
