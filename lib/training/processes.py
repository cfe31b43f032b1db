"""Other interpreters that train: started once, asked over a pipe, gone when this one goes.

A child imports `lib` and nothing of this process's `__main__`, so that it works alike from a notebook, a test and a script
without a guard. It takes one order at a time: the arguments of a run and the name under which that run is saved. Where it
comes to another name (a class that changed since, code that it cannot find), it declines, and the run is made by who asked.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any

from lib import paths
from lib.errors import LockstepError
from lib.progress import INTERVAL

if TYPE_CHECKING:
    from lib.results.run import Run

PATIENCE = 10.0
"""Seconds that a child has to clean up before it is killed."""


class ChildLost(LockstepError, RuntimeError):
    """A process ended before it had answered."""


def order(arguments: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """What a child needs to make a run as it would be made here; None where the arguments cannot travel."""
    try:
        packed = pickle.dumps(dict(arguments))
    except Exception:  # whatever an object's own way of pickling may raise
        return None
    if b"__main__" in packed:  # something that lives there, where another process has something else
        return None
    return {
        "arguments": packed,
        "key": key,
        "path": list(sys.path),
        "folder": os.getcwd(),
        "environment": {name: value for name, value in os.environ.items() if name.startswith("LOCKSTEP_")},
    }


class Child:
    """A process that trains. It has no terminal: Ctrl-C comes to this process alone, which then stops it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held by the thread that asks."""
        self._ready = False
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the child)
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from lib.training import processes; processes.serve({theirs.fileno()})"],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **paths.environment()},
                start_new_session=True,
            )

    def wait(self) -> None:
        """Until the child takes orders."""
        if not self._ready:
            self._hear()
            self._ready = True

    def ask(self, order: dict[str, Any], progress: Callable[[int], None]) -> Run | None:
        """The run that was ordered, or its error; None where the child cannot make it as it would be made here."""
        answer = self._hear(order)
        while isinstance(answer, int):
            progress(answer)
            answer = self._hear()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _hear(self, order: dict[str, Any] | None = None) -> Any:
        """What the child says next, after it was told something."""
        try:
            if order is not None:
                self._pipe.send(order)
            return self._pipe.recv()
        except Exception as error:  # after half an answer nothing that follows can be read either
            raise self._lost() from error

    def _lost(self) -> ChildLost:
        self.stop()
        code = self._process.returncode
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip()[-2000:]
        why = "killed, perhaps for want of memory" if code == -9 else f"exit code {code}"
        return ChildLost(f"its process ended before it was done ({why}){': ' if said else ''}{said}")

    def release(self) -> None:
        """Tell the child to stop, also in mid-run: it cleans up and goes."""
        self._process.send_signal(signal.SIGINT)

    def stop(self) -> None:
        """The end of the child."""
        self.release()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(handle: int) -> None:
    """A child's life, until it is interrupted or nobody is there to hear it. It answers with how many samples it has come on, and
    at last with the run, its error, or None where it declines."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pipe = Connection(handle)
    with suppress(KeyboardInterrupt, EOFError, OSError):
        import torch

        import lib.training.train  # noqa: F401

        torch.set_num_threads(1)
        pipe.send("ready")
        while True:
            pipe.send(_answer(pipe.recv(), pipe.send))


def _answer(order: dict[str, Any], tell: Callable[[int], None]) -> Run | Exception | None:
    from lib.training.train import Job

    sys.path[:] = order["path"]
    for name in [name for name in os.environ if name.startswith("LOCKSTEP_")]:
        del os.environ[name]
    os.environ.update(order["environment"])
    try:
        os.chdir(order["folder"])
        job = Job.of(**pickle.loads(order["arguments"]))
    except Exception:
        return None
    if job.key != order["key"]:
        return None

    done, told = 0, time.monotonic()

    def progress(samples: int) -> None:
        nonlocal done, told
        done += samples
        if (now := time.monotonic()) - told >= INTERVAL:
            tell(done)
            done, told = 0, now

    try:
        run = job.run(progress)
    except Exception as error:
        return _portable(error)
    tell(done)
    return run


def _portable(error: Exception) -> Exception:
    """The error with its traceback as a note, since tracebacks stay behind; where it cannot travel, its words."""
    error.add_note("".join(traceback.format_exception(error)).rstrip())
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return LockstepError(f"{type(error).__name__}: {error}")
