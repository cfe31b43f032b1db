"""What a constant of a modelled cluster was fitted to: data beside the claims, and a reason not to judge what follows from it."""

from __future__ import annotations

import dataclasses
from fnmatch import fnmatchcase

from lib.options.checked import Checked
from lib.reporting.claims.claim import Comparison, Text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Determined(Checked):
    """Comparisons whose outcome a fitted constant decides, by patterns in which * stands for anything."""

    metric: Text
    subject: Text
    reference: Text | None = None


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
        pair = comparison.subject, comparison.reference or ""
        return any(
            fnmatchcase(comparison.metric, each.metric)
            and any(
                fnmatchcase(one, each.subject) and fnmatchcase(other, each.reference or "")
                for one, other in (pair, pair[::-1])
            )
            for each in self.determines
        )
