"""How Ray is imported, started, joined and stopped."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from lib.errors import LockstepError

PAUSE = 5.0
"""Seconds after which Ray is started once more if it did not start: on a busy machine its parts may time out."""


def import_ray(one_machine: bool) -> Any:
    """Import Ray. On one machine its servers listen on the loopback address only, unless Ray was imported before."""
    if one_machine:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    # Ray reports a dead process on stdout, where a summary may be expected; the run reports what followed.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of a change to come
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # in a notebook it asks for widgets, which nothing here shows
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray
    except ImportError as error:
        raise LockstepError("the ray cluster needs Ray: pip install ray, or use the local cluster") from error
    finally:
        logging.disable(before)
    logging.getLogger("ray").setLevel(logging.ERROR)  # notices about its defaults would appear in every report
    return ray


def start(address: str | None, options: dict[str, Any]) -> None:
    """Start Ray with these options, or join it at an address; if that fails, try once more."""
    import ray

    for pause in (PAUSE, None):
        # All children: a process that has just been started has no command line yet by which to recognise it as Ray's.
        others = set(psutil.Process().children(recursive=True))
        try:
            with uninterrupted():
                ray.init(**options)
            return
        except Exception as error:  # Ray has no types of its own for these
            with uninterrupted():
                ray.shutdown()
                _kill_leftovers(others)
            if pause is None or isinstance(error, (TypeError, ValueError)):
                raise LockstepError(_why_not(address, error)) from error
        time.sleep(pause)


def _kill_leftovers(others: set[psutil.Process]) -> None:
    """Kill what a failed start has left: its server would take a share of the machine from the next try."""
    left = set(psutil.Process().children(recursive=True)) - others
    for child in left:
        with suppress(psutil.Error):  # it may be gone by now
            if any("ray" in Path(word).parts for word in child.cmdline()):
                child.kill()
    psutil.wait_procs(left, timeout=5)


def _why_not(address: str | None, error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    if address is not None:
        return (
            f"no Ray at {address!r} that this process can join ({first}): `ray status --address={address}` says what is there; "
            "Python and Ray must be the same on all machines, and the ports of `ray start` open"
        )
    return (
        f"Ray did not start on this machine in two tries ({first}): it needs memory (`df /dev/shm`) and a core; "
        "`ray stop` ends what others have left, /tmp/ray/session_latest/logs has its logs, and cluster='local' needs no Ray"
    )


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Raise Ctrl-C at the end of the block: Ray interrupted while it starts or stops leaves processes for a minute."""
    if threading.current_thread() is not threading.main_thread():  # Ctrl-C reaches the main thread alone
        yield
        return
    caught: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.default_int_handler)
    if caught:
        raise KeyboardInterrupt
