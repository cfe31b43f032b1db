"""Whether the tests would notice: known faults are planted, one at a time, into a copy of the repository, and its tests run.

`tests/faults.yaml` is the list. A fault that no test notices stands for a guarantee that nobody holds. What noticed a fault
before, by the record, is asked first; then the tests where it should be noticed: all, where the list names none.

  nice python -m tests.mutate --processes 2 --out reports/reference/mutate.json
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest

from lib import paths
from lib.command_line import carried_out
from lib.errors import BadOption, LockstepError, unknown
from lib.options import document
from lib.options.checked import Checked
from lib.results.provenance import commit

ROOT = Path(__file__).parents[1]
NEEDED = ("lib", "data_prep", "notebooks", "tests", "pyproject.toml", "README.md", "CONTRIBUTING.md", "Makefile")
NEEDED += ("requirements.txt", "environment.yml")
RECORD = Path("reports", "reference", "mutate.json")
"""What noticed which fault, and of which commit; from the repository's root."""
LIMIT = 240
"""Seconds after which tests that are stuck have noticed; all of them have fifteen times that."""
_STUCK, _ALL = "the time limit", ("tests",)
READY = ("torch", "numba", "pandas", "scipy.optimize", "hypothesis")
"""What tests import of others, which takes seconds."""


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
    """Where it should be noticed; (): anywhere."""


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
    copies: SimpleQueue[Copy] = SimpleQueue()
    before = noticed_before(root)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-mutate-")))
        for number in range(processes):
            copies.put(stack.enter_context(closing(Copy(root, folder / str(number)))))

        def examine(fault: Fault) -> Finding:
            copy = copies.get()
            try:
                return copy.examine(fault, before.get(fault.name))
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(processes) as pool:
            yield from pool.map(examine, chosen)


def noticed_before(root: Path = ROOT) -> dict[str, str]:
    """Fault -> the test that noticed it when the record was made, if that is still there."""
    recorded = json.loads((root / RECORD).read_text())["faults"] if (root / RECORD).exists() else []
    found = {each["name"]: each["noticed_by"] or "" for each in recorded}
    return {name: test for name, test in found.items() if (root / test.partition("::")[0]).is_file()}


def result(findings: Sequence[Finding]) -> dict:
    """What is published: of which commit and when, the counts, and who noticed what."""
    caught = sum(finding.noticed_by is not None for finding in findings)
    about = {"commit": commit(), "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    return {**about, "planted": len(findings), "noticed": caught, "faults": [asdict(finding) for finding in findings]}


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


class Copy:
    """A copy of the repository, and what runs tests in it."""

    def __init__(self, root: Path, folder: Path):
        self._folder, self._output = copied(folder, root), folder.with_suffix(".txt")
        environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-P", str(Path(__file__).with_name("nursery.py")), *READY]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._nursery = subprocess.Popen(command, env=environment, text=True, **pipes)
        self._sound: set[str | None] = {_STUCK}
        """Tests that have passed here without a fault."""

    def close(self) -> None:
        self._nursery.communicate()

    def examine(self, fault: Fault, before: str | None = None) -> Finding:
        """Plant it, and ask what noticed it `before` first."""
        start = time.monotonic()
        asked = [(before,) if before else (), fault.tests or _ALL]
        with planted(fault, self._folder):
            noticed = next(filter(None, (self._failing(tests) for tests in asked if tests)), None)
        if noticed and noticed not in self._sound and self._failing((noticed,)):
            print(f"{noticed} fails without {fault.name!r} too", file=sys.stderr)
            return Finding(fault.name, fault.file, None, round(time.monotonic() - start, 1))
        self._sound.add(noticed)
        return Finding(fault.name, fault.file, noticed, round(time.monotonic() - start, 1))

    def _failing(self, tests: Sequence[str]) -> str | None:
        """The first test that fails, or what else stops them."""
        arguments = ["-x", "-q", "-p", "no:cacheprovider", "-rfE", *tests]
        limit = LIMIT if tests != _ALL else 15 * LIMIT
        task = {"folder": str(self._folder), "limit": limit, "output": str(self._output), "arguments": arguments}
        print(json.dumps(task), file=self._nursery.stdin, flush=True)
        code = int(self._nursery.stdout.readline())
        if code == 0 or (code == pytest.ExitCode.USAGE_ERROR and "::" in tests[0]):  # that one has another name now
            return None
        if code == -signal.SIGALRM:
            return _STUCK
        printed = self._output.read_text()
        failed = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - |$)", printed, re.MULTILINE)
        if code in (1, 2) and failed:
            return failed[1]
        raise BadOption(f"the tests cannot run: {printed[-500:]}")


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
        if options.out:
            paths.write_text_atomic(Path(options.out), json.dumps(result(findings), indent=1) + "\n")
    survived = [finding.name for finding in findings if finding.noticed_by is None]
    if survived:
        raise LockstepError(f"{len(survived)} of {len(findings)} faults were not noticed: {', '.join(survived)}")


if __name__ == "__main__":
    sys.exit(main())
