"""Other interpreters that train: started once, asked over pipes, gone when this one goes.

A child imports `lib` and nothing of this process's `__main__`, so that it works alike from a notebook, a test and a script
without a guard. It takes one order at a time: the arguments of a run and the name under which that run is saved. Where it
comes to another name (a class that changed since, code that it cannot find), it declines, and the run is made by who asked.
"""

from __future__ import annotations

import io
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from lib.errors import LockstepError
from lib.progress import INTERVAL

if TYPE_CHECKING:
    from lib.results.run import Run

PATIENCE = 10.0
"""Seconds that a child has to clean up before it is killed."""


class ChildLost(LockstepError, RuntimeError):
    """A process ended before it had answered."""


class Declined(Exception):
    """The child cannot make this run as it would be made here."""


class _Pickler(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        if getattr(thing, "__module__", None) == "__main__":
            raise pickle.PicklingError(f"{thing!r} lives in __main__, which another process does not have")
        return NotImplemented


def order(arguments: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """What a child needs to make a run as it would be made here; None where the arguments cannot travel."""
    packed = io.BytesIO()
    try:
        _Pickler(packed, pickle.HIGHEST_PROTOCOL).dump(dict(arguments))
    except Exception:  # whatever an object's own way of pickling may raise
        return None
    return {
        "arguments": packed.getvalue(),
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
        package = str(Path(__file__).resolve().parents[2])
        search = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the child)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from lib.training.processes import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**os.environ, "PYTHONPATH": search},
            start_new_session=True,
        )
        self._ready = False

    def wait(self) -> None:
        """Until the child takes orders."""
        if not self._ready:
            self._hear()
            self._ready = True

    def ask(self, order: dict[str, Any], progress: Callable[[int], None]) -> Run:
        """The run that was ordered, or its error."""
        try:
            pickle.dump(order, self._process.stdin)
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise self._lost() from error
        while True:
            kind, what = self._hear()
            if kind == "progress":
                progress(what)
            elif kind == "run":
                return what
            elif kind == "error":
                raise what
            else:
                raise Declined

    def _hear(self) -> tuple[str, Any]:
        try:
            return pickle.load(self._process.stdout)
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
        with suppress(OSError):  # it may be gone already
            self._process.stdin.close()

    def stop(self) -> None:
        """The end of the child."""
        self.release()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve() -> None:
    """A child's life: orders come in by stdin, answers go out by stdout; the end of stdin is its end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a run prints must not get between the answers

    def send(kind: str, what: Any = None) -> None:
        answers.write(pickle.dumps((kind, what), pickle.HIGHEST_PROTOCOL))
        answers.flush()

    orders: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, orders), daemon=True).start()
    with suppress(KeyboardInterrupt, BrokenPipeError):
        import torch

        import lib.training.train  # noqa: F401

        torch.set_num_threads(1)
        send("ready")
        while (order := orders.get()) is not None:
            send(*_answer(order, send))


def _listen(stdin: IO[bytes], orders: queue.SimpleQueue) -> None:
    """Pass orders on. When nobody can ask any more, a run that is under way is interrupted."""
    try:
        while True:
            orders.put(pickle.load(stdin))
    except (EOFError, OSError, pickle.UnpicklingError):
        orders.put(None)
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        else:
            signal.raise_signal(signal.SIGINT)


def _answer(order: dict[str, Any], send: Callable[[str, Any], None]) -> tuple[str, Any]:
    from lib.training.train import Job

    sys.path[:] = order["path"]
    for name in [name for name in os.environ if name.startswith("LOCKSTEP_")]:
        del os.environ[name]
    os.environ.update(order["environment"])
    try:
        os.chdir(order["folder"])
        job = Job.of(**pickle.loads(order["arguments"]))
    except Exception:
        return "declined", None
    if job.key != order["key"]:
        return "declined", None

    done, told = 0, time.monotonic()

    def progress(samples: int) -> None:
        nonlocal done, told
        done += samples
        if (now := time.monotonic()) - told >= INTERVAL:
            send("progress", done)
            done, told = 0, now

    try:
        run = job.run(progress)
    except Exception as error:
        return "error", _portable(error)
    send("progress", done)
    return "run", run


def _portable(error: Exception) -> Exception:
    """The error with its traceback as a note, since tracebacks stay behind; where it cannot travel, its words."""
    error.add_note("".join(traceback.format_exception(error)).rstrip())
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return LockstepError(f"{type(error).__name__}: {error}")
