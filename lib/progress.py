"""One progress line with rate and time left: on a terminal, in Jupyter, or nowhere."""

from __future__ import annotations

import contextvars
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Self, TypeVar

INTERVAL = 0.2
"""Seconds between two drawings of the line, at least."""
ROLE = {"role": "progress"}
"""Of the line in a notebook: pages leave it out."""
LONG = 5.0
"""Work that nobody watches is worth a final line when it took longer than this, in seconds."""

_open: list[Progress] = []
"""Outermost first: work within work is told in the outermost's line, so that one line stays."""
T = TypeVar("T")


def _amount(value: float) -> str:
    """1234567 -> 1.23M."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= factor:
            return f"{value / (1e3 if letter == 'k' else factor):.3g}{letter}"
    return f"{value:.0f}" if value == int(value) or value >= 100 else f"{value:.2g}"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _notebook() -> bool:
    """Whether this process is a Jupyter kernel. IPython is looked for, never imported for this."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module and hasattr(module, "get_ipython") else None
    return getattr(shell, "kernel", None) is not None


def _line() -> Callable[[str], None] | None:
    """What draws the line anew, where somebody watches: on a terminal, or in Jupyter."""
    if sys.stderr is not None and sys.stderr.isatty():
        drawn = ""

        def draw(text: str) -> None:
            nonlocal drawn
            print(f"\r{text.ljust(len(drawn))}", end="", file=sys.stderr, flush=True)
            drawn = text

        return draw
    if not _notebook():
        return None
    from IPython.display import Pretty, display

    handle = display(Pretty(""), display_id=True, metadata=ROLE)
    # ipykernel keeps the running cell in a context variable: a worker thread's updates need this thread's.
    context = contextvars.copy_context()
    return lambda text: context.run(handle.update, Pretty(text), metadata=ROLE)


class Progress:
    """`with Progress(total, "train") as progress: progress.advance(64)`, from any thread."""

    def __init__(self, total: float | None, label: str = "", unit: str = "") -> None:
        self.total, self.label, self.unit = total, label, unit
        self.done = 0.0
        self._lock = threading.Lock()
        self._drawn = 0.0

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        self._inner = bool(_open)
        self._draw = _open[0]._within if _open else _line()
        _open.append(self)
        return self

    def advance(self, amount: float = 1) -> None:
        with self._lock:
            self.done += amount
            now = time.monotonic()
            if self._draw and now - self._drawn >= INTERVAL:
                self._drawn = now
                self._draw(self.line())

    def line(self, final: bool = False) -> str:
        elapsed = max(time.monotonic() - self._start, 1e-9)
        rate = self.done / elapsed
        unit = f" {self.unit}" if self.unit else ""
        of = f"/{_amount(self.total)}" if self.total else ""
        text = f"{self.label}: " if self.label else ""
        text += f"{_amount(self.done)}{of}{unit}, {_amount(rate)}{unit}/s"
        if final:
            return f"{text}, took {_clock(elapsed)}"
        if not self.total or not self.done:
            return text
        return f"{text}, {_clock(max(self.total - self.done, 0) / rate)} left"

    def _within(self, text: str) -> None:
        """Show what is going on inside; the caller holds the inner line's lock, never this one's."""
        with self._lock:
            if self._draw:
                self._draw(f"{self.line()} · {text}")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _open.remove(self)
        if self._inner:
            return
        with self._lock:
            text = self.line(final=True) + (", stopped" if kind else "")
            if self._draw:
                self._draw(text)
                if sys.stderr.isatty():
                    print(file=sys.stderr, flush=True)
            elif time.monotonic() - self._start > LONG:
                print(text, file=sys.stderr, flush=True)


def track(items: Iterable[T], label: str = "", unit: str = "") -> Iterator[T]:
    """The items one by one, with a line of how many are done; what each of them does is told in the same line."""
    items = list(items)
    with Progress(len(items), label, unit) as progress:
        for item in items:
            yield item
            progress.advance()
