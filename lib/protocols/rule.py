"""What every protocol is: a rule for the dense parameters and one for the rows, which decides and does nothing itself.

A rule is a frozen dataclass, so its fields are its configuration, with an explicit state that the driver carries from hook
to hook. Hooks are pure: they return a new state and decisions; they never wait, draw random numbers or look at a clock.
Its three families are in `server_rule.py`, `replica_rule.py` and `pipeline_rule.py`.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from lib.errors import BadField, BadOption
from lib.options.checked import Checked, show_value
from lib.protocols.statistics import StatisticsAveraging

DECLARED = {"name": str, "blocks": bool, "drops": bool}
"""What every rule must declare; without it a driver would take a default for the rule's word."""


@dataclass(frozen=True, kw_only=True)
class Rule(Checked, ABC):
    """What every protocol declares about itself; `tests/protocols/test_protocols.py` measures each declaration."""

    name: ClassVar[str]
    """The registered name."""
    cite: ClassVar[str]
    """Where it comes from."""
    family: ClassVar[Literal["server", "replica", "pipeline"]]
    blocks: ClassVar[bool]
    """Whether a fast worker ever waits for a slower one."""
    drops: ClassVar[bool]
    """Whether a gradient that was computed may be thrown away."""
    states: ClassVar[tuple[type, ...]] = ()
    """The dataclasses of its state, which a checkpoint may hold."""
    data: ClassVar[Literal["split", "queue"]] = "split"
    """How workers share the batches: by rank, or from one queue (no gain where `blocks`)."""
    statistics: ClassVar[StatisticsAveraging | None] = None
    """How replicas combine the running statistics of batch normalisation; None refuses models that have any."""

    def __post_init__(self):
        for declared, right in DECLARED.items():
            if not isinstance(getattr(self, declared, None), right):
                raise BadOption(
                    f"{type(self).__name__}: {declared} must be declared, as in `{declared}: ClassVar = "
                    f"{'True' if right is bool else repr('...')}`; tests measure it"
                )

    @classmethod
    def read(cls, data: Any) -> Rule:
        """From a registered name, or from `{name: gba, iota: 4}`."""
        from lib import protocols  # it imports every rule, and every rule imports this class

        if isinstance(data, str):
            data = {"name": data}
        if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
            raise BadField("rule", (), f" must be a protocol's name or a rule, not {show_value(data)}")
        return protocols.get(**data)

    @property
    def max_staleness(self) -> float:
        """No applied gradient is older than this many updates."""
        return float("inf")

    def batches_a_step(self, workers: int) -> int:
        """Batches that go into one step: into one update, or into one step of each worker."""
        return 1

    @property
    def sparse(self) -> Rule:
        """The rule that the rows follow; a protocol may name another than its own."""
        return self

    @property
    def dense(self) -> Rule:
        """The rule that the dense parameters follow."""
        return self


@dataclass(frozen=True, kw_only=True)
class Pair(Checked):
    """Two rules as one protocol: rows follow `sparse`, dense parameters follow `dense`."""

    sparse: Rule
    dense: Rule

    def __post_init__(self):
        allowed = {"server": {"server"}, "replica": {"server", "replica"}, "pipeline": {"pipeline"}}
        if self.sparse.family not in allowed[self.dense.family]:
            raise BadOption(
                f"dense {self.dense.name!r} ({self.dense.family}) cannot carry sparse {self.sparse.name!r} "
                f"({self.sparse.family}); its rows may follow a rule of: {', '.join(sorted(allowed[self.dense.family]))}"
            )
        if self.sparse.family == "replica" and self.sparse != self.dense:
            raise BadOption(
                f"rows in a replica are mixed with it: dense {self.dense.name!r} cannot carry sparse {self.sparse.name!r}; "
                "give rows the same rule, or a server rule"
            )

    @property
    def name(self) -> str:
        return f"{self.sparse.name}+{self.dense.name}"

    @property
    def data(self) -> str:
        """Batches are shared by rank only where both halves want it: a gated half would starve the queue's fast workers."""
        return "split" if "split" in (self.sparse.data, self.dense.data) else "queue"
