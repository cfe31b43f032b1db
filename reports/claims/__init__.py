"""Claims as data: what a paper says, the rule that decides whether it holds in our runs, and the word that code gave.

A claim stands in `notebooks/claims.yaml` or `notebooks/<paper>/claims.yaml`, one item of a list each, written before the run.
There are four kinds: a *paper's* claim; an *estimate*, which is reported with its interval and without a verdict, since no
number of seeds decides it or the paper has no number; a *target* of the kit's own; a *check* of what follows by construction.
One fact is one claim; its tasks or settings are *cases*, whose names replace {case} in subjects and metrics. Every seed of a
case gives one number x:

| effect     | x, per seed                                                          | no effect |
|------------|----------------------------------------------------------------------|-----------|
| difference | subject's metric - reference's, of the same seed                     | 0         |
| ratio      | subject's metric / reference's, of the same seed; by its logarithm   | 1         |
| value      | subject's metric                                                     | none      |
| slope      | of a metric over a column, or over a dial's subjects (least squares) | 0         |

With `order` each two neighbours are compared. The mean over seeds has a t-interval of 95 %. Where a case has the paper's
number, x is judged as a *share of the paper's effect*, the paper's number minus no effect. Without one, x must lie beyond no
effect or beyond the margin. With `frozen`, a claim is an *equivalence*, judged by the share that the subject keeps of what the
reference gains over a frozen model: the reference is shown above frozen, the interval of the share kept lies above 1 - `share`,
and a planted control, which loses about two margins by construction, is shown beyond the margin in the same runs.

| a case         | when                                                                                             |
|----------------|--------------------------------------------------------------------------------------------------|
| reproduced     | the direction is shown and, where the paper has a number, 50 to 200 % of its effect; or equivalent |
| other size     | the direction is shown, the size is not: smaller, larger or open                                 |
| contradicted   | the other direction is shown; or less than half of the paper's effect without a direction, or    |
|                | below a tenth of it; or the margin is shown to be missed                                         |
| undecided      | none of these: the number of seeds that would decide is printed                                  |
| not comparable | contradicted where a column of the regime is more than 4 times from the paper's; or, by          |
|                | declaration, the figure rests on another system. Shown in grey and not counted as a finding      |

A claim whose cases differ is *mixed* (k of n) where some are shown, *other size* where all directions are shown, and
contradicted where none is shown and one is contradicted. A target is *met* where its interval, or its single run, lies where
the rule says, and otherwise *missed*; a check *passed* where every run does, and otherwise *failed*. *Refused*: results of
seeds that served for tuning, subjects that are missing, or a fitted result. A case that a record of `calibrations.yaml` covers
is *calibrated* and decides nothing. *Not run*: nothing is stored.

With two numbers of seeds a claim may be looked at twice: the level of 5 % is split between both looks (O'Brien and Fleming).
`lockstep claims --plan` says from a pilot's spread how many seeds find the paper's effect nine times in ten; it is asked before
a rule is committed. `tests/reports/trial.py` tries a rule before it judges: the paper's own numbers with the pilot's spread
must be *reproduced*, a broken mode must not.

Claims of papers that are counted were judged on sealed seeds (`sealed_runs.py`) and follow from no formula (`foreseen`). In
place of a correction, a paper's page says how many of its shown effects chance alone would show.

What the runs gave is stored, with what it rests on (rule, settings, the metrics' code) and the commits of its runs, in which
git must find the rule. It is judged by today's rule whenever it is read: where the rule has changed since, the verdict says
from which runs it was judged again.
"""

from lib.seeds import judging, tuning
from reports.claims.claim import BadClaim, Claim
from reports.claims.judge import AGAINST, ALL_WORDS, PROVISIONAL, REPRODUCED, SHELF, Case, Verdict, differs, judge
from reports.claims.loading import calibrations, load, of_notebook
from reports.claims.statistics import interval, one_sided_p, seeds_for
from reports.claims.stored_verdicts import (
    counts,
    false_positives,
    published,
    record,
    results,
    table,
    tally,
    verdict_file,
    verdicts,
)
