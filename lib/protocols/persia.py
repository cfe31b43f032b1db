"""Persia's hybrid algorithm: Lian et al., "Persia: An Open, Hybrid System Scaling Deep Learning-based Recommenders up to 100
Trillion Parameters", SIGMOD 2022.

The rule in one sentence: the dense network is trained in step, by the mean gradient of all workers, while rows are pulled some
batches ahead and each gradient of them is applied on arrival.

Paper -> code: Algorithm 1, the embedding layer's two tasks -> `rows`, whose worker pulls ahead and whose server never blocks;
Algorithm 2's barrier -> `exchange`; tau, the samples "whose embeddings are retrieved but their gradients are not yet updated"
-> `tau`; raw and optimised hybrid (Figure 3) -> `buckets` of 1, and of more, which are averaged while backward goes on.
The paper's other modes have names of their own here: fully synchronous is `all-reduce`, fully asynchronous is `async`.

Special cases: with tau = 0 read "own" it is all-reduce over rows that follow Async, to the bit; read "all" it is all-reduce over
rows of Hop-BS with a bound of 0, which with SGD is Sync with its rows' gradients summed and not averaged, where an average ends
for all workers at once, as around a ring: else the last one reads rows that have the first one's next gradient. One worker with
tau = 0 is Sync. Asynchronous training with a large staleness, as we read what the paper says about PaddlePaddle, is
`Async(pull_ahead=...)`.

Where the text leaves a choice: tau bounds "samples", and it is not said whose, nor how. The released code counts batches of each
worker, from before the look-up until the gradient was applied (`counts="own"`, the default); the theorem bounds updates
between a row's reading and its gradient, which needs a gate between workers (`counts="all"`).

Embedding workers (Figure 4) are no part of the rule but of how it is carried out: `lib.train(..., embedding_workers=N)` puts them
between NN workers and the rows' servers (`lib/drivers/embedding_worker.py`); without, NN workers are their own.

Departures: in the theorem an update is one sample's, here one worker's batch; and a batch has one sample ID. A worker's batches
are trained in the order of the data, where the paper's NN worker draws from those that are buffered.
Features and labels come to NN workers by way of embedding workers, where the paper's data loader sends them directly. If an
embedding worker dies before it has sent a batch's rows, another one holds the batch anew; in the text the batch is lost.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from lib.options.checked import Count, Natural
from lib.protocols.baselines import Async
from lib.protocols.hop import HopBS
from lib.protocols.mixing import Gradients
from lib.protocols.replica_rule import ReplicaRule
from lib.protocols.server_rule import ServerRule


@dataclass(frozen=True, kw_only=True)
class Hybrid(ReplicaRule):
    """Dense parameters in step, by an all-reduce during backward; rows pulled ahead, and updated by each gradient on arrival.

    Guarantee: the dense staleness is 0. Of a worker's batches at most tau + 1 have read their rows and not sent their gradients;
    where tau counts "all", N workers' row gradients are at most (N - 1)(2 tau + 1) + tau updates old.
    """

    name: ClassVar = "hybrid"
    cite: ClassVar = "Lian et al., Persia, SIGMOD 2022 (arXiv:2111.05897)"
    blocks: ClassVar = True
    drops: ClassVar = False
    statistics: ClassVar = "none"

    tau: Natural = 4
    """Batches whose rows are pulled ahead (tau); "less than 5 for most cases"."""
    counts: Literal["own", "all"] = "own"
    """The bound of tau: on a worker's own batches in flight, or also on its lead over the slowest worker when it pulls."""
    buckets: Count = 4
    """Parts of the dense gradient, each averaged as soon as backward has it; 1: the whole after backward (the raw hybrid)."""

    @property
    def rows(self) -> ServerRule:
        return Async(pull_ahead=self.tau) if self.counts == "own" else HopBS(bound=self.tau, pull_ahead=self.tau)

    @property
    def exchange(self) -> Gradients:
        return Gradients(buckets=self.buckets)
