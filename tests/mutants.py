"""Whether the tests notice random faults: cosmic-ray plants them, one at a time, in copies of the repository.

    pip install -e '.[mutants]'
    python -m tests.mutants --count 300 --seed 1 --into FOLDER

The tests near the mutated folders run once under coverage, which says what test runs what line. Each mutant is then tried
against the tests that run its line, the quickest first; where none does, as for a constant, against those of its function, then
of its file; for compiled code against all near its folder. FOLDER keeps the lines and the verdicts: the same command goes on
where it was stopped.

A mutant that survives stands for a guarantee that no test holds, or changes nothing: read it.
"""

import argparse
import ast
import difflib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from multiprocessing import Process
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TESTS = {
    "lib/protocols": ("tests/protocols", "tests/drivers"),
    "lib/drivers": ("tests/drivers", "tests/protocols", "tests/training"),
    "lib/store": ("tests/store",),
    "lib/results": ("tests/results", "tests/training"),
    "reports/claims": tuple(
        f"tests/reports/test_{name}.py" for name in ("judge", "claims", "statistics", "dependencies", "sealed_runs")
    ),
}
"""Folder -> the tests near it."""
SECONDS = 40.0
"""What the tests of a mutant may take, without the fault; the slower ones are left out."""
GRACE = 90.0
"""Seconds beyond three times that, after which tests that hang have noticed."""
WARM = (
    "cosmic_ray",
    "coverage",
    "hypothesis",
    "joblib",
    "numba",
    "pandas",
    "psutil",
    "pyarrow.parquet",
    "pydantic",
    "scipy.stats",
    "torch",
    "yaml",
)
"""What is imported once, before the processes that try a mutant each."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", default=[*TESTS], help=f"of {', '.join(TESTS)} (default all)")
    parser.add_argument("--count", type=int, default=30, help="mutants that are drawn (default 30)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw (default 0)")
    parser.add_argument("--processes", type=int, default=2, help="mutants that are tried at once (default 2)")
    parser.add_argument("--into", type=Path, default=ROOT / "reports/output/mutants", help="folder of what was found")
    options = parser.parse_args()
    if unknown := {*options.folders} - {*TESTS}:
        parser.error(f"no tests are known to be near {', '.join(sorted(unknown))}; choose from {', '.join(TESTS)}")
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.dont_write_bytecode = True  # a mutant is as long as its file, and perhaps written in the same second
    try:
        for module in WARM:
            importlib.import_module(module)
    except ModuleNotFoundError as error:
        parser.error(f"{error}; pip install -e '.[mutants]' brings it")
    copies = [_copied(options.into / f"copy{number}") for number in range(options.processes)]
    lines, results = options.into / "lines.json", options.into / "results.jsonl"
    if not lines.exists():
        _learn(copies, lines)
    found = [mutant for folder in options.folders for mutant in _mutants(copies[0], folder)]
    random.Random(options.seed).shuffle(found)
    drawn = list(islice((mutant for mutant in found if _compiles(copies[0], mutant)), options.count))
    known = {json.dumps(each["mutant"]) for each in _read(results)}
    left = [mutant for mutant in drawn if json.dumps(mutant) not in known]
    _all(Process(target=_try, args=(copy, left[at :: len(copies)], lines, results)) for at, copy in enumerate(copies))
    verdicts = {json.dumps(each["mutant"]): each for each in _read(results)}
    tried = [verdicts[name] for name in map(json.dumps, drawn) if name in verdicts]
    for each in tried:
        if each["failed"] is None:
            print(f"\n{each['tests']} tests noticed nothing:\n{each['diff']}")
    survived = sum(each["failed"] is None for each in tried)
    print(f"{len(tried) - survived} of {len(tried)} mutants were noticed, of {len(found)} that could be drawn")
    return 0


def _copied(copy: Path) -> Path:
    if not copy.exists():
        without = shutil.ignore_patterns(".git", ".venv", "output", "reference", "copy[0-9]*")
        shutil.copytree(ROOT, copy.with_name("unfinished"), ignore=without)
        copy.with_name("unfinished").rename(copy)
    return copy


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _all(processes: Iterable[Process]) -> None:
    processes = list(processes)
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def _mutants(copy: Path, folder: str) -> Iterator[list[Any]]:
    """[file, operator, occurrence, line] of each; types alone, which no test is meant to notice, are left as they are."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    operators = {name: get_operator(name) for name in sorted(operator_names())}
    for path in sorted((copy / folder).rglob("*.py")):
        nodes, types = list(ast_nodes(get_ast_from_path(path))), _annotations(path)
        for name, operator in operators.items():
            if operator.arguments():
                continue
            places = (place for node in nodes for place in operator().mutation_positions(node))
            for occurrence, (start, _) in enumerate(places):
                if not any(first <= start < last for first, last in types):
                    yield [str(path.relative_to(copy)), name, occurrence, start[0]]


def _compiles(copy: Path, mutant: list[Any]) -> bool:
    """A mutant that is no Python says nothing of the tests."""
    file, operator, occurrence, _ = mutant
    try:
        compile(_mutated((copy / file).read_text(), operator, occurrence), file, "exec")
    except SyntaxError:
        return False
    return True


def _mutated(source: str, operator: str, occurrence: int) -> str:
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    return mutate_code(source, get_operator(operator)(), occurrence)


