"""Headlines: what was found, written by hand in `notebooks/headlines.yaml`, with numbers from verdicts."""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping

from lib import paths
from lib.errors import LockstepError
from lib.options.checked import Checked
from lib.options.yaml_source import load, read
from reports.claims import Case, Claim, Verdict
from reports.claims.claim import Text
from reports.markup import rounded
from reports.quantities import PERCENT, decimals

NUMBER = re.compile(r"\{(?P<claim>[^@:{}]+)(?:@(?P<case>[^:{}]*))?(?::(?P<what>paper|share|rule))?\}")
MOST_DIGITS = 3


class BadHeadline(LockstepError, ValueError):
    """A headline whose numbers or verdicts do not fit the results."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Headline(Checked):
    """A finding in words."""

    text: Text
    """At most 35 words; {claim}, {claim@case}, {claim:paper}, {claim:share} and {claim:rule} stand for numbers."""
    verdicts: dict[str, Text]
    """The claims that it rests on, each with its verdict when the text was written."""

    def outdated(self, found: Mapping[str, Verdict]) -> list[str]:
        """What has changed since it was written, in words."""
        now = {name: found[name].word if name in found else "no claim of today" for name in self.verdicts}
        return [f"{name}: {then} then, {now[name]} now" for name, then in self.verdicts.items() if now[name] != then]

    def filled(self, found: Mapping[str, Verdict]) -> str:
        """The text with its numbers."""
        return NUMBER.sub(lambda number: self._number(number, found), self.text)

    def _number(self, match: re.Match[str], found: Mapping[str, Verdict]) -> str:
        name, what, here = match["claim"], match["what"], f"headline {self.text[:40]!r}"
        if name not in self.verdicts:
            raise BadHeadline(f"{here}: {name} has a number there, but no place in its verdicts")
        cases = [case for case in found[name].cases if match["case"] in (None, case.case)]
        number = found[name].claim.margin if what == "rule" else None
        if len(cases) == 1 and what != "rule":
            number = {None: cases[0].ours, "paper": cases[0].figure, "share": cases[0].part and cases[0].part[0]}[what]
        if not isinstance(number, float | int):
            known = ", ".join(repr(case.case) for case in found[name].cases)
            raise BadHeadline(f"{here}: {match[0]} stands for no number; cases are {known}")
        return f"{100 * number:.3g} %" if what == "share" else _written(found[name].claim, cases[0], number)


def headlines() -> dict[str, Headline]:
    """Every headline, by its paper's folder or its notebook."""
    path = paths.notebooks() / "headlines.yaml"
    if not path.exists():
        return {}
    return {name: read(Headline, each, f"{path}: {name}") for name, each in load(path).items()}


def headline(name: str, verdicts: Iterable[Verdict]) -> str:
    """What was found, with its numbers; empty where nothing is written, or where the verdicts are others now."""
    found, known = {verdict.claim.id: verdict for verdict in verdicts}, headlines()
    return known[name].filled(found) if name in known and not known[name].outdated(found) else ""


def paper_headline(paper: str, verdicts: Iterable[Verdict]) -> str:
    """What was found of a paper's claims, or that it is not known."""
    return headline(paper, verdicts) or "Its claims wait for their next run."


def _written(claim: Claim, case: Case, number: float) -> str:
    """A number with the digits that its interval carries, three at most."""
    if claim.metric in PERCENT and claim.effect == "value":
        return f"{100 * number:.2g} %"
    text = f"{number:.{MOST_DIGITS}g}".replace("-", "−")
    if number == case.ours and number and case.low is not None and case.high is not None:
        largest = MOST_DIGITS - 1 - math.floor(math.log10(abs(number)))
        text = rounded(number, max(0, min(largest, decimals([number], (case.high - case.low) / 2))))
    return text + ("×" if claim.effect == "ratio" else "")
