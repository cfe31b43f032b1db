"""Training, notebooks and sweeps that are killed with SIGKILL at random moments, and go on.

What must hold after each kill: no process of it is left; every saved run can be read; the same command, told to go on, ends as
if nothing had happened, in virtual time to the bit. At the end nothing is left behind: no cut, no memory that was shared, no
half-written folder. Processes are found by their environment, as Linux shows it.

Servers under Ray whose rows are in shared memory are killed in mid-run, by themselves: the run ends as if nobody had died but for
what it counts as lost, and goes back to no cut.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lib import paths
from lib.errors import LockstepError
from lib.progress import Progress
from lib.results.run import Run
from lib.store import checkpoint, shared_memory

TRAIN = ("train", "ctr-synthetic", "gba")
SIZES = ("-o", "workers=6", "-o", "slowdown=0.5", "-o", "checkpoint_every=1920", "--samples", "61440", "--json")
VIRTUAL = (*TRAIN, "virtual", *SIZES)
PIPELINE = ("train", "kg-synthetic", "oac", "virtual", "-o", "checkpoint_every=4096", "--samples", "40960", "--json")


@dataclass(frozen=True)
class Victim:
    """A command that is killed, and how it goes on."""

    name: str
    command: tuple[str, ...]
    """{reports} stands for the folder of its reports."""
    on: tuple[str, ...]
    """What is added to go on."""
    digest: bool = False
    """It prints a digest, which is the uninterrupted run's."""
    grace: float = 20.0
    """Seconds in which the other processes of one that was killed have to end."""
    returns: bool = False
    """It returns to a checkpoint early, and is killed only after that."""


RETURNS = "failures=[{node: server0, kind: dies, at: %s, lasts: %s}]"
"""A server of dense parameters dies early, and takes the run back."""
HYBRID = ("train", "ctr-synthetic", "hybrid", "virtual", *SIZES, "-o", "servers=2", "-o", "reader_nodes=1")
DIES_AGAIN = (
    "failures=[{node: reader0, kind: dies, at: 0.1, lasts: 0.004}, {node: server0, kind: dies, every: 0.3, lasts: 3ms}]"
)
"""A reader takes the run back, and a server whose rows outlive it dies before and after that."""
SERVERS = ("train", "ctr-synthetic", "hybrid", "ray", "-o", "workers=2", "-o", "servers=2")
SERVERS += ("-o", "store.shared_memory=true", "-o", "restarts=1000")
OUTCOMES = ("applied", "decayed", "dropped", "lost", "in_flight")
LASTING = Victim("servers under Ray", (*SERVERS, "--samples", "245760", "--json"), (), grace=90.0)
"""What is killed are its servers, not the command."""
VICTIMS = (
    Victim("a virtual run", VIRTUAL, ("-o", "resume=true"), digest=True),
    Victim("rows in shared memory", (*VIRTUAL, "-o", "store.shared_memory=true"), ("-o", "resume=true"), digest=True),
    Victim(
        "a pipeline over rows on a disk",
        (*PIPELINE, "-o", "store.mapped={reports}/mapped"),
        ("-o", "resume=true"),
        digest=True,
    ),
    Victim("a run of threads", (*TRAIN, "local", *SIZES), ("-o", "resume=true")),
    # Two agents of Ray's own look once a minute whether they are still needed.
    Victim("processes of Ray", (*TRAIN, "ray", *SIZES), ("-o", "resume=true"), grace=90.0),
    Victim("a notebook with a sweep", ("run", "00_quickstart"), ("--resume",)),
    LASTING,
)
RETURNED = (
    Victim(
        "a virtual run that had returned",
        (*VIRTUAL, "-o", RETURNS % (0.1, 0.01)),
        ("-o", "resume=true"),
        digest=True,
        returns=True,
    ),
    Victim(
        "a run that had returned, whose servers die again",
        (*HYBRID, "-o", "store.shared_memory=true", "-o", DIES_AGAIN),
        ("-o", "resume=true"),
        digest=True,
        returns=True,
    ),
    Victim(
        "a run of threads that had returned",
        (*TRAIN, "local", *SIZES, "-o", RETURNS % (2.0, 0.1)),
        ("-o", "resume=true"),
        returns=True,
    ),
)


def kill(seed: int, kills: int, victims: tuple[Victim, ...] = (*VICTIMS, *RETURNED)) -> Iterator[str]:
    """Kill so many times, each victim up to three times before it may end; what was found wrong."""
    draw = random.Random(seed)
    expected: dict[str, tuple[float, str | None]] = {}
    done = 0
    with Progress(kills, "kills", "kills") as progress:
        while done < kills:
            victim = draw.choice(victims)
            if victim is LASTING:
                killed, wrong = kill_servers(draw, kills - done)
                done += killed
                progress.advance(killed)
                yield from (f"{victim.name}: {what}" for what in wrong)
                continue
            with tempfile.TemporaryDirectory(prefix="kills-") as folder:
                if victim.name not in expected:
                    start = time.monotonic()
                    code, digest, why = _run(victim, (), Path(folder) / "whole", None)
                    expected[victim.name] = time.monotonic() - start, digest
                    if code:
                        yield f"{victim.name}: it fails without being killed, exit code {code}: {why}"
                        return
                seconds, digest = expected[victim.name]
                reports = Path(folder) / "killed"
                for _ in range(min(draw.randint(1, 3), kills - done)):
                    _run(victim, victim.on if reports.exists() else (), reports, draw.uniform(0, seconds))
                    done += 1
                    progress.advance(1)
                    yield from (f"{victim.name}: {what}" for what in _wrong(reports, victim.grace))
                code, found, why = _run(victim, victim.on, reports, None)
                if code or found != digest:
                    yield f"{victim.name}: it went on to exit code {code} and digest {found}, not {digest}: {why}"
                yield from (f"{victim.name}: it left {path}" for path in _left(reports))


