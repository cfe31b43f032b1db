"""Whether the tests would notice: known faults are planted, one at a time, into a copy of the repository, and its tests run.

`tests/faults.yaml` is the list. A fault that no test notices stands for a guarantee that nobody holds.

  python -m tests.mutate
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from lib.__main__ import carried_out
from lib.errors import BadOption, LockstepError, unknown
from lib.options import document
from lib.options.checked import Checked

ROOT = Path(__file__).parents[1]
NEEDED = ("lib", "data_prep", "notebooks", "tests", "pyproject.toml", "README.md", "CONTRIBUTING.md", "Makefile")
NEEDED += ("requirements.txt", "environment.yml")
LIMIT = 1800
"""Seconds after which a suite that is stuck has noticed."""


@dataclass(frozen=True, kw_only=True)
class Fault(Checked):
    """One piece of code, and what a careless hand would have written."""

    name: str
    """What is wrong then."""
    file: str
    """Where, from the repository's root."""
    old: str
    """The code as it is; it stands there once."""
    new: str
    """The code with the fault."""
    tests: tuple[str, ...] = ()
    """Where it should be noticed; all tests run where that fails."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What the tests said of one fault."""

    name: str
    file: str
    noticed_by: str | None
    """The first test that failed; None: the fault survived."""
    seconds: float


def faults(root: Path = ROOT) -> list[Fault]:
    """The list, each fault checked against the code as it is."""
    listed = document.load(root / "tests" / "faults.yaml")
    found = [listed.read(Fault, place) for place in range(len(listed.data))]
    for place, fault in enumerate(found):
        path = root / fault.file
        count = path.read_text().count(fault.old) if path.is_file() else 0
        if count != 1:
            raise BadOption(f"{listed.where(place)}: the code of {fault.name!r} stands {count} times in {fault.file}")
    return found


def chosen(names: Sequence[str], root: Path = ROOT) -> list[Fault]:
    """Those of the list; all where no names are given."""
    known = {fault.name: fault for fault in faults(root)}
    for name in names:
        if name not in known:
            raise unknown("fault", name, known)
    return [known[name] for name in names or known]


def mutate(chosen: Sequence[Fault], processes: int, root: Path = ROOT) -> Iterator[Finding]:
    """Plant each fault and run the tests, in so many copies at once; findings in the order of the list."""
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="lockstep-mutate-") as folder:
        for number in range(processes):
            copies.put(copied(Path(folder) / str(number), root))

        def examine(fault: Fault) -> Finding:
            copy = copies.get()
            try:
                return _examine(fault, copy)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(processes) as pool:
            yield from pool.map(examine, chosen)


def result(findings: Sequence[Finding]) -> dict:
    """What is published: the counts, and who noticed what."""
    caught = sum(finding.noticed_by is not None for finding in findings)
    return {"planted": len(findings), "noticed": caught, "faults": [asdict(finding) for finding in findings]}


def copied(target: Path, root: Path = ROOT) -> Path:
    """The repository there, as far as tests need it."""
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*")
    for name in NEEDED:
        if (root / name).is_dir():
            shutil.copytree(root / name, target / name, ignore=leave)
        elif (root / name).exists():
            target.mkdir(exist_ok=True)
            shutil.copy(root / name, target)
    return target


@contextmanager
def planted(fault: Fault, copy: Path) -> Iterator[None]:
    """The copy has the fault."""
    path = copy / fault.file
    sound = path.read_text()
    path.write_text(sound.replace(fault.old, fault.new))
    try:
        yield
    finally:
        path.write_text(sound)


def _examine(fault: Fault, copy: Path) -> Finding:
    start = time.monotonic()
    with planted(fault, copy):
        noticed = (fault.tests and _failing(copy, fault.tests)) or _failing(copy, ("tests",))
    return Finding(fault.name, fault.file, noticed, round(time.monotonic() - start, 1))


def _failing(copy: Path, tests: Sequence[str]) -> str | None:
    """The first test that fails, or what else stops the suite."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-rfE", *tests]
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"the time limit of {LIMIT} s"
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode in (1, 2) and failed:
        return failed[1]
    raise BadOption(f"the tests cannot run: {(done.stdout + done.stderr)[-500:]}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutate", description="Plant known faults, one at a time, and say which test notices each."
    )
    parser.add_argument("names", nargs="*", metavar="FAULT", help="of tests/faults.yaml (default: all)")
    parser.add_argument("--processes", type=int, default=1, help="copies that are tested at once (default 1)")
    parser.add_argument("--out", help="a file for the findings, as JSON")
    parser.set_defaults(command=_mutate)
    return carried_out(parser.parse_args(arguments))


def _mutate(options: argparse.Namespace) -> None:
    findings = []
    for finding in mutate(chosen(options.names), options.processes):
        findings.append(finding)
        print(f"{finding.name}: {finding.noticed_by or 'SURVIVED'}", flush=True)
    survived = [finding.name for finding in findings if finding.noticed_by is None]
    if options.out:
        Path(options.out).write_text(json.dumps(result(findings), indent=1) + "\n")
    if survived:
        raise LockstepError(f"{len(survived)} of {len(findings)} faults were not noticed: {', '.join(survived)}")


if __name__ == "__main__":
    sys.exit(main())
