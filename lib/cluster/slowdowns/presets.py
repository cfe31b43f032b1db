"""Slowdowns of real clusters, fitted to public traces; only the fitted numbers are here, never the data.

Each follows the trace that it was fitted to, to a distance (KS) of 0.01 to 0.07 between the distributions of the factor. That is
one job, or the machines of one week; `carries` says how far another job of the same cluster is from it, where others are known.
`python -m data_prep trace FILE` fits a trace of one's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lib.cluster.slowdowns.base import Slowdown
from lib.cluster.slowdowns.batchwise import TAILS, Empirical, Steady
from lib.cluster.slowdowns.product import Product
from lib.cluster.slowdowns.shared_machines import Shared
from lib.cluster.slowdowns.timed import Day, Transient
from lib.errors import unknown


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A fitted slowdown and where it comes from."""

    slowdown: Slowdown
    source: str
    """The trace: who recorded what, where it is published."""
    carries: str
    """How far it is from what it was not fitted to. A distance (KS) is the largest one of two distributions of the factor."""


_PAI = (
    "mini-batch times of ten workers of one training job on Alibaba PAI, one sample in 10 s: github.com/alibaba/clusterdata, \
cluster-trace-gpu-v2020/mini-batch-time/data/"
)

_PAI_CARRIES = (
    "the other of these two jobs is at a distance (KS) of 0.29. In a third of 100 jobs of this cluster the workers differ less "
    "than in either; a quarter have a coefficient of variation of over 0.6, against 0.06 and 0.09 here"
)

_MACHINES = (
    "CPU use of 16 machines over 8 days of a shared cluster: github.com/alibaba/clusterdata, cluster-trace-v2018, "
    "machine_usage.csv"
)

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        # Worker 6 is slow for 140 s in a run of 50 minutes, worker 4 for 40 s: two periods in 500 worker-minutes, so
        # the two times are known to a factor of two or so. Any worker may be hit; ranks=(6,) repeats what was seen.
        "alibaba-pai-job-1": Preset(
            slowdown=Product(
                parts=(
                    Steady(factors=(1.1096, 1.0979, 1.0851, 0.9988, 0.993, 0.993, 0.9953, 1.0023, 0.9883, 0.9977)),
                    Transient(mean_on=71.9, mean_off=10498.1, factor=1.4016),
                    Empirical(
                        quantiles=(
                            *(0.8832, 0.9093, 0.9342, 0.9458, 0.965, 0.9788, 0.9906, 1.0, 1.0118),
                            *(1.0256, 1.0423, 1.0688, 1.096, 1.1429, 1.1597, 1.1809, 1.2178),
                        ),
                        levels=TAILS,
                        seconds=(15.8, 800.0),
                        shares=(0.317, 0.683),
                    ),
                )
            ),
            source=_PAI + "job_1_norm.csv",
            carries=_PAI_CARRIES,
        ),
        # Workers differ for good, by 32 % between the fastest and the slowest.
        "alibaba-pai-job-2": Preset(
            slowdown=Product(
                parts=(
                    Steady(factors=(0.8454, 0.8191, 0.8919, 1.0209, 1.0161, 1.0818, 0.9958, 1.009, 1.0042, 0.954)),
                    Empirical(
                        quantiles=(
                            *(0.9448, 0.9643, 0.9751, 0.9808, 0.9868, 0.9918, 0.9966, 1.0, 1.0034),
                            *(1.0094, 1.014, 1.0213, 1.027, 1.0473, 1.0521, 1.0958, 1.1038),
                        ),
                        levels=TAILS,
                        seconds=(12.6, 50.2),
                        shares=(0.682, 0.318),
                    ),
                )
            ),
            source=_PAI + "job_2_norm.csv",
            carries=_PAI_CARRIES,
        ),
        # Ranks 1 and 14 are the two machines that had almost nothing to do.
        "alibaba-machines-2018": Preset(
            slowdown=Product(
                parts=(
                    Steady(
                        factors=(
                            *(1.0154, 0.6772, 1.0678, 0.9973, 1.0158, 0.9692, 0.8967, 1.0033),
                            *(0.9671, 0.9134, 1.1, 1.1335, 0.9861, 1.1177, 0.6702, 1.0161),
                        )
                    ),
                    Day(curve="alibaba-2018"),
                    Empirical(
                        quantiles=(
                            *(0.5834, 0.7353, 0.8228, 0.859, 0.898, 0.9353, 0.9677, 1.0, 1.034),
                            *(1.0771, 1.1417, 1.2839, 1.4597, 2.4919, 4.8893, 8.0059, 10.7834),
                        ),
                        levels=TAILS,
                        seconds=(300.0, 16998.0),
                        shares=(0.466, 0.41),
                    ),
                )
            ),
            source=_MACHINES,
            carries="fitted to seven of the busy machines, it is at a distance (KS) of 0.05 to 0.15 from the seven others",
        ),
        # Two of the 16 machines, which nobody else used, are left out. Of what a machine's use strays from its hour's mean,
        # half changes within ten minutes and a third lasts for hours: the hold time is a compromise of the two.
        "alibaba-shared-2018": Preset(
            slowdown=Shared(curve="alibaba-2018", concentration=16.84, hold=9_300.0),
            source=_MACHINES,
            carries="fitted to seven of the busy machines, it is at a distance (KS) of 0.06 to 0.13 from the seven others; "
            "from a single busy machine, the preset is at 0.09 to 0.29",
        ),
        # Rank 0 takes 2.35 times as long as the other ranks of its pipeline stage, throughout.
        "bytedance-64-gpus": Preset(
            slowdown=Product(
                parts=(
                    Steady(
                        factors=(
                            *(2.3497, 0.9964, 0.9985, 1.0015, 0.9999, 1.0042, 1.0001, 0.9997),
                            *(1.0023, 1.0037, 0.9956, 0.9977, 1.0031, 1.0033, 0.9949, 0.9969),
                        )
                    ),
                    Empirical(
                        quantiles=(
                            *(0.9207, 0.9507, 0.9667, 0.9732, 0.9822, 0.99, 0.9955, 1.0, 1.005),
                            *(1.0101, 1.0164, 1.0272, 1.0355, 1.0408, 1.0421, 1.0447, 1.0915),
                        ),
                        levels=TAILS,
                        seconds=(1.1, 45.3),
                        shares=(0.251, 0.209),
                    ),
                )
            ),
            source="durations of single operations in a training job on 64 GPUs: Lin et al., Understanding Stragglers in "
            "Large Model Training Using What-if Analysis, OSDI 2025, and its published traces (trace-AR)",
            carries="nobody knows: it is one job, in a cluster of which no other is published here",
        ),
    }
)


def get(name: str, scale: float = 1.0) -> Slowdown:
    """The preset of that name, in a time that runs `scale` times as long as the trace's."""
    if name not in PRESETS:
        raise unknown("slowdown preset", name, PRESETS)
    slowdown = PRESETS[name].slowdown
    return slowdown if scale == 1.0 else slowdown.scaled(scale)