def kill_servers(draw: random.Random, most: int, victim: Victim = LASTING) -> tuple[int, list[str]]:
    """Kill servers of one run at random moments while it lasts; how many were, and what was found wrong."""
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        reports, killed = Path(folder), []
        process = _started(victim.command, reports)
        while process.poll() is None and len(killed) < most:
            time.sleep(draw.uniform(0, 3))
            if there := [server for server in _servers(reports) if server not in killed]:
                killed.append(draw.choice(there))
                os.kill(killed[-1], signal.SIGKILL)
        told, why = process.communicate()
        if process.returncode:
            end = f"with exit code {process.returncode}: {_last(why)}"
            return len(killed), [f"{len(killed)} servers died, and then it, {end}"]
        summary, wrong = json.loads(told), list(_wrong(reports, victim.grace))
        told = {
            name: summary.get(name, 0) for name in ("returns_to_a_cut", "servers_attached_again", "issued", *OUTCOMES)
        }
        balanced = summary["issued"] == sum(summary[name] for name in OUTCOMES) and summary["samples"] == 245_760
        if not balanced or summary["returns_to_a_cut"] or told["servers_attached_again"] > len(killed):
            wrong.append(f"{len(killed)} servers died: {told}")
        return len(killed), [*wrong, *(f"it left {path}" for path in _left(reports))]


def _servers(reports: Path) -> Iterator[int]:
    """The processes of a run whose memory outlives them and that have noted an update: before, the run begins anew."""
    for process in _processes(reports):
        with suppress(OSError):
            held = [Path(os.readlink(file)) for file in Path(f"/proc/{process}/fd").iterdir()]
            if any("-server" in each.parent.name and each.name == "log" and each.stat().st_size for each in held):
                yield process


def _started(command: Iterable[str], reports: Path) -> subprocess.Popen:
    environment = {**os.environ, **paths.environment(), "LOCKSTEP_REPORTS": str(reports), "OMP_NUM_THREADS": "1"}
    environment["PYTHONFAULTHANDLER"] = "1"
    words = [sys.executable, "-m", "lib", *(word.replace("{reports}", str(reports)) for word in command)]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _run(victim: Victim, more: tuple[str, ...], reports: Path, seconds: float | None) -> tuple[int, str | None, str]:
    """Exit code, digest and last words; killed after so many seconds, where they are given, or so long after its return."""
    process = _started((*victim.command, *more), reports)
    while seconds is not None and victim.returns and process.poll() is None and not _has_returned(reports):
        time.sleep(0.2)
    try:
        told, why = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        return -signal.SIGKILL, None, ""
    digest = json.loads(told)["digest"] if victim.digest and not process.returncode else None
    return process.returncode, digest, _last(why)


def _has_returned(reports: Path) -> bool:
    """Whether the newest checkpoint is of an attempt after the first."""
    for newest in (reports / "checkpoints").glob("*/stage-????.pt"):
        with suppress(LockstepError, OSError):  # it has just been replaced
            return checkpoint.load(newest)["run"]["number"] > 0
    return False


def _last(words: str) -> str:
    """The end of what a process said of itself, its progress left out."""
    return words.rpartition("\r")[2].strip()[-4000:]


def _wrong(reports: Path, grace: float) -> Iterator[str]:
    """What is not as it should be right after a kill."""
    until = time.monotonic() + grace
    while (left := _processes(reports)) and time.monotonic() < until:
        time.sleep(0.05)
    if left:
        yield f"processes {left} are left"
    for folder in sorted((reports / "runs").glob("[!.]*")):
        try:
            _ = Run.load(folder).model
        except LockstepError as error:
            yield str(error)


def _left(reports: Path) -> Iterator[str]:
    """What is left behind once the work is done."""
    yield from map(str, [*(reports / "checkpoints").glob("*/*"), *(reports / "mapped").glob("*")])
    yield from (str(path) for path in reports.rglob(".*") if path.is_dir())
    yield from (f"the segment {name}" for name in shared_memory.remove_orphans())


def _processes(reports: Path) -> list[int]:
    """Those that were started with this folder for their reports."""
    mark, found = f"LOCKSTEP_REPORTS={reports}\0".encode(), []
    for place in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in place.read_bytes():
                found.append(int(place.parent.name))
        except OSError:  # it has ended, or is somebody else's
            continue
    return found
