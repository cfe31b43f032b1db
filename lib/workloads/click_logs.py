"""The papers' pairs of click logs and models. A class's own defaults are its smoke profile; `profiles.yaml` has the others.

Each stands for an experiment of a paper, with the paper's number of fields, model and optimiser kind. Without a data folder the
data is planted. Those of other data stand beside their kind, in `graph.py`, `retrieval.py`, `vision.py` and `text.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lib.options.checked import Count, Natural, NotNegative
from lib.store.optim import Adam, Optimizer
from lib.workloads import ctr
from lib.workloads.ctr import ClickThrough
from lib.workloads.networks import Network


@dataclass(frozen=True, kw_only=True)
class Criteo(ClickThrough):
    """Criteo's shape: 26 categorical fields and 13 numbers."""

    fields: Count = 26
    dense_features: Natural = 13
    exponent: NotNegative = 1.2
    vocabulary: Count = 1_000
    days: Count = 8


@dataclass(frozen=True, kw_only=True)
class CriteoDeepFM(Criteo):
    """DeepFM on Criteo's clicks (GBA, DS-Sync)."""

    name: ClassVar[str] = "criteo-deepfm"


@dataclass(frozen=True, kw_only=True)
class CriteoDLRM(Criteo):
    """DLRM on Criteo's clicks (ShadowSync's model; OAC beyond link prediction)."""

    name: ClassVar[str] = "criteo-dlrm"
    network: Network = "dlrm"


@dataclass(frozen=True, kw_only=True)
class AlimamaDIEN(ClickThrough):
    """DIEN on Alimama's advertisements (GBA): clicks that depend on what a user did before."""

    name: ClassVar[str] = "alimama-dien"
    network: Network = "dien"
    samples: Count = 200_000
    fields: Count = 9
    vocabulary: Count = 500
    dense_features: Natural = 1
    first_order: NotNegative = 1.0
    linear: NotNegative = 0.4
    base_rate: ctr.Rate = 0.2
    days: Count = 8


@dataclass(frozen=True, kw_only=True)
class PersiaFFNN(ClickThrough):
    """The feed-forward network with batch normalisation."""

    network: Network = "ffnn"
    hidden: tuple[Count, ...] = (64, 32)
    dense_optimizer: Optimizer = field(default=Adam(lr=0.003))


@dataclass(frozen=True, kw_only=True)
class TaobaoFFNN(PersiaFFNN):
    """Persia's FFNN on Taobao's advertisements."""

    name: ClassVar[str] = "taobao-ffnn"
    fields: Count = 16
    vocabulary: Count = 1_000
    dense_features: Natural = 1
    base_rate: ctr.Rate = 0.1
    first_order: NotNegative = 0.8
    linear: NotNegative = 0.2
    days: Count = 5


@dataclass(frozen=True, kw_only=True)
class AvazuFFNN(PersiaFFNN):
    """Persia's FFNN on Avazu's advertisements: no numbers, and a few fields with most of the ids."""

    name: ClassVar[str] = "avazu-ffnn"
    fields: Count = 21
    vocabulary: Count = 2_000
    dense_features: Natural = 0
    base_rate: ctr.Rate = 0.17
    first_order: NotNegative = 1.2
    days: Count = 5


@dataclass(frozen=True, kw_only=True)
class CriteoFFNN(PersiaFFNN):
    """Persia's FFNN on Criteo's clicks."""

    name: ClassVar[str] = "criteo-ffnn"
    fields: Count = 26
    dense_features: Natural = 13
    exponent: NotNegative = 1.2
    vocabulary: Count = 1_000
    days: Count = 5


@dataclass(frozen=True, kw_only=True)
class KwaiFFNN(PersiaFFNN):
    """Persia's FFNN on Kwai-Video's shape: many ids, of which most are rare, and several labels ("optimized simultaneously for
    multiple tasks", Section 1; how many Kwai has is not said)."""

    name: ClassVar[str] = "kwai-ffnn"
    tasks: Count = 3
    fields: Count = 30
    vocabulary: Count = 5_000
    exponent: NotNegative = 1.1
    dense_features: Natural = 8
    days: Count = 7


@dataclass(frozen=True, kw_only=True)
class CriteoSyn(CriteoFFNN):
    """Persia's FFNN on Criteo's shape with 6.25 trillion possible parameters; set `copies` for up to 100.

    Each id of the teacher stands for `copies` ids that share its truth. So the space of ids is as large as the paper's, the
    rows that are ever met are as many as the samples bring up, and hardly any id comes twice: it is for throughput and
    memory, not for quality.
    """

    name: ClassVar[str] = "criteo-syn"
    samples: Count = 100_000
    copies: Count = 1_878_005
    """Ids that share one truth. 26 fields x 1000 x copies x 128 values: 6.25 trillion here; twice as much for each next."""
