"""What a constant of a modelled cluster was fitted to; a result that follows from the fit is not judged."""

import dataclasses
from fnmatch import fnmatchcase

from lib.options.checked import Checked
from reports.claims.claim import Comparison, Text


@dataclasses.dataclass(frozen=True, kw_only=True)
class FittedResult(Checked):
    """Comparisons whose outcome a fitted constant decides, by patterns in which * stands for anything."""

    metric: Text
    subject: Text
    reference: Text | None = None

    def covers(self, comparison: Comparison) -> bool:
        """Whether the comparison matches, whichever of the two subjects is named first."""
        pair, patterns = (comparison.subject or "", comparison.reference or ""), (self.subject, self.reference or "")
        matches = any(all(map(fnmatchcase, order, patterns)) for order in (pair, pair[::-1]))
        return matches and fnmatchcase(comparison.metric, self.metric)

    def __str__(self) -> str:
        return f"{self.metric} of {' and '.join(filter(None, (self.subject, self.reference)))}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration(Checked):
    """A constant, its value, and its source."""

    constant: Text
    """A module and a name in it, or the notebooks' own words."""
    value: float | tuple[float, ...]
    """As in the code."""
    fitted_to: Text
    """The figure of the paper that it was fitted to."""
    notebooks: tuple[Text, ...]
    """The notebooks whose results follow from it."""
    determines: tuple[FittedResult, ...] = ()
    """The results that are no predictions any more."""

    def covers(self, comparison: Comparison) -> bool:
        """Whether the fit decides the comparison's outcome."""
        return any(each.covers(comparison) for each in self.determines)
