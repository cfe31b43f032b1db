"""How Ray is started, joined and stopped."""

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

PAUSES = (1.0, 5.0)
"""Seconds after which Ray is started again that did not start: on a busy machine its parts wait for each other in vain."""


def start(address: str | None, options: dict[str, Any]) -> None:
    """Start Ray with these options, or join it; where it does not come up it is tried again."""
    import ray

    for pause in (*PAUSES, None):
        # All of them: who has just been started has no command yet by which Linux would tell that it is Ray's.
        others = {child.pid for child in psutil.Process().children(recursive=True)}
        try:
            with uninterrupted():
                ray.init(**options)
            return
        except Exception as error:  # Ray has no kinds of its own for these
            with uninterrupted():
                ray.shutdown()
                _end([child for child in _of_ray() if child.pid not in others])
            if pause is None or isinstance(error, (TypeError, ValueError)):
                raise LockstepError(_why_not(address, error)) from error
        time.sleep(pause)


def _of_ray() -> list[psutil.Process]:
    """What runs of Ray below this process."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it may be gone by now
            if any("ray" in Path(word).parts for word in child.cmdline()):
                found.append(child)
    return found


def _end(processes: list[psutil.Process]) -> None:
    """Ray forgets what it started when it does not come up: every try would leave a server that takes its share of the machine
    from the next."""
    for each in processes:
        with suppress(psutil.Error):
            each.kill()
    psutil.wait_procs(processes, timeout=5)


def _why_not(address: str | None, error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    if address is not None:
        return (
            f"no Ray at {address!r} that this process can join ({first}): `ray status --address={address}` says what is there; "
            "Python and Ray must be the same on all machines, and the ports of `ray start` open"
        )
    return (
        f"Ray did not start on this machine in {1 + len(PAUSES)} tries ({first}): it wants memory (`df /dev/shm`) and a core; "
        "`ray stop` ends what others have left, /tmp/ray/session_latest/logs has its logs, and cluster='local' needs no Ray"
    )


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C comes through at the end: Ray interrupted while it starts or stops leaves processes for a minute."""
    if threading.current_thread() is not threading.main_thread():  # Ctrl-C goes to the main thread alone
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


def import_ray() -> Any:
    # It tells of a dead process on stdout, where a summary may be expected; the run says what became of it.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")
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
    logging.getLogger("ray").setLevel(logging.ERROR)  # news of its defaults would stand in every report
    return ray
