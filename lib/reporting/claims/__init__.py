"""Claims as data: what a paper says, the rule that decides whether it holds here, and the verdict that code gave.

A claim stands in `notebooks/claims.yaml` or `notebooks/<paper>/claims.yaml`, one item of a list each, written before
the run. From every seed comes one number x:

| kind  | x, per seed                                                                    | neutral            |
|-------|--------------------------------------------------------------------------------|--------------------|
| order | subject's metric - reference's, of the same seed                               | 0                  |
| ratio | subject's metric / reference's, of the same seed                               | 1                  |
| value | subject's metric, less the reference's where one is named                      | 0 with a reference |
| trend | slope of the subject's metric over `over` (least squares), less the reference's | 0                  |
| bound | subject's metric                                                               | none               |

The rule is read as it stands: `x >= margin`, `x <= margin`, or, for `within`, `|x - target| <= margin` (target: the
neutral value unless given). The interval is the 95 % t-interval of x's mean over the seeds; for a bound, which speaks
of every run, it is the least and the greatest x. With `seeds: 1` (an exact example) it is the one number.

| verdict        | when                                                                                         |
|----------------|----------------------------------------------------------------------------------------------|
| replicated     | the whole interval satisfies the rule                                                        |
| direction only | none of it does, but all of it has the direction of a margin or target that is beyond neutral |
| not replicated | none of it does, nor is the direction right; for a bound: one run breaks it                  |
| inconclusive   | the interval straddles the rule's boundary, seeds are too few, or a metric is not finite     |
| out of scale   | the relation is `report`: an absolute figure of the paper's machines; both, no judgement     |
| not run        | no verdict has been stored                                                                   |

A verdict is stored with the claim's hash, so that a claim that was changed after its run shows.
"""

from __future__ import annotations

from lib.reporting.claims.claim import BadClaim, Claim, load
from lib.reporting.claims.judge import VERDICTS, Verdict, interval, judge
from lib.reporting.claims.saved import file_of, kept, record, results, save, stored, table, verdicts
