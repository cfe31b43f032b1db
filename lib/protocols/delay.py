"""Asynchrony that knows how old a gradient is: a smaller rate, or a gradient that is corrected for what happened since.

Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016; Zheng et al., "Asynchronous Stochastic
Gradient Descent with Delay Compensation", ICML 2017.

Paper -> code: the rate alpha / tau -> `Apply.rate`; g + lambda g g (w_now - w_read) -> `DCASGD.corrected`.

Special cases: with nobody beside it a worker's tau is 0, and both are Async; lambda = 0 is Async. Departure: DC-ASGD's adaptive
variant, whose lambda follows a moving mean of g g, needs a state of its own for each parameter and is not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lib.options.checked import NotNegative
from lib.protocols.baselines import Async
from lib.protocols.server_rule import Apply, Decisions, Push, ServerState


@dataclass(frozen=True, kw_only=True)
class StalenessAware(Async):
    """Async whose learning rate is divided by the gradient's staleness (tau)."""

    name: ClassVar = "staleness-aware"
    cite: ClassVar = "Zhang et al., Staleness-aware Async-SGD for Distributed Deep Learning, IJCAI 2016, Equation 6"

    def on_push(self, state: ServerState, push: Push) -> tuple[ServerState, Decisions]:
        tau = max(1, state.step - push.read)
        return state.receive(push).release(), (Apply((push,), (1.0,), 1, rate=1 / tau),)


@dataclass(frozen=True, kw_only=True)
class DCASGD(Async):
    """Async whose gradient is corrected, to first order, for what others have changed since its parameters were read."""

    name: ClassVar = "dc-asgd"
    cite: ClassVar = "Zheng et al., Asynchronous SGD with Delay Compensation, ICML 2017, Equation 10"

    compensation: NotNegative = 0.5
    """How much of the gradient's outer product stands for the Hessian (lambda)."""

    def corrected(self, gradient: np.ndarray, now: np.ndarray, read: np.ndarray) -> np.ndarray:
        return gradient + np.float32(self.compensation) * gradient * gradient * (now - read)
