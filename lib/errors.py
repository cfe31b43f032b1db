"""The errors that a user can act on; each message says what was wrong, where, and what would be right."""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class LockstepError(Exception):
    """Any error that Lockstep raises on purpose."""


class UnknownName(LockstepError, KeyError):
    """A name that is not registered."""

    __str__ = Exception.__str__  # KeyError would print the message's repr


class UnknownOption(LockstepError, TypeError):
    """An option that nothing here takes."""


class BadOption(LockstepError, ValueError):
    """A known option with a value that cannot work."""


class BadField(BadOption):
    """A field with a value that cannot work; the reader of a file puts the file's place before `place` and `problem`."""

    def __init__(self, owner: str, path: tuple[int | str, ...], problem: str):
        self.owner, self.path, self.problem = owner, path, problem
        super().__init__(f"{owner}: {self.place}{problem}" if path else f"{owner}{problem}")

    @property
    def place(self) -> str:
        """`nodes.worker3.cores`, `links[0].ends`."""
        return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path).removeprefix(".")

    def __reduce__(self):
        return BadField, (self.owner, self.path, self.problem)


class NotFinite(LockstepError, ArithmeticError):
    """A loss or a gradient became NaN or infinite."""


class Deadlock(LockstepError, RuntimeError):
    """Virtual time cannot advance: everything waits and nothing will wake it."""


class NodeLost(LockstepError, ConnectionError):
    """A node died."""

    def __init__(self, node: str):
        super().__init__(f"{node} died, and nothing can take its place; `lasts` in its failure says when it is up")
        self.node = node

    def __reduce__(self):
        return NodeLost, (self.node,)


class MemberLost(LockstepError, ConnectionError):
    """A member of a group died before the group was done; what it was doing did not take place."""


class NotSaved(LockstepError, OSError):
    """A run could not be written; it is kept in `run`, so that nothing computed is lost."""

    def __init__(self, folder: Path, reason: str, run: Any):
        self.run, self._given = run, (folder, reason, run)
        self.problem = (
            f"the run is complete but could not be saved to {folder}: {reason}. Nothing saved before was touched. Free some "
            "space or set LOCKSTEP_REPORTS to another folder"
        )
        super().__init__(f"{self.problem}; this error's `run` holds the run, and `run.save(folder)` tries again")

    def __reduce__(self):
        return NotSaved, self._given


class Damaged(LockstepError, OSError):
    """What is read is not what was written: which file, which part of it."""


MANY = 20
OR_FILES = {
    "workload": "a file: mine.py:Mine",
    "protocol": "a file: mine.py:Mine",
    "cluster": "a file: machine.yaml, as `calibrate` writes it, or mine.py:Mine",
}
"""What a user's own files may stand for."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """A sentence's end that names the closest valid names and lists all of them; of many, three come first, however far."""
    valid, word = sorted(valid), str(name).lower()
    close = difflib.get_close_matches(word, valid, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    if not close and len(valid) > MANY:
        hint = f"the nearest are {', '.join(map(repr, difflib.get_close_matches(word, valid, n=3, cutoff=0.0)))}; "
    return f"{hint}valid: {', '.join(valid) or 'none'}"


def unknown(kind: str, name: str, valid: Iterable[str]) -> UnknownName:
    """An error that names the valid names and what else may stand there."""
    also = OR_FILES.get(kind, "")
    return UnknownName(f"unknown {kind} {name!r}; {nearest(name, valid)}" + (f"; or {also}" if also else ""))


def unknown_option(owner: str, name: str, valid: Iterable[str]) -> UnknownOption:
    return UnknownOption(f"{owner} has no option {name!r}; {nearest(name, valid)}")


def first_in_group(error: BaseException) -> BaseException:
    """The first error that is not a group of errors: what a user can act on."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
