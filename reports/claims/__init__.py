"""Claims as data: what a paper says, the rule that decides whether it holds here, and the verdict that code gave.

A claim stands in `notebooks/claims.yaml` or `notebooks/<paper>/claims.yaml`, one item of a list each, written before the run.
There are three kinds, each with counts of its own: a *paper's* claim, a *promise* of ours, a *check* of what follows by
construction. One fact is one claim; its tasks or statuses are *cases*, whose names replace {case} in subjects and metrics. All
cases must hold, and the worst case's verdict is the claim's. Every seed of a case gives one number x:

| effect     | x, per seed                                                          | no effect |
|------------|----------------------------------------------------------------------|-----------|
| difference | subject's metric - reference's, of the same seed                     | 0         |
| ratio      | subject's metric / reference's, of the same seed                     | 1         |
| value      | subject's metric                                                     | none      |
| slope      | of the subject's metric over `over` (least squares)                  | 0         |
| order      | as difference, for each two neighbours of `order`                    | 0         |

A rule is `x >= margin`, `x <= margin` or, for promises and checks, `|x - target| <= margin`. A paper's claim that states no
margin has no effect as its margin. Where a case has the paper's number, x must also lie between no effect + e / factor and no
effect + e * factor, where e is the paper's effect: its number minus no effect. *Parity*: x is not worse than
-share * (best - frozen), where `best` and `frozen` are the means of two subjects and `better` says whether higher or lower is
better. Means are judged by one-sided t tests at 2.5 %: equivalently, the 95 % t-interval lies beyond the margin. Seeds are
paired. With `runs: every` every run must satisfy the rule, and no interval is taken.

| a paper's claim | when                                                                                            |
|-----------------|-------------------------------------------------------------------------------------------------|
| replicated      | x satisfies the rule: direction and, where the paper has a number, size                         |
| parity          | not worse by more than the margin; *measurably worse* is added where it is worse at all. A      |
|                 | `loser`, a mode that loses in the paper, must be worse by more than the margin: otherwise       |
|                 | these runs cannot detect a loss, and the verdict is inconclusive                                |
| direction only  | x is beyond no effect, on the rule's side, but not shown to satisfy the rule                    |
| not replicated  | x is shown to miss the rule, and not shown to have its direction                                |
| out of regime   | the same, where a column that the claim names is more than 4 times from what the paper has      |
|                 | there, and the effect that a trend predicts at the paper's place is unknown or satisfies it     |
| not reproducible here | by declaration: the paper's figure rests on another system's code; ours is shown          |
| inconclusive    | neither, or seeds are too few, or a metric is not finite                                        |

A promise is *kept*, *not kept* or *inconclusive*, a check *passed* or *failed*. Any claim may be *refused*: a paper's results of
other seeds than `lib/seeds.py` keeps for verdicts, parity without a frozen subject, and a fitted result. A case that a record of
`calibrations.yaml` covers is *calibrated* and decides nothing; a claim that has only such cases is refused. A record says what
a constant was fitted to. *Not run*: no verdict of this contract is stored.

A paper's headline counts verdicts after Holm's correction over the p of all its judged claims: a positive verdict whose adjusted
p is above 2.5 % counts as inconclusive. A claim's p is the largest of its cases', each of the test that its verdict stands for.

`tests/reports/trial.py` tries a paper's claim before it judges, with the spread of a pilot or of its published verdict: the
paper's own numbers must pass the rule, the control must fail it, and the seeds must suffice to detect what decides.

A verdict is *confirmatory* where the claim says so, or where it comes from a sealed run (`sealed_runs.py`) whose commits had the
rule; confirmatory verdicts are counted first. A result that a formula gives beforehand is *foreseen*, and stays so after any run.

A verdict is stored with what it rests on (rule, settings, the metrics' code), so that a page says what has changed since which
run, and with the commits of its runs, in which git must find the rule. Its remarks say where the margin is finer than the
modelled clock's error, and where a failure to replicate is still unexplained.
"""

from lib.seeds import judging, tuning
from reports.claims.claim import BadClaim, Claim
from reports.claims.judge import ELSEWHERE, HOLDS, OUT, OUTCOMES, VERDICTS, Case, Verdict, differs, judge
from reports.claims.loading import calibrations, load, of_notebook
from reports.claims.statistics import holm, interval, one_sided_p
from reports.claims.stored_verdicts import (
    counts,
    record,
    results,
    stored_verdict,
    table,
    tally,
    verdict_file,
    verdicts,
    verdicts_in,
)
