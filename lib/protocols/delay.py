"""Asynchrony that knows how old a gradient is: a smaller rate, or a gradient that is compensated for updates since.

Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016; Zheng et al., "Asynchronous Stochastic
Gradient Descent with Delay Compensation", ICML 2017.

Paper -> code: the rate alpha / tau -> `Apply.rate`; g + lambda g g (w_now - w_read) -> `DCASGD.compensate`;
the adaptive lambda_0 / sqrt(MeanSquare + 1e-7), whose m is `decay` -> the same, with what it remembers.

Special cases: with one worker tau is 0, and both are Async; lambda = 0 is Async. A row's moving mean moves when
the row has a gradient.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lib.options.checked import NotNegative, Share
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
    """Async whose gradient is compensated, to first order, for others' updates since its parameters were read."""

    name: ClassVar = "dc-asgd"
    cite: ClassVar = "Zheng et al., Asynchronous SGD with Delay Compensation, ICML 2017, Equation 10 and Section 5"

    compensation: NotNegative = 0.5
    """How much of the gradient's outer product stands for the Hessian (lambda)."""

    decay: Share | None = None
    """Of the moving mean of g g by whose root lambda is divided (m; the adaptive variant, of which the paper has 0.95); None:
    lambda is constant."""

    def compensate(self, gradient: np.ndarray, now: np.ndarray, read: np.ndarray, memory: np.ndarray):
        square, scale = gradient * gradient, np.float32(self.compensation)
        if self.decay is None:
            return gradient + scale * square * (now - read), None
        mean = np.float32(self.decay) * memory + np.float32(1 - self.decay) * square
        return gradient + scale / np.sqrt(mean + np.float32(1e-7)) * square * (now - read), mean
