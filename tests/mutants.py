"""Whether the tests notice random faults: cosmic-ray plants them, one at a time, in a copy of the repository.

    pip install -e '.[mutants]'
    python -m tests.mutants --count 300 --seed 1

Each mutant is tried against the tests near its file. A mutant that survives stands for a guarantee that no test holds, or
changes nothing: read it.
"""

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = {
    "lib/protocols": ("tests/protocols",),
    "lib/drivers": ("tests/drivers", "tests/protocols"),
    "lib/store": ("tests/store",),
    "lib/results": ("tests/results", "tests/training"),
    "reports/claims": (
        "tests/reports/test_judge.py",
        "tests/reports/test_claims.py",
        "tests/reports/test_statistics.py",
    ),
}
"""Folder -> the tests near it, which try its mutants until one fails."""
LIMIT = 600
"""Seconds after which tests that hang have noticed."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", default=[*TESTS], help=f"of {', '.join(TESTS)} (default all)")
    parser.add_argument("--count", type=int, default=30, help="mutants that are drawn (default 30)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw (default 0)")
    options = parser.parse_args()
    if unknown := {*options.folders} - {*TESTS}:
        parser.error(f"no tests are known to be near {', '.join(sorted(unknown))}; choose from {', '.join(TESTS)}")
    try:
        from cosmic_ray.commands.init import _all_work_items
        from cosmic_ray.mutating import mutate_and_test
        from cosmic_ray.work_item import TestOutcome
    except ModuleNotFoundError as error:
        parser.error(f"{error}; pip install -e '.[mutants]' brings it")

    with tempfile.TemporaryDirectory(prefix="lockstep-mutants-") as folder:
        copy = Path(folder) / "repository"
        shutil.copytree(
            ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "output", "__pycache__", "reference")
        )
        found = [(near, item) for near in options.folders for item in _all_work_items((copy / near).rglob("*.py"), {})]
        drawn = random.Random(options.seed).sample(found, min(options.count, len(found)))
        survived = 0
        for near, item in drawn:
            (mutation,) = item.mutations
            tests = " ".join(str(copy / each) for each in TESTS[near])
            command = f"{sys.executable} -m pytest -x -q -n0 -p no:cacheprovider --rootdir {copy} {tests}"
            result = mutate_and_test([mutation], f"env PYTHONPATH={copy} {command}", LIMIT)
            if result.test_outcome == TestOutcome.SURVIVED:
                survived += 1
                print(result.diff, flush=True)
        print(f"{len(drawn) - survived} of {len(drawn)} mutants were noticed, of {len(found)} that could be drawn")
    return 0


if __name__ == "__main__":
    sys.exit(main())
