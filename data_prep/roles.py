"""What each column of a click log is: as the user named it, or as its text looks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_prep import columns, values
from data_prep.columns import Form
from lib.errors import BadOption

_KINDS = {"numbers": "number", "bags": "bag"}
_TOLD = {"label": "the label", "skip": "left out", "numbers": "a number"}
_MANY = 0.1  # share of the first rows whose label is none
_ENOUGH = 1000  # rows after which a value of its own in each is no accident


class Seen(NamedTuple):
    """What all the files hold."""

    figures: dict[str, np.ndarray]
    """Column -> how many values there are, how many of them are numbers, and how many whole."""
    own: set[str]
    """The columns in which the first rows all differ."""
    times: np.ndarray
    """Of the rows that are cut into days, nan where there is none."""


class Roles:
    """The label, the time, the numbers, the fields of ids, and of these the bags with their separators."""

    def __init__(self, options: Any, forms: Sequence[Form]):
        self.options, self.forms = options, forms
        first = forms[0]
        self.separators = dict.fromkeys(first.lists, columns.WITHIN)
        for each in options.bags:
            name, _, between = each.rpartition(":") if each not in first.lists else (each, "", "")
            if not name or (not between and name not in first.lists):
                raise BadOption(f"--bags {each}: expected COLUMN:SEPARATOR, as 'genres:|'")
            self.separators.setdefault(name, between)
        self.named = self._named()
        for form in forms[1:]:
            for name in first.names:
                columns.check(form, name, f"a column of {first.path}")
        self.told: dict[str, str] = {}
        """Column -> what it was taken for, in words."""

    def _named(self) -> dict[str, str]:
        """Column -> the option that names it."""
        chosen, first = self.options, self.forms[0]
        if not chosen.label:
            raise BadOption(
                f"which column of {first.path} says whether there was a click? --label COLUMN, of {', '.join(first.names)}"
            )
        given = {"label": [chosen.label], "time": [chosen.time] * bool(chosen.time), "numbers": chosen.numbers}
        given |= {"ids": chosen.ids, "bags": list(self.separators), "skip": chosen.skip}
        found: dict[str, str] = {}
        for option, names in given.items():
            for name in names:
                columns.check(first, name, f"--{option}")
                if found.setdefault(name, option) != option:
                    raise BadOption(f"column {name!r} is given twice, as --{found[name]} and as --{option}")
        return found

    def settle(self, seen: Seen) -> None:
        """Decides on the columns that no option names."""
        kinds = {}
        for name in self.forms[0].names:
            kinds[name], self.told[name] = self._kind(name, seen)
        self.numbers = [name for name, kind in kinds.items() if kind == "number"]
        self.fields = [name for name, kind in kinds.items() if kind in ("ids", "bag")]
        if not self.fields:
            raise BadOption(f"{self.forms[0].path}: no column of ids; --ids COLUMN takes one as such")

    def _kind(self, name: str, seen: Seen) -> tuple[str, str]:
        """What a column is taken for, and what is reported to the user."""
        if role := self.named.get(name):
            told = f"the time: {self.options.days} days of equally many rows" if role == "time" else role
            return _KINDS.get(role, role), _TOLD.get(role, told)
        there, numbers, whole = seen.figures[name].tolist()
        if not there:
            return "skip", "left out: it is empty"
        if name in seen.own and (numbers < there or whole == there):
            return "skip", "left out: it is different in every row; --ids or --numbers takes it"
        if numbers == there and whole < there:
            return "number", "a number"
        if whole == there:
            return "ids", "ids; whole numbers, which --numbers takes as such"
        others = f"; all but {there - numbers:,} are numbers: --numbers takes it, and sets those rows aside"
        return "ids", "ids" + others * (numbers > there / 2)

    def look(self, block: columns.Block, form: Form, first: bool) -> tuple[dict[str, np.ndarray], set[str]]:
        """The counts of a block, and, of a file's first one, the columns that differ in every row."""
        open_ = [name for name in block.columns if name not in self.named]
        counts = {name: np.array(values.looks(block.columns[name])) for name in open_}
        many = len(block.lines)
        own = {name for name in open_ if first and many >= _ENOUGH and len(block.columns[name].unique()) == many}
        if first and many:
            self._check_label(block, form.path)
        return counts, own

    def _check_label(self, block: columns.Block, path: Path) -> None:
        """An error where many labels are none: the wrong column, or -1 and 1."""
        name = self.options.label
        _, wrong = values.labels(block.columns[name], self.options.positive)
        if wrong.mean() > _MANY:
            row = int(np.flatnonzero(wrong)[0])
            text = (block.columns[name][row].as_py() or b"").decode("utf-8", "backslashreplace")
            expected = "0 or 1; or --positive N, the number from which on it is a click"
            raise BadOption(
                f"{path}, line {block.lines[row]}, column {name!r}: {text!r}; expected "
                f"{expected if self.options.positive is None else 'a number'}"
            )

    def edges(self, times: np.ndarray) -> np.ndarray:
        """The times at which a day ends and the next begins."""
        name, days, path = self.options.time, self.options.days, self.forms[0].path
        known = times[~np.isnan(times)]
        lacking = len(times) - len(known)
        others = f" ({lacking:,} of {len(times):,} rows have neither a number nor a date)" if lacking else ""
        if not len(known):
            raise BadOption(f"{path}, column {name!r}: no numbers and no dates, as 2024-05-31 or 2024-05-31 23:59:59")
        found = np.quantile(known, np.arange(1, days) / days)
        if not np.bincount(np.searchsorted(found, known, side="right"), minlength=days).all():
            raise BadOption(
                f"{path}, column {name!r}: {len(np.unique(known))} different times{others} do not make --days {days} of "
                "equally many rows; ask for fewer, or leave out --time"
            )
        return found
