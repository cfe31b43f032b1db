"""The optimisers, each with torch.optim's semantics on three kinds of parameters.

- a dense vector: `step` works in place, with torch.optim's own function where there is a fused one;
- blocks of rows on any device: `update` works in place with torch's operations;
- slots of a table: `update_slots` works in place with a numba kernel.

Guaranteed: a row sees the numbers that torch.optim would give it as a parameter of its own, which is stepped when,
and only when, the row gets a gradient; the three agree within float32's rounding. What a row needs besides its values is
`columns` numbers of state. Options that torch.optim does not have (a bound of the values, one accumulator a row, an accumulator
that is updated after the step) are for rows alone: `check_dense` refuses them.

Dense steps call torch.optim's functions, not its classes, whose first step imports a compiler: a second of every process that
trains. Adam's, which is most of all steps, is its kernel itself: what stands before it takes three times as long as a small step.

A new optimiser is a subclass with `initial_dense_state`, `step`, `columns`, `_step`, `_kernel` and a step of one row in
`lib/store/kernels.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Gt, Lt
from torch import Tensor, _fused_adam_, full_like, no_grad, zeros, zeros_like
from torch.optim.adagrad import adagrad

from lib.errors import BadOption
from lib.options.checked import Checked, Count, NotNegative, Positive, read_kind
from lib.store import kernels


@dataclass(frozen=True, kw_only=True)
class Optimizer(Checked, ABC):
    """How a gradient changes parameters."""

    lr: Positive
    """Learning rate."""
    weight_decay: NotNegative = 0.0
    """Times a parameter, added to its gradient, as torch.optim does it; a row decays when, and only when, it gets a gradient."""
    weight_bound: Positive | None = None
    """Rows only: after a step every value is held within this distance of zero (Persia's weight bound)."""

    name: ClassVar[str]
    plain_name: ClassVar = True
    rows_only: ClassVar[tuple[str, ...]] = ("weight_bound",)
    """Options that dense parameters cannot have."""
    parts: ClassVar[tuple[str, ...]] = ()
    """torch.optim's names of the tensors that it keeps of each parameter's shape, in the order of a row's state."""

    @classmethod
    def error_label(cls) -> str:
        return cls.__name__

    @classmethod
    def read(cls, data: Any) -> Optimizer:
        """From `{name: adam, lr: 0.01, ...}`."""
        kinds = SGD, Momentum, Adagrad, Adam, DelayedNesterov
        return read_kind("optimiser", {kind.name: kind for kind in kinds}, data)

    def check_dense(self) -> None:
        """Refuse what dense parameters cannot have."""
        for option in self.rows_only:
            if getattr(self, option):
                raise BadOption(
                    f"{type(self).__name__}.{option} is for rows: torch.optim has no such option for dense parameters"
                )

    @abstractmethod
    def initial_dense_state(self, values: Tensor) -> dict[str, Tensor]:
        """What torch.optim keeps for a dense vector, by its names, before the first step."""

    def step(self, values: Tensor, state: dict[str, Tensor], grad: Tensor, rate: float = 1.0) -> None:
        """One step in place on a dense vector, with `rate` times the learning rate."""
        self.scale_lr(rate)._step(values, next(iter(state.values()), None), self._decayed(grad, values))

    @abstractmethod
    def columns(self, dim: int) -> int:
        """How many float32 numbers of state belong to a row."""

    def initial_row_state(self, n: int, dim: int) -> np.ndarray:
        """The state of n rows that were never updated."""
        return np.zeros((n, self.columns(dim)), np.float32)

    def columns_of(self, names: Collection[str], dim: int) -> list[int]:
        """The columns of a row's state that these parts have."""
        width = self.columns(dim) // max(len(self.parts), 1)
        return [place * width + k for place, name in enumerate(self.parts) if name in names for k in range(width)]

    @no_grad()
    def update(self, values: Tensor, state: Tensor, grads: Tensor) -> None:
        """One step in place on a block of distinct rows: values [U, dim], state [U, columns], grads [U, dim]."""
        self._step(values, state, self._decayed(grads, values))
        if self.weight_bound is not None:
            values.clamp_(-self.weight_bound, self.weight_bound)

    def scale_lr(self, factor: float) -> Optimizer:
        """This optimiser with its learning rate times `factor`."""
        return self if factor == 1 else replace(self, lr=factor * self.lr)

    def update_slots(
        self, rows: np.ndarray, slots: np.ndarray, grads: np.ndarray, mark: tuple[int, int] = (-1, 0)
    ) -> None:
        """One step in place on distinct slots of a table, whose rows start with [values | state].

        With a `mark` (column, stamp) the kernel writes the timestamp into that column too.
        """
        if self.weight_decay:
            grads = self._decayed(grads, rows[slots, : grads.shape[1]])
        step, *numbers = self._kernel()
        numbers = (*map(float, numbers), *(kernels.NUMBERS - len(numbers)) * (0.0,))
        step(rows, slots, grads, numbers, self.weight_bound or 0.0, *mark)

    def _decayed(self, grads: Any, values: Any) -> Any:
        return grads + self.weight_decay * values if self.weight_decay else grads

    @abstractmethod
    def _step(self, values: Tensor, state: Tensor | None, grads: Tensor) -> None: ...

    @abstractmethod
    def _kernel(self) -> tuple[Any, ...]:
        """The kernel of `update_slots` and its numbers."""


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Plain gradient descent, without momentum."""

    name: ClassVar[str] = "sgd"

    def initial_dense_state(self, values: Tensor) -> dict[str, Tensor]:
        return {}

    def columns(self, dim: int) -> int:
        return 0

    def _step(self, values: Tensor, state: Tensor | None, grads: Tensor) -> None:
        values.add_(grads, alpha=-self.lr)

    def _kernel(self) -> tuple[Any, ...]:
        return kernels.SGD, self.lr


@dataclass(frozen=True, kw_only=True)
class Momentum(Optimizer):
    """Gradient descent along a sum of gradients that decays by `momentum` with each step of the row."""

    momentum: Annotated[float, Gt(0), Lt(1)] = 0.9
    """What is kept of the sum."""
    nesterov: bool = False
    """Step along what the sum will be."""

    name: ClassVar[str] = "momentum"
    parts: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    def initial_dense_state(self, values: Tensor) -> dict[str, Tensor]:
        return {"momentum_buffer": zeros_like(values)}

    def columns(self, dim: int) -> int:
        return dim

    def _step(self, values: Tensor, state: Tensor, grads: Tensor) -> None:
        state.mul_(self.momentum).add_(grads)
        values.add_(grads.add(state, alpha=self.momentum) if self.nesterov else state, alpha=-self.lr)

    def _kernel(self) -> tuple[Any, ...]:
        return kernels.MOMENTUM, self.lr, self.momentum, self.nesterov


@dataclass(frozen=True, kw_only=True)
class Adagrad(Optimizer):
    """A rate per element, divided by the root of the sum of its squared gradients; the sum is taken before the step."""

    eps: NotNegative = 1e-10
    """Added to the root."""
    initial: NotNegative = 0.0
    """What the sum starts from."""
    rowwise: bool = False
    """Rows only: one sum a row, of the mean squares of its gradients (DGL-KE, fbgemm), instead of one an element."""
    after: bool = False
    """Rows only: step with the sum as it was, then add to it (Persia's order); give `initial` above 0."""
    copies: Count | None = None
    """Rows only: the sum is divided by it under the root; as many as there are copies of the table (2D sparse parallelism's
    scaled AdaGrad, c). None: 1."""

    name: ClassVar[str] = "adagrad"
    parts: ClassVar[tuple[str, ...]] = ("sum",)
    rows_only: ClassVar[tuple[str, ...]] = ("weight_bound", "rowwise", "after", "copies")

    def initial_dense_state(self, values: Tensor) -> dict[str, Tensor]:
        return {"step": zeros(()), "sum": full_like(values, self.initial)}

    def step(self, values: Tensor, state: dict[str, Tensor], grad: Tensor, rate: float = 1.0) -> None:
        fused = values.is_cpu  # torch has no fused Adagrad elsewhere
        options = {"weight_decay": self.weight_decay, "lr_decay": 0.0, "eps": self.eps, "maximize": False}
        sums, steps = [state["sum"]], [state["step"]]
        adagrad([values], [grad], sums, steps, fused=fused, foreach=False, lr=rate * self.lr, **options)

    def columns(self, dim: int) -> int:
        return 1 if self.rowwise else dim

    def initial_row_state(self, n: int, dim: int) -> np.ndarray:
        return np.full((n, self.columns(dim)), self.initial, np.float32)

    def _step(self, values: Tensor, state: Tensor, grads: Tensor) -> None:
        squares = grads.square().mean(dim=1, keepdim=True) if self.rowwise else grads.square()
        before = state.clone() if self.after else state
        state.add_(squares)
        lr, eps = self._numbers
        values.addcdiv_(grads, before.sqrt().add_(eps), value=-lr)

    def _kernel(self) -> tuple[Any, ...]:
        kernel = kernels.ROWWISE_ADAGRAD if self.rowwise else kernels.ADAGRAD
        return kernel, *self._numbers, self.after

    @property
    def _numbers(self) -> tuple[float, float]:
        """Rate and eps: lr / (sqrt(sum / c) + eps) is that of a rate and an eps that are multiplied by sqrt(c)."""
        root = 1 if self.copies is None else math.sqrt(self.copies)
        return root * self.lr, root * self.eps


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Moments of first and second order, their bias corrected by the number of steps that the row itself has seen."""

    beta1: Annotated[float, Ge(0), Lt(1)] = 0.9
    """Decay of the first moment."""
    beta2: Annotated[float, Ge(0), Lt(1)] = 0.999
    """Decay of the second moment."""
    eps: NotNegative = 1e-8
    """Added to the root of the second moment."""

    name: ClassVar[str] = "adam"
    parts: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def initial_dense_state(self, values: Tensor) -> dict[str, Tensor]:
        step = zeros((), device=values.device)
        return {"exp_avg": zeros_like(values), "exp_avg_sq": zeros_like(values), "step": step}

    def step(self, values: Tensor, state: dict[str, Tensor], grad: Tensor, rate: float = 1.0) -> None:
        state["step"] += 1
        moments = [state["exp_avg"]], [state["exp_avg_sq"]]
        betas = {"beta1": self.beta1, "beta2": self.beta2}
        options = {"amsgrad": False, "weight_decay": self.weight_decay, "eps": self.eps, "maximize": False}
        _fused_adam_([values], [grad], *moments, [], [state["step"]], lr=rate * self.lr, **betas, **options)

    def columns(self, dim: int) -> int:
        return 2 * dim + 1

    def _step(self, values: Tensor, state: Tensor, grads: Tensor) -> None:
        m, v, seen = state.split([values.shape[1], values.shape[1], 1], dim=1)
        seen += 1
        exact = seen.double()  # 1 - beta2 ** 1 would keep only four digits in float32
        rate = (self.lr / (1 - self.beta1**exact)).to(values.dtype)
        root = (1 - self.beta2**exact).sqrt_().to(values.dtype)
        m.lerp_(grads, 1 - self.beta1)
        v.mul_(self.beta2).addcmul_(grads, grads, value=1 - self.beta2)
        values.addcdiv_(m.mul(rate), v.sqrt().div_(root).add_(self.eps), value=-1)

    def _kernel(self) -> tuple[Any, ...]:
        return kernels.ADAM, self.lr, self.beta1, self.beta2, self.eps


@dataclass(frozen=True, kw_only=True)
class DelayedNesterov(Optimizer):
    """Nesterov's momentum, for dense parameters alone, that moves with every so-many-th gradient by their mean; each gradient by
    itself makes a step of that share of its length (Liu et al., Asynchronous Local-SGD, 2024, with c = 0)."""

    momentum: Annotated[float, Ge(0), Lt(1)] = 0.9
    """What is kept of the momentum when it moves (beta)."""
    every: Count = 4
    """Gradients from one move of the momentum to the next (N)."""

    name: ClassVar[str] = "delayed-nesterov"

    def initial_dense_state(self, values: Tensor) -> dict[str, Tensor]:
        return {"momentum_buffer": zeros_like(values), "sum": zeros_like(values), "step": zeros(())}

    def step(self, values: Tensor, state: dict[str, Tensor], grad: Tensor, rate: float = 1.0) -> None:
        grad = self._decayed(grad, values)
        state["step"] += 1
        state["sum"].add_(grad, alpha=1 / self.every)
        if state["step"] % self.every == 0:
            state["momentum_buffer"].mul_(self.momentum).add_(state["sum"])
            state["sum"].zero_()
            values.add_(state["momentum_buffer"], alpha=-rate * self.lr * self.momentum)
        values.add_(grad, alpha=-rate * self.lr / self.every)

    def columns(self, dim: int) -> int:
        raise BadOption("DelayedNesterov counts all gradients together, so it is for dense parameters, not for rows")

    _step = _kernel = columns  # what makes steps of rows
