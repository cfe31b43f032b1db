"""DES-LOC: Iacob et al., "DES-LOC: Desynced Low Communication Adaptive Optimizers for Training Foundation Models", ICLR 2026
(arXiv:2505.22549).

The rule in one sentence: local steps of an adaptive optimiser, whose parameters are averaged often and whose moments, which
change more slowly, are averaged more rarely.

Paper -> code: K_x -> `every`; K_u and K_v, as multiples of K_x -> `first` and `second`, the paper's 3 and 6.

The hook `averaged_state`, for all means of groups: a rule sees parameters alone, and this one decides about the optimiser's
state.

Special cases: first = second = 1 is Local Adam; with SGD, which has no moments, it is local SGD.

Departures: moments are averaged after the step that they have made, with the parameters; the paper averages them in the midst
of it. With momentum its buffer is the first moment, with Adagrad its sum the second. Moments of rows in a replica are averaged
as the network's are.
"""

from dataclasses import dataclass
from typing import ClassVar

from lib.options.checked import Count
from lib.protocols.local_sgd import LocalSGD


@dataclass(frozen=True, kw_only=True)
class DESLOC(LocalSGD):
    """Local SGD that averages the optimiser's first moment in every few of its means, and the second in fewer."""

    name: ClassVar = "des-loc"
    cite: ClassVar = "Iacob et al., DES-LOC, ICLR 2026 (arXiv:2505.22549)"

    first: Count = 3
    """Means of the parameters from one of the first moment to the next (K_u / K_x)."""
    second: Count = 6
    """The same of the second moment (K_v / K_x)."""

    def averaged_state(self, round: int) -> tuple[str, ...]:
        first = () if (round + 1) % self.first else ("exp_avg", "momentum_buffer")
        return first if (round + 1) % self.second else (*first, "exp_avg_sq", "sum")
