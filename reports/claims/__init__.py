"""Claims as data: what a paper says, the rule that decides whether it holds here, and the verdict that code gave.

A claim stands in `notebooks/claims.yaml` or `notebooks/<paper>/claims.yaml`, one item of a list each, written before the run.
There are three kinds, which are counted apart: a *paper's* claim, a *promise* of ours, a *check* of what follows by
construction. One fact is one claim; its tasks or statuses are *cases*, whose names take the place of {case} in subjects and
metrics. All of them must hold, and the worst case's verdict is the claim's. From every seed of a case comes one number x:

| effect     | x, per seed                                                          | no effect |
|------------|----------------------------------------------------------------------|-----------|
| difference | subject's metric - reference's, of the same seed                     | 0         |
| ratio      | subject's metric / reference's, of the same seed                     | 1         |
| value      | subject's metric                                                     | none      |
| slope      | of the subject's metric over `over` (least squares)                  | 0         |
| order      | as difference, for each two neighbours of `order`                    | 0         |

A rule is `x >= margin`, `x <= margin` or, for promises and checks, `|x - target| <= margin`. A paper's claim has no effect for
its margin unless it states one. Where a case has the paper's number, x must also lie between no effect + e / factor and no
effect + e * factor, e being the paper's effect: number less no effect. *Parity* is x not worse than -share * (best - frozen),
the means of two subjects: what is better than frozen says which way is worse. Means are judged by one-sided t tests at 2.5 %,
which is whether the 95 % t-interval lies beyond; seeds are paired. With `runs: every` the range from the least to the greatest
run must satisfy the rule, and no interval is taken.

| a paper's claim | when                                                                                            |
|-----------------|-------------------------------------------------------------------------------------------------|
| replicated      | x satisfies the rule: direction and, where the paper has a number, size                         |
| parity          | not worse by more than the margin; *measurably worse* is added where it is worse at all. Where  |
|                 | the claim names a loser, a mode that loses in the paper, this one is worse by more: else these  |
|                 | runs cannot tell who loses, and the verdict is inconclusive                                     |
| direction only  | x is beyond no effect, on the rule's side, but not shown to satisfy the rule                    |
| not replicated  | x is shown to miss the rule, and not shown to have its direction                                |
| out of regime   | the same, where a column that the claim names is more than 4 times from what the paper has      |
|                 | there, and the effect that its trend foretells at the paper's place is unknown or satisfies it  |
| not reproducible here | by declaration: the paper's figure rests on another system's code; ours is shown          |
| inconclusive    | neither, or seeds are too few, or a metric is not finite                                        |

A promise is *kept*, *not kept* or *inconclusive*, a check *passed* or *failed*. Any claim may be *refused*: a paper's results of
other seeds than `lib/seeds.py` keeps for verdicts, parity without a frozen line, and what was put in: a case that a record of
`calibrations.yaml` covers is *calibrated* and decides nothing, and a claim of such cases alone is refused. A record says what a
constant was fitted to. *Not run*: no verdict of this contract has been stored.

A paper's headline counts verdicts after Holm: over the p of all its judged claims, each the largest of its cases' and of the
test that the verdict stands for, a positive verdict whose adjusted p is above 2.5 % counts as inconclusive.

Before it judges, a paper's claim is tried (`tests/reports/trial.py`): by the spread that a pilot or its published verdict
has, the paper's own numbers must pass its rule, its control must not, and its seeds must be able to tell what decides.

Verdicts are *confirmatory* where the claim says so, and where they are of a sealed run (`sealing.py`) whose runs' commits had the
rule; these are counted first. What a formula gives beforehand is *foreseen*, and no run makes it more.

A verdict is stored with what it rests on (rule, settings, the metrics' code), so that a page says what changed after which run;
with the commits of its runs, in which git must find the rule; and its remarks say where the margin is finer than the modelled
clock, and where what was not replicated is still unexplained.
"""

from __future__ import annotations

from lib.seeds import judging, tuning
from reports.claims.claim import BadClaim, Claim
from reports.claims.judge import ELSEWHERE, HOLDS, OUT, OUTCOMES, VERDICTS, Case, Verdict, judge, strays
from reports.claims.loading import calibrations, load, of
from reports.claims.statistics import beyond, holm, interval
from reports.claims.stored_verdicts import counts, file_of, kept, record, results, stored, table, tally, verdicts