def _annotations(path: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where types stand."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        for each in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if each is not None:
                found.append(((each.lineno, each.col_offset), (each.end_lineno, each.end_col_offset)))
    return found


def _learn(copies: list[Path], lines: Path) -> None:
    """Note which tests run which lines, and how long each test takes."""
    near = sorted({test for tests in TESTS.values() for test in tests})
    files = sorted({path for test in near for path in _files(copies[0] / test)})
    parts = [lines.with_name(f"part{number}.json") for number in range(len(copies))]
    _all(
        Process(
            target=_learn_part,
            args=(copy, [str(file.relative_to(copies[0])) for file in files[at :: len(copies)]], part),
        )
        for at, (copy, part) in enumerate(zip(copies, parts, strict=True))
    )
    whole: dict[str, Any] = {"seconds": {}, "lines": defaultdict(lambda: defaultdict(list))}
    for part in map(json.loads, (part.read_text() for part in parts)):
        whole["seconds"] |= part["seconds"]
        for file, numbers in part["lines"].items():
            for number, tests in numbers.items():
                whole["lines"][file][number] += tests
    lines.write_text(json.dumps(whole))


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("test_*.py"))


def _learn_part(copy: Path, files: list[str], into: Path) -> None:
    import coverage

    _enter(copy)
    watching = coverage.Coverage(
        data_file=None, source=[str(copy / folder) for folder in TESTS], config_file=False, concurrency="thread"
    )
    seconds: dict[str, float] = {}

    class Watch:
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(self, item):
            if sys.gettrace() is None:  # a test that traces by itself ended the tracing of all that follow
                watching.stop()
                watching.start()
            watching.switch_context(item.nodeid)
            start = time.monotonic()
            result = yield
            watching.switch_context("")
            seconds[item.nodeid] = time.monotonic() - start
            return result

        def pytest_runtest_logreport(self, report):
            if report.failed:  # without any fault: it says nothing about one
                failed.add(report.nodeid)

    failed: set[str] = set()
    watching.start()
    if files:
        pytest.main([*QUIET, "-m", "not nightly and not ray and not gpu", *files], plugins=[Watch()])
    watching.stop()
    data, found = watching.get_data(), {}
    for file in data.measured_files():
        contexts = data.contexts_by_lineno(file).items()
        tests = {line: [each for each in names if each and each not in failed] for line, names in contexts}
        found[str(Path(file).relative_to(copy))] = {line: each for line, each in tests.items() if each}
    into.write_text(json.dumps({"seconds": seconds, "lines": found}))


QUIET = ("-q", "-p", "no:cacheprovider", "-n0", "--no-header", "--no-summary")


def _enter(copy: Path) -> None:
    """Be a process of that copy of the repository."""
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy)
    sys.path[:] = [str(copy), *(each for each in sys.path if Path(each or ".").resolve() != ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "lib", "reports", "notebooks")]:
        del sys.modules[name]


def _try(copy: Path, mutants: list[list[Any]], lines: Path, results: Path) -> None:
    learnt = json.loads(lines.read_text())
    for mutant in mutants:
        file, operator, occurrence, line = mutant
        path, start = copy / file, time.monotonic()
        sound, stamp = path.read_text(), path.stat()
        faulty = _mutated(sound, operator, occurrence)
        tests = _tests(file, sound, line, learnt)
        path.write_text(faulty)
        try:
            failed = _failed(copy, tests, sum(learnt["seconds"][test] for test in tests)) if tests else None
        finally:
            path.write_text(sound)
            os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # what is compiled of it counts again
        diff = "\n".join(difflib.unified_diff(sound.split("\n"), faulty.split("\n"), file, file, n=2, lineterm=""))
        found = {"mutant": mutant, "failed": failed, "tests": len(tests), "diff": diff}
        found["seconds"] = time.monotonic() - start
        with results.open("a") as log:
            log.write(json.dumps(found) + "\n")


def _tests(file: str, source: str, line: int, learnt: dict[str, Any]) -> list[str]:
    """The tests of a line, else of its function, of its file, or near its folder; the quickest first, as the time allows."""
    lines, seconds = learnt["lines"].get(file, {}), learnt["seconds"]
    around = [
        (node.lineno, node.end_lineno)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.lineno <= line <= node.end_lineno
    ]
    for first, last in ((line, line), *sorted(around, key=lambda ends: ends[1] - ends[0]), (0, 10**9)):
        found = {test for number, tests in lines.items() if first <= int(number) <= last for test in tests}
        if found:
            break
    near = next(tests for folder, tests in TESTS.items() if file.startswith(folder))
    chosen, spent = [], 0.0
    for test in sorted(
        found or filter(lambda test: test.startswith(near), seconds), key=lambda test: (seconds[test], test)
    ):
        if spent < SECONDS:
            chosen.append(test)
            spent += seconds[test]
    return chosen


def _failed(copy: Path, tests: list[str], seconds: float) -> str | None:
    """The first test that fails, tried in a process of its own; None: none does."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.setsid()
        with suppress(BaseException):
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            os.dup2(1, 2)
            _enter(copy)
            order = {test: place for place, test in enumerate(tests)}

            class First:
                @pytest.hookimpl(trylast=True)
                def pytest_collection_modifyitems(self, items):
                    items.sort(key=lambda item: order.get(item.nodeid, len(order)))

                def pytest_runtest_logreport(self, report):
                    if report.failed:
                        os.write(writer, report.nodeid.encode())

            code = pytest.main(["-x", *QUIET, *tests], plugins=[First()])
            if code not in (0, 1):
                os.write(writer, f"pytest ended with {code}".encode())
            os._exit(0)
        os._exit(3)
    os.close(writer)
    until, code = time.monotonic() + 3 * seconds + GRACE, None
    while code is None and time.monotonic() < until:
        time.sleep(0.05)
        done, status = os.waitpid(child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if done else None
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if code is None:
        os.waitpid(child, 0)
    with os.fdopen(reader) as answer:
        found = answer.read()
    return found or {0: None, None: "it hung"}.get(code, f"it ended with {code}")


if __name__ == "__main__":
    sys.exit(main())
