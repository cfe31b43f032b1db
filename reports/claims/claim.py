"""What a claim is, and the rule that it states."""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Gt, Le, Predicate

from lib.errors import BadField, LockstepError
from lib.options.checked import Checked, Count, Finite

NEUTRAL = {"difference": 0.0, "ratio": 1.0, "value": None, "slope": 0.0, "order": 0.0}
LEAST_SEEDS, LEAST_FOR_PARITY, FACTOR = 5, 8, 2.0
CASE = "{case}"
Text = Annotated[str, Predicate(str.strip)]
Figure = Annotated[float, Finite]


class BadClaim(LockstepError, ValueError):
    """A claim that cannot be judged as written."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Explanation(Checked):
    """A possible reason why a claim was not replicated, and the result of testing it."""

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
    subject: str
    reference: str | None
    best: str | None
    frozen: str | None
    loser: str | None

    @property
    def subjects(self) -> list[str]:
        names = (self.subject, self.reference, self.best, self.frozen, self.loser)
        return [name for name in names if name is not None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim(Checked):
    """One claim, checked when it is made. In names of subjects and metrics, {case} stands for each case's name."""

    id: Text
    """Its name everywhere, as in EXPERIMENTS.md."""
    notebook: Text
    """The notebook beside the file, which judges the claim."""
    sentence: Text
    """What is claimed, in our words."""
    short: Text | None = None
    """A sentence for *In short*; {ours}, {interval} and {paper} are replaced by measured and paper's numbers."""
    place: Text
    """Where the paper says it."""
    kind: Literal["paper", "promise", "check"]
    """The paper's claim, a promise of ours, or a check of what follows by construction."""
    standing: Literal["confirmatory", "after a pilot", "exploratory", "foreseen"] | None = None
    """Of a paper's claim: whether its rule was written before any look at results. Foreseen: a formula gives the result, so that
    no seeds confirm it."""
    effect: Literal["difference", "ratio", "value", "slope", "order"]
    """How each seed's results give one number."""
    metric: Text
    """The column of the results that is compared."""
    subject: Text | None = None
    """What the claim is about, as in the results' column `subject`."""
    reference: Text | None = None
    """What the subject is compared with."""
    order: tuple[Text, ...] = ()
    """Of an order: the subjects, the largest metric first; with the relation <=, the smallest first."""
    over: Text | None = None
    """The column that a slope is taken over."""
    cases: dict[str, Figure | Text | None] = dataclasses.field(default_factory=dict)
    """Tasks or statuses of the one fact, each with the paper's figure: a number is judged by size too, a text is only shown."""
    relation: Literal[">=", "<=", "within", "parity"]
    """>=, <=, within or parity."""
    margin: Figure | None = None
    """The rule's boundary."""
    target: Figure | None = None
    """What `within` is measured from."""
    factor: Annotated[float, Gt(1), Finite] | None = None
    """How many times larger or smaller than the paper's effect ours may be; 2 by default where the paper has a number."""
    share: Annotated[float, Gt(0), Le(0.1)] | None = None
    """Of parity: the margin as a share of the possible loss, best minus frozen."""
    better: Literal["higher", "lower"] | None = None
    """Of parity: which way is better."""
    best: Text | None = None
    """Of parity: the subject with the full quality."""
    frozen: Text | None = None
    """Of parity: the subject that has lost it: a model that stopped training; for a throughput, the slow mode."""
    loser: Text | None = None
    """Of parity: a mode that loses in the paper. Unless the same runs show that it misses the margin, they cannot detect a loss,
    and parity is inconclusive."""
    control: Figure | dict[str, Figure] | None = None
    """The effect of a mode that loses, or of an untrained model; no effect by default. By case where they differ, as are all the
    figures below."""
    papers: dict[str, Figure] = dataclasses.field(default_factory=dict)
    """The paper's effect where its figure in `cases` is a text: the rule is tried on it, and judges no size."""
    shares: bool = False
    """`control` and `papers` are shares of the reference's metric, since the paper's scale is another."""
    regime: dict[str, Figure | dict[str, Figure]] = dataclasses.field(default_factory=dict)
    """Columns of the results that can decide the outcome, each with the paper's figure."""
    foretold: dict[str, Figure] = dataclasses.field(default_factory=dict)
    """The effect that a trend over such a column predicts at the paper's figure."""
    elsewhere: Text | None = None
    """Another system's code or machines on which the paper's figures rest: the claim is not reproducible here."""
    runs: Literal["mean", "every"] = "mean"
    """Whether the interval of the runs' mean must satisfy the rule, or every run; of a check always every run."""
    modelled: bool = False
    """Whether the metric is of the modelled clock, whose error 94_fidelity measures."""
    reason: Text
    """Why this margin, factor or share."""
    seeds: Count = 1
    """The least number of seeds for a verdict."""
    scale: dict[str, Text]
    """`paper`: the paper's scale; `ours`: ours."""
    explanations: tuple[Explanation, ...] = ()
    """Reasons that were tested where the claim did not hold."""

    def __post_init__(self):
        for wrong, name, problem in (*self._faults_of_kind(), *self._faults_of_effect(), *self._faults_of_relation()):
            if wrong:
                raise BadField("claim", (name,), f": {problem}")

    def _faults_of_kind(self) -> Iterator[tuple[bool, str, str]]:
        """What would make the claim impossible to judge or to fail: whether it applies, the field, and what is right."""
        paper, parity = self.kind == "paper", self.relation == "parity"
        least = LEAST_FOR_PARITY if parity else LEAST_SEEDS
        why = "within a margin" if parity else "at all"
        yield paper and self.standing is None, "standing", "is missing"
        yield not paper and self.standing is not None, "standing", "only a paper's claim has one"
        yield paper and self.seeds < least, "seeds", f"must be {least} or more, for an interval {why}"
        yield self.kind == "check" and self.seeds > 1, "seeds", "a check has no least number: every run must pass"
        right = "a paper's claim is about means; what every run keeps to is a check"
        yield paper and self.runs == "every", "runs", right
        right = "a paper's number is judged by >= or <= and a factor, sameness by parity"
        yield paper and self.relation == "within", "relation", right
        yield not paper and bool(self.factor), "factor", "is for a paper's claim"
        yield {*self.scale} != {"paper", "ours"}, "scale", "must have exactly 'paper' and 'ours'"
        left = re.sub(r"\{(ours|interval|paper)\}", "", self.short or "")
        yield bool(re.search("[{}]", left)), "short", "{ours}, {interval} and {paper} are all that is filled in"
        cases = {each.case for each in self.comparisons}
        for name in ("control", "papers", "regime", "foretold", "elsewhere"):
            value = getattr(self, name)
            yield not paper and bool(value), name, "is for a paper's claim"
            by_case = value.values() if name == "regime" else [value]
            strange = {case for each in by_case if isinstance(each, dict) for case in each} - cases
            yield bool(strange), name, f"no case is called {', '.join(map(repr, sorted(strange)))}"

    def _faults_of_effect(self) -> Iterator[tuple[bool, str, str]]:
        order = self.effect == "order"
        wanted = {
            "reference": self.effect in ("difference", "ratio"),
            "over": self.effect == "slope",
            "subject": not order,
        }
        for name, needed in wanted.items():
            right = f"{'is missing from' if needed else 'has no place in'} a claim of effect {self.effect!r}"
            yield needed == (getattr(self, name) is None), name, right
        yield order != (len(self.order) > 1), "order", "two subjects or more, where the effect is an order"
        distinct = {dataclasses.replace(each, case="", paper=None) for each in self.comparisons}
        yield len(distinct) < len(self.comparisons), "cases", f"must differ: write {CASE} where their names belong"
        for name, paper in self.cases.items() if self.relation != "parity" else ():
            if not isinstance(paper, (int, float)):
                continue
            right = f"a {self.effect} has no size that could be judged; write {name}'s figure as text"
            yield self.neutral is None or order, "cases", right
            away = self.sign * (paper - (self.neutral or 0.0)) <= 0
            yield away, "cases", f"{name}'s {paper:g} is not on the side of {self.relation}"
            yield self.margin is not None, "margin", "the paper's numbers say what is enough; leave it out"

    def _faults_of_relation(self) -> Iterator[tuple[bool, str, str]]:
        parity, within, margin = self.relation == "parity", self.relation == "within", self.margin
        yield self.loser is not None and (not parity or self.every), "loser", "only a parity of means has one"
        for name in ("share", "better", "best", "frozen"):
            right = "is missing: parity needs it" if parity else "only parity has one"
            yield parity == (getattr(self, name) is None), name, right
        right = "parity is of a difference, and its margin is the share of best less frozen"
        yield parity and (self.effect != "difference" or margin is not None), "effect", right
        right = "is missing from 'within'" if within else "only 'within' has one"
        yield within == (self.target is None), "target", right
        needed = not parity and (self.kind != "paper" or self.neutral is None)
        yield needed and margin is None, "margin", "is missing; what is judged needs it"
        if margin is None:
            return
        yield self.effect == "order", "margin", "an order has none"
        cannot_fail = (within or self.effect == "ratio") and margin <= 0
        yield cannot_fail, "margin", "must be greater than 0: such a rule cannot fail"
        behind = self.kind == "paper" and self.neutral is not None and self.sign * (margin - self.neutral) < 0
        right = "lies on the other side of no effect: that is parity, with its share of best less frozen"
        yield behind, "margin", right

    @property
    def neutral(self) -> float | None:
        """The value of x that is no effect."""
        return NEUTRAL[self.effect]

    @property
    def sign(self) -> int:
        """1 where the claim says that x is large, -1 where it says that x is small."""
        return -1 if self.relation == "<=" or self.better == "lower" else 1

    @property
    def comparisons(self) -> list[Comparison]:
        """One comparison for every case; of an order, one for every pair of neighbours in every case."""
        return [each for case, paper in (self.cases or {"": None}).items() for each in self._case(case, paper)]

    def _case(self, case: str, paper: float | str | None) -> Iterator[Comparison]:
        pairs = list(zip(self.order, self.order[1:], strict=False)) or [(self.subject, self.reference)]
        for pair in pairs:
            names = dict(zip(("subject", "reference"), pair, strict=True))
            names |= {"metric": self.metric, "best": self.best, "frozen": self.frozen, "loser": self.loser}
            names = {name: text and text.replace(CASE, case) for name, text in names.items()}
            sign = "<" if self.sign < 0 else ">"
            shown = f"{names['subject']} {sign} {names['reference']}" if self.order else case
            yield Comparison(case=shown, paper=paper, **names)

    def band(self, paper: float | str | None, lost: float = 0.0) -> tuple[float, float]:
        """The range in which a case's effect satisfies the rule; `lost` is the possible loss of a parity."""
        if self.relation == "within":
            return self.target - self.margin, self.target + self.margin
        near, far = self.neutral if self.margin is None else self.margin, self.sign * math.inf
        if self.relation == "parity":
            near = -self.sign * self.share * lost
        elif isinstance(paper, (int, float)):
            effect, factor = paper - self.neutral, self.factor or FACTOR
            near, far = self.neutral + effect / factor, self.neutral + effect * factor
        return min(near, far), max(near, far)

    @property
    def hash(self) -> str:
        """A hash of the rule: of all fields but reasons, scales, what the rule is tried on, and later explanations."""
        left_out = ("place", "reason", "scale", "explanations", "short", "control", "papers", "shares")
        younger = ("regime", "foretold", "elsewhere", "loser")  # fields that older claims' hashes do not have
        rule = {name: value for name, value in dataclasses.asdict(self).items() if name not in left_out}
        rule = {name: value for name, value in rule.items() if value or name not in younger}
        return hashlib.sha256(json.dumps(rule, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]

    @property
    def rule(self) -> str:
        """The rule as a reader would write it."""
        first, *others = self._case("…", None)
        metric = first.metric
        if self.effect == "order":
            return f"{metric}: {'; '.join(each.case for each in (first, *others))}"
        x = f"slope of {metric} over {self.over}" if self.effect == "slope" else metric
        x = f"{x}({first.subject})"
        if first.reference is not None:
            x += f" {'/' if self.effect == 'ratio' else '−'} {metric}({first.reference})"
        if self.relation == "parity":
            share = f"{100 * self.share:g} % of {metric}({first.best}) − {metric}({first.frozen})"
            return f"{x}: worse by at most {share}" + (f", and {first.loser} by more" if first.loser else "")
        if self.relation == "within":
            return f"{x} = {self.target:g} ± {self.margin:g}"
        x += f" {'≥' if self.sign > 0 else '≤'} {self.neutral if self.margin is None else self.margin:g}"
        if any(isinstance(paper, (int, float)) for paper in self.cases.values()):
            x += f", and the effect within a factor of {self.factor or FACTOR:g} of the paper's"
        return x + (" in every run" if self.every else "")

    @property
    def every(self) -> bool:
        """Whether every run must satisfy the rule, instead of their mean."""
        return self.runs == "every" or self.kind == "check"

    @property
    def folder(self) -> str:
        """Its paper's folder; empty where the notebook belongs to no one paper."""
        return self.notebook.rpartition("/")[0]
