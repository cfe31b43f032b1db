"""What a constant of a modelled cluster was fitted to: data beside the claims, and a reason not to judge what follows from it."""

from __future__ import annotations

import dataclasses
from fnmatch import fnmatchcase

from lib.options.checked import Checked
from reports.claims.claim import Comparison, Text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Determined(Checked):
    """Comparisons whose outcome a fitted constant decides, by patterns in which * stands for anything."""

    metric: Text
    subject: Text
    reference: Text | None = None

    def covers(self, comparison: Comparison) -> bool:
        pair, patterns = (comparison.subject, comparison.reference or ""), (self.subject, self.reference or "")
        ways = (pair, pair[::-1])
        named = any(all(map(fnmatchcase, way, patterns)) for way in ways)
        return named and fnmatchcase(comparison.metric, self.metric)

    def __str__(self) -> str:
        return f"{self.metric} of {' and '.join(filter(None, (self.subject, self.reference)))}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration(Checked):
    """A constant, its value, and where that comes from."""

    constant: Text
    """Where it stands: a module and a name in it, or the notebooks' own words."""
    value: float | tuple[float, ...]
    """What it is, as in the code."""
    fitted_to: Text
    """The figure that it was chosen by."""
    notebooks: tuple[Text, ...]
    """Those whose results follow from it."""
    determines: tuple[Determined, ...] = ()
    """What is no prediction any more."""

    def covers(self, comparison: Comparison) -> bool:
        """Whether the comparison's outcome was put in, whichever of the two is named first."""
        return any(each.covers(comparison) for each in self.determines)
