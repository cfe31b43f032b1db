"""What a claim is, and the rule that it states."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Gt, Le, Predicate

from lib.errors import BadField, LockstepError
from lib.options.checked import Checked, Count, Finite

LEAST_SEEDS, LEAST_FOR_EQUIVALENCE = 5, 8
CASE = "{case}"
Text = Annotated[str, Predicate(str.strip)]
Figure = Annotated[float, Finite]


class BadClaim(LockstepError, ValueError):
    """A claim that cannot be judged as written."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Explanation(Checked):
    """A possible reason why a claim was not reproduced, and the result of testing it."""

    changed: Text
    """What the test changed."""
    found: Text
    """What the test found."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """One case of a claim: the metric and the subjects that it compares, by their names in the results."""

    case: str
    paper: float | str | None
    metric: str
    subject: str | None
    reference: str | None
    frozen: str | None
    control: str | None
    dial: tuple[str, ...] = ()
    """In place of a subject, those along a dial."""

    @property
    def subjects(self) -> list[str]:
        names = (self.subject, *self.dial, self.reference, self.frozen, self.control)
        return [name for name in names if name is not None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim(Checked):
    """One claim, checked when it is made. In names of subjects and metrics, {case} stands for each case's name."""

    id: Text
    """Its name everywhere."""
    notebook: Text
    """The notebook next to the file, which judges the claim."""
    sentence: Text
    """What is claimed, in our words."""
    place: Text
    """Where the paper says it."""
    kind: Literal["paper", "estimate", "target", "check"]
    """The paper's claim; a number that is reported without a verdict; a target of the kit; a check of what follows by
    construction."""
    foreseen: bool = False
    """Of a paper's claim: a formula gives the result, so that no seeds confirm it and it is not counted."""
    effect: Literal["difference", "ratio", "value", "slope"]
    """How each seed's results give one number."""
    metric: Text
    """The column of the results that is compared."""
    subject: Text | None = None
    """What the claim is about, as in the results' column `subject`."""
    reference: Text | None = None
    """What the subject is compared with."""
    order: tuple[Text, ...] = ()
    """In place of both, subjects of which each two neighbours are compared, the largest metric first; with <= the smallest."""
    over: Text | dict[str, Figure] | None = None
    """Of a slope: the column that it is taken over, or, in place of a subject, each subject with its place on the dial."""
    cases: dict[str, Figure | Text | None] = dataclasses.field(default_factory=dict)
    """Tasks or settings of the one fact, each with the paper's figure: a number is judged by size too, a text is only shown."""
    relation: Literal[">=", "<=", "within"]
    """Whether the metric is claimed to be large or small; within is for targets and checks."""
    margin: Figure | tuple[Figure, Figure] | None = None
    """The rule's edge, two for within; of a paper's claim without one, no effect or half of the paper's number."""
    share: Annotated[float, Gt(0), Le(0.1)] | None = None
    """Of an equivalence: the share of the reference's gain that may be lost."""
    frozen: Text | None = None
    """Of an equivalence: the subject without the gain: a model that stopped training; for a throughput, the slow mode."""
    control: Text | None = None
    """Of a paper's equivalence: the planted control, which loses about two margins by construction."""
    broken: Figure | None = None
    """Of a paper's value: what a broken mode has, on which the rule is tried."""
    regime: dict[str, Figure | dict[str, Figure]] = dataclasses.field(default_factory=dict)
    """Columns of the results that can decide the outcome, each with the paper's figure."""
    elsewhere: Text | None = None
    """Another system on which the paper's figures rest: the claim is not comparable."""
    modelled: bool = False
    """Whether the metric is of simulated time, whose error 94_fidelity measures."""
    reason: Text
    """Why this margin or share."""
    seeds: Count | tuple[Count, Count] = 1
    """The least number of seeds for a verdict; two numbers are two looks, between which the level is split."""
    scale: dict[str, Text]
    """`paper`: the paper's scale; `ours`: ours."""
    explanations: tuple[Explanation, ...] = ()
    """Reasons that were tested where the claim did not hold."""

    def __post_init__(self):
        for wrong, name, problem in (*self._faults_of_kind(), *self._faults_of_effect(), *self._faults_of_rule()):
            if wrong:
                raise BadField("claim", (name,), f": {problem}")

    def _faults_of_kind(self) -> Iterator[tuple[bool, str, str]]:
        """What would make the claim impossible to judge or to fail: whether it applies, the field, and what is right."""
        paper = self.kind == "paper"
        least, why = (LEAST_FOR_EQUIVALENCE, "within a margin") if self.frozen else (LEAST_SEEDS, "at all")
        yield paper and self.looks[0] < least, "seeds", f"must be {least} or more, for an interval {why}"
        yield self.looks[0] > self.looks[-1], "seeds", "the second look has more seeds than the first"
        yield self.kind == "check" and self.seeds != 1, "seeds", "a check has no least number: every run must pass"
        yield {*self.scale} != {"paper", "ours"}, "scale", "must have exactly 'paper' and 'ours'"
        for name in ("foreseen", "control", "regime", "elsewhere", "broken"):
            yield not paper and getattr(self, name) not in (None, False, {}), name, "is for a paper's claim"
        named = {case for each in self.regime.values() if isinstance(each, dict) for case in each}
        strange = sorted(named - {each.case for each in self.comparisons})
        yield bool(strange), "regime", f"no case is called {', '.join(map(repr, strange))}"

    def _faults_of_effect(self) -> Iterator[tuple[bool, str, str]]:
        pair = self.effect in ("difference", "ratio")
        wanted = {
            "reference": pair and not self.order,
            "over": self.effect == "slope",
            "subject": not self.order and not isinstance(self.over, dict),
        }
        for name, needed in wanted.items():
            right = f"{'is missing from' if needed else 'has no place in'} a claim of effect {self.effect!r}"
            yield needed == (getattr(self, name) is None), name, right
        right = "two subjects or more, of a difference or a ratio"
        yield bool(self.order) and not (pair and len(self.order) > 1), "order", right
        distinct = {dataclasses.replace(each, case="", paper=None) for each in self.comparisons}
        yield len(distinct) < len(self.comparisons), "cases", f"must differ: write {CASE} where their names belong"
        for name, paper in self.cases.items() if self.kind == "paper" and not self.frozen else ():
            if isinstance(paper, (int, float)):
                right = f"a value has no effect whose size could be judged; write {name}'s figure as text"
                yield self.effect == "value" or bool(self.order), "cases", right
                yield self.effect == "ratio" and paper <= 0, "cases", f"{name}'s {paper:g} is no ratio"
                away = self.effect != "value" and self.sign * (paper - self.neutral) <= 0
                yield away, "cases", f"{name}'s {paper:g} is not on the side of {self.relation}"
                yield self.margin is not None, "margin", "the paper's numbers say what is enough; leave it out"

    def _faults_of_rule(self) -> Iterator[tuple[bool, str, str]]:
        paper, equivalence, within = self.kind == "paper", self.frozen is not None, self.relation == "within"
        value, edges = paper and self.effect == "value", self.edges
        only = "only an equivalence has one"
        yield equivalence == (self.share is None), "share", "is missing" if equivalence else only
        right = "an equivalence is of a difference, and its margin is a share of what the reference gains over frozen"
        yield equivalence and (self.effect != "difference" or bool(edges) or within), "effect", right
        right = "is missing: an equivalence needs a planted control" if equivalence else only
        yield paper and equivalence == (self.control is None), "control", right
        yield paper and within, "relation", "a paper's number is judged by >= or <=, sameness with a frozen model"
        yield value == (self.broken is None), "broken", "a paper's value needs one, and nothing else has it"
        needed = not equivalence and (self.kind in ("target", "check") or value)
        if not edges:
            yield needed, "margin", "is missing; what is judged needs it"
            return
        yield within != isinstance(self.margin, tuple), "margin", "is two numbers for within, otherwise one"
        right = "must be from the smaller number to the larger: such a rule cannot pass"
        yield within and edges[0] >= edges[-1], "margin", right
        yield self.effect == "ratio" and min(edges) <= 0, "margin", "must be greater than 0: such a rule cannot fail"
        yield bool(self.order), "margin", "an order has none"
        behind = paper and not value and self.sign * (edges[0] - self.neutral) < 0
        yield behind, "margin", "lies on the other side of no effect: that is an equivalence, with its share and frozen"

    @property
    def edges(self) -> tuple[float, ...]:
        """The margin's one or two numbers, or none."""
        return self.margin if isinstance(self.margin, tuple) else () if self.margin is None else (self.margin,)

    @property
    def neutral(self) -> float:
        """The value of x that is no effect; a value has none, and is measured from 0."""
        return 1.0 if self.effect == "ratio" else 0.0

    @property
    def sign(self) -> int:
        """1 where the claim says that x is large, -1 where it says that x is small."""
        return -1 if self.relation == "<=" else 1

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of seeds at which the results may be judged."""
        return self.seeds if isinstance(self.seeds, tuple) else (self.seeds,)

    @property
    def comparisons(self) -> list[Comparison]:
        """One comparison for every case; of an order, one for every pair of neighbours in every case."""
        return [each for case, paper in (self.cases or {"": None}).items() for each in self._case(case, paper)]

    def _case(self, case: str, paper: float | str | None) -> Iterator[Comparison]:
        pairs = list(zip(self.order, self.order[1:], strict=False)) or [(self.subject, self.reference)]
        for subject, reference in pairs:
            names = {"subject": subject, "reference": reference, "metric": self.metric}
            names |= {"frozen": self.frozen, "control": self.control}
            names = {name: text and text.replace(CASE, case) for name, text in names.items()}
            shown = f"{names['subject']} {'<' if self.sign < 0 else '>'} {names['reference']}" if self.order else case
            dial = tuple(self.over) if isinstance(self.over, dict) else ()
            yield Comparison(case=shown, paper=paper, dial=dial, **names)

    @property
    def hash(self) -> str:
        """A hash of the rule: of all fields but places, reasons, scales, what the rule is tried on, and later explanations."""
        left_out = ("place", "reason", "scale", "explanations", "broken")
        rule = {name: value for name, value in dataclasses.asdict(self).items() if name not in left_out}
        return hashlib.sha256(json.dumps(rule, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]

    @property
    def rule(self) -> str:
        """The rule as a reader would write it."""
        first, *others = self._case("…", None)
        metric = first.metric
        if self.order:
            return f"{metric}: {'; '.join(each.case for each in (first, *others))}"
        over = ", ".join(self.over) if isinstance(self.over, dict) else self.over
        x = f"slope of {metric} over {over}" if self.effect == "slope" else metric
        x += f"({first.subject})" if first.subject else ""
        if first.reference is not None:
            x += f" {'/' if self.effect == 'ratio' else '−'} {metric}({first.reference})"
        if self.kind == "estimate":
            return f"{x}: reported, without a verdict"
        if self.frozen:
            kept = f"keeps {100 * (1 - self.share):g} % of {metric}({first.reference}) − {metric}({first.frozen})"
            return f"{x}: {kept}" + (f", and {first.control} does not" if first.control else "")
        if self.relation == "within":
            x += f" from {self.edges[0]:g} to {self.edges[1]:g}"
        else:
            x += f" {'≥' if self.sign > 0 else '≤'} {(self.edges or (self.neutral,))[0]:g}"
        if any(isinstance(paper, (int, float)) for paper in self.cases.values()):
            x += ", and the effect is 50 to 200 % of the paper's"
        return x + (" in every run" if self.kind == "check" else "")

    @property
    def folder(self) -> str:
        """Its paper's folder; empty where the notebook belongs to no one paper."""
        return self.notebook.rpartition("/")[0]
