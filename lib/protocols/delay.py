"""Asynchrony that knows how old a gradient is: a smaller rate, or a gradient that is compensated for updates since.

Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016; Zheng et al., "Asynchronous Stochastic
Gradient Descent with Delay Compensation", ICML 2017; Maranjyan et al., "Ringmaster ASGD: The First Asynchronous SGD with
Optimal Time Complexity", ICML 2025 (arXiv:2501.16168).

Paper -> code: delta < R -> `Ringmaster.on_push`; the rate alpha / tau -> `Apply.rate`; g + lambda g g (w_now -
w_read) -> `DCASGD.compensate`; the adaptive lambda_0 / sqrt(MeanSquare + 1e-7), whose m is `decay` -> the same, with what it
remembers.

Special cases: with one worker tau is 0, and all are Async; lambda = 0 is Async, and so is R above every delay; R = 1 applies
only gradients of the current parameters. A row's moving mean moves when the row has a gradient.

Departure: Ringmaster's second form also stops a computation that has become too old; here it ends, and its
gradient is thrown away.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lib.options.checked import Count, NotNegative, Share
from lib.protocols.baselines import Async
from lib.protocols.server_rule import Apply, Decisions, Drop, Push, ServerState


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


@dataclass(frozen=True, kw_only=True)
class Ringmaster(Async):
    """Async that throws away every gradient which is as old as a threshold: its worker goes on from the current parameters.

    Guarantee: no applied gradient is `limit` updates old, or older.
    """

    name: ClassVar = "ringmaster"
    cite: ClassVar = "Maranjyan et al., Ringmaster ASGD, ICML 2025 (arXiv:2501.16168)"
    drops: ClassVar = True

    limit: Count | None = None
    """The delay, in updates, from which a gradient is thrown away (R); None: as many as there are workers, whose gradients are
    all younger where all are equally fast."""

    @property
    def max_staleness(self) -> float:
        return self.limit - 1 if self.limit else float("inf")

    def on_push(self, state: ServerState, push: Push) -> tuple[ServerState, Decisions]:
        if state.step - push.read >= (self.limit or len(state.clocks)):
            return state.drop(push), (Drop((push,)),)
        return super().on_push(state, push)
