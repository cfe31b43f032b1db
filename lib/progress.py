"""One progress line, with its rate and the time left where they are known: on a terminal, in Jupyter, or nowhere."""

from __future__ import annotations

import contextlib
import contextvars
import io
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from lib import paths

ROLE = {"role": "progress"}
"""The line's metadata in a notebook: pages leave the line out."""
INTERVAL = 0.2
"""Seconds between two drawings of the line, at least."""
LONG = 5.0
"""Seconds of work after which a final line is printed where there is neither a terminal nor a notebook."""
FORMAT = "{desc}: {n_fmt}/{total_fmt}{unit}, {rate_noinv_fmt}, {elapsed} passed, {remaining} left{postfix}"
UNEVEN = "{desc}: {n_fmt} of {total_fmt}{unit}, {elapsed} passed{postfix}"
"""Where units take unlike times, so that nothing follows for the time left."""
SHARE = "{desc}: {percentage:.0f} %, {elapsed} passed, {remaining} left{postfix}"
"""Where the total is no number of things."""
SHORT = "{desc}: {percentage:.0f} %, {remaining} left"
FILE = "progress"
"""In a notebook runner's stage: the kernel's line in short, which the runner shows after its own."""

_open: list[Progress] = []
"""Outermost first; work inside work is shown at the end of the outermost's line, so there is one line."""
T = TypeVar("T")


class Progress(tqdm):
    """`with Progress(total, "train", "samples") as progress: progress.advance(64)`, from any thread."""

    _lock = threading.RLock()  # tqdm's own is shared among processes
    monitor_interval = 0  # else tqdm keeps a thread

    def __init__(self, total: float | None, label: str = "", unit: str = "", line: str = FORMAT) -> None:
        self._outer = _open[0] if _open else None
        self._terminal = self._outer is None and sys.stderr is not None and sys.stderr.isatty()
        self._notebook = None if self._outer or self._terminal else _notebook_printer()
        file = sys.stderr if self._terminal else io.StringIO()
        unit = f" {unit}" if unit else ""
        super().__init__(
            total=total,
            desc=label,
            unit=unit,
            unit_scale=(total or 1000) >= 1000,
            file=file,
            mininterval=INTERVAL,
            smoothing=0,
            bar_format=line,
        )
        _open.append(self)

    def advance(self, amount: float = 1) -> None:
        with self._lock:
            self.update(amount)

    def reach(self, amount: float) -> None:
        """Show that so much is done, if it is more than before, and how much time is left by now."""
        with self._lock:
            if not self.n and amount:  # what it took to start says nothing of the time left
                self.start_t = self._time()
            self.n = min(max(self.n, amount), self.total or math.inf)
            self.refresh()

    def __bool__(self) -> bool:
        """True: tqdm asks its total, which may be unknown."""
        return True

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Show the line where it is watched."""
        if self._outer is not None:
            done = f"{self.n / self.total:.0%}" if self.bar_format == SHARE else f"{self.n:.5g}/{self.total or '?'}"
            own = f"{self.desc}: {done}" + (f", {self.postfix}" if self.postfix else "")
            self._outer.set_postfix_str("" if self.disable else own)
        elif self._notebook is not None:
            self._notebook(str(self))
            short = self.format_meter(**self.format_dict | {"bar_format": SHORT}) if self.total else self.desc
            _leave_for_runner(short)
        elif self._terminal:
            super().display(msg, pos)

    def close(self) -> None:
        if self.disable:  # it is closed
            return
        _open.remove(self)
        super().close()
        if self._notebook is not None:
            _leave_for_runner("")
        unseen = not (self._outer or self._terminal or self._notebook)
        if unseen and self.format_dict["elapsed"] > LONG:
            print(self, file=sys.stderr, flush=True)


def _notebook_printer() -> Callable[[str], None] | None:
    """A function that replaces the last text in a Jupyter cell; None outside Jupyter. IPython is not imported for this."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module and hasattr(module, "get_ipython") else None
    if getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import Pretty, display

    handle = display(Pretty(""), display_id=True, metadata=ROLE)
    # ipykernel keeps the running cell in a context variable: a worker thread's updates need this thread's.
    context = contextvars.copy_context()
    return lambda text: context.run(handle.update, Pretty(text), metadata=ROLE)


def _leave_for_runner(text: str) -> None:
    if stage := os.environ.get(paths.STAGE):
        with contextlib.suppress(OSError):
            (Path(stage) / FILE).write_text(text, encoding="utf-8")


def track(items: Iterable[T], label: str = "", unit: str = "") -> Iterator[T]:
    """The items one by one, with a line of how many are done."""
    items = list(items)
    with Progress(len(items), label, unit) as progress:
        for item in items:
            yield item
            progress.advance()
