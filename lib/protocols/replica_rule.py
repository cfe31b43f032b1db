"""Replica rules: every worker updates its own copy, and the rule says how copies are mixed.

A rule is a composition of four values with a few pure hooks. A driver executes the values and has nothing for any one rule.

- `exchange`: what is exchanged, and with whom;
- `when`: in the loop, every k steps or s seconds, or in the background;
- `rows`: where the rows of embedding tables are, and what becomes of them;
- `model`: which parameters are the result.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from lib.errors import BadOption
from lib.protocols.mixing import Background, Centre, Exchange, Gradients, Loop, Mean, Mix
from lib.protocols.rule import Rule
from lib.protocols.server_rule import ServerRule

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class ReplicaRule(Rule):
    """A rule that says which replicas mix, when, in the background or in the loop, and how their copies merge."""

    family: ClassVar = "replica"
    exchange: ClassVar[Exchange] = Mean()
    when: ClassVar[Loop | Background] = Loop()
    rows: ClassVar[ServerRule | Literal["averaged", "local"]] = "averaged"
    """On servers that follow this rule; or in the replica, averaged over all members that hold a row (where groups mix in the
    loop, in the rounds of `averages_rows`); or in the replica and never mixed, which must be said."""
    model: ClassVar[Literal["first", "average", "centre"]] = "first"
    """The parameters that are evaluated and handed on: the first worker's, the mean of all workers', or the sync servers'.
    The others are evaluated at the end under names of their own."""
    should_mix: ClassVar[Callable[[Mapping[int, float]], bool] | None] = None
    """`should_mix(moved)`: whether the workers that have come to a mix carry it out, given how far each replica is from the
    result of its last mix (rank -> L2 norm; infinite in a timing run). With a centre or partner, a worker asks for itself.
    None: they always mix, and no distance is measured."""

    worker_threads: int = 1
    """Training threads on one replica and its optimiser's state (m), in the manner of Hogwild."""
    rolls_back: bool = False
    """A worker's death takes the whole run back to its last cut, as of one job; else the others go on without it."""

    def __post_init__(self):
        super().__post_init__()
        try:
            exchange, when = self.exchange, self.when
        except BadOption as error:
            raise BadOption(f"{self.name}: {error}") from None
        if self.worker_threads < 1:
            raise BadOption(f"{self.name}: worker_threads must be at least 1, not {self.worker_threads}")
        if isinstance(exchange, Gradients) and (self.worker_threads > 1 or when != Loop()):
            raise BadOption(f"{self.name}: gradients are averaged by one thread in every step of the loop")
        if self.should_mix and (exchange.copies or (exchange.together and getattr(exchange, "ahead", True))):
            right = "Mean(ahead=False), Centre() or Peer()"
            raise BadOption(f"{self.name}: should_mix(moved) is asked once a worker is ready: with {right}")
        mixed = isinstance(exchange, Mean) and isinstance(when, Loop)
        if getattr(when, "overlap", 0) and not (mixed and when.place == "after" and exchange.ahead):
            raise BadOption(
                f"{self.name}: what travels for some steps is a mean of scheduled groups, sent after an update: Mean() and "
                "Loop(place='after')"
            )
        if self.statistics and not mixed and not exchange.copies:
            raise BadOption(
                f"{self.name}: running statistics are mixed by groups in the loop, with parameters (Mean) or with "
                "gradients (Gradients)"
            )
        if self.model == "centre" and not isinstance(exchange, Centre):
            raise BadOption(f"{self.name}: there are no sync servers whose copy could be the model")
        if isinstance(when, Loop) and when.place == "beside" and exchange.together and self.worker_threads > 1:
            raise BadOption(f"{self.name}: threads stand still while they mix, so that they cannot compute beside it")

    @property
    def sparse(self) -> Rule:
        return self.rows if isinstance(self.rows, ServerRule) else self

    @property
    def mixes_rows(self) -> bool:
        """Whether rows in the replica can be averaged with it."""
        at_once = isinstance(self.when, Loop) and not self.when.overlap
        return isinstance(self.exchange, (Mean, Gradients)) and at_once and self.rows == "averaged"

    @property
    def waits_for_others(self) -> bool:
        """Whether a worker waits for replicas of others that may have steps to make first; gradients are met in one step."""
        ends = isinstance(self.when, Background) and self.when.until == "all"
        return self.exchange.together and not self.exchange.copies and (isinstance(self.when, Loop) or ends)

    @functools.cached_property
    def _when(self) -> Loop | Background:
        """`when`, of which a worker asks in every step."""
        return self.when

    def batches_a_step(self, workers: int) -> int:
        return workers

    def is_due(self, step: int, seconds: float) -> bool:
        """Whether a replica mixes in its `step`-th step (the first is 1), which begins so long after its last mix."""
        return self._when.is_due(step, seconds)

    def groups(self, round: int, workers: int) -> Groups:
        """The scheduled groups of a mixing round: a partition of the ranks."""
        return (tuple(range(workers)),)

    def form_groups(self, waiting: Mapping[int, int], active: frozenset[int], workers: int) -> Groups:
        """The groups that can go now, given the round at which each worker waits. By default: scheduled groups whose members that
        are still active all wait at the same round, without those that wait at a later one (they were lost, or the group
        broke when another was); a rule of dynamic groups decides by the workers that wait."""
        formed, seen = [], set()
        for rank, round in sorted(waiting.items()):
            if rank in seen or rank not in active:
                continue
            scheduled = _group_of_each_rank(self, round, workers)[rank]
            group = [member for member in scheduled if member in active and waiting.get(member, round) <= round]
            if {waiting.get(member) for member in group} == {round}:
                formed.append(tuple(group))
                seen.update(group)
        return tuple(formed)

    def weights(self, round: int, rank: int, workers: int) -> Mapping[int, float]:
        """A worker's row of the mixing matrix: its own weight and its neighbours', which sum to 1. The weight of a neighbour
        that has left is the worker's own."""
        raise NotImplementedError(f"{self.name} has no neighbours")

    def partner(self, round: int, rank: int, workers: int) -> int | None:
        """The rank of the worker whose replica this worker meets; None: it meets none, and may be met."""
        raise NotImplementedError(f"{self.name} has no partners")

    def averages_rows(self, round: int) -> bool:
        """Whether rows in the replica, if they are averaged, are so in this round."""
        return True

    def averaged_state(self, round: int) -> tuple[str, ...]:
        """The parts of the optimisers' state, by torch.optim's names, that a mean of groups takes in with the parameters."""
        return ()

    # What the four methods below are given is lent: read-only, and of the moment. What a rule remembers of it, it copies.

    def init(self, start: np.ndarray) -> Any:
        """What one replica remembers between mixes (an outer copy, for one); None where nothing."""
        return None

    def memory_on_rejoin(self, donor_memory: Any, donor_replica: np.ndarray) -> Any:
        """What a worker remembers that was lost and is there again, with the replica of another, the donor, and what that one
        remembers: by default the same, as is right for what all share. What is a worker's own begins anew here."""
        return donor_memory

    def send(self, memory: Any, mine: np.ndarray, round: int) -> np.ndarray:
        """What a replica sends: the vector itself, or an array made of it (a part, a compressed form), alike for all that mix."""
        return mine

    def update_centre(self, centre: np.ndarray, message: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sync servers' copy, or a partner's replica, after a worker sent `message`, and the answer to that worker."""
        raise NotImplementedError(f"{self.name} has no copy to meet")

    def merge(self, memory: Any, mine: np.ndarray, mix: Mix) -> tuple[Any, np.ndarray]:
        """What a replica remembers, and the replica, after a mix. `mine` may have moved on since `mix.sent`."""
        return memory, mix.theirs

    def as_model(self, memory: Any, mine: np.ndarray) -> np.ndarray:
        """The model that one replica stands for: itself, or an outer copy that it remembers."""
        return mine


def mix_takes_place(rule: ReplicaRule, moved: Mapping[int, float]) -> bool:
    """Whether a mix of these takes place."""
    answer = rule.should_mix(moved) if rule.should_mix else True
    if not isinstance(answer, (bool, np.bool_)):
        asked = f"{rule.name}: should_mix(moved={moved})"
        raise BadOption(f"{asked} must say whether to mix, True or False; it gave {answer!r}")
    return bool(answer)


@functools.lru_cache(maxsize=64)
def _group_of_each_rank(rule: ReplicaRule, round: int, workers: int) -> dict[int, tuple[int, ...]]:
    """Rank -> its scheduled group."""
    groups = rule.groups(round, workers)
    ranks = sorted(rank for group in groups for rank in group)
    if ranks != list(range(workers)):
        raise BadOption(
            f"{rule.name}: groups(round={round}, workers={workers}) must hold each rank from 0 to {workers - 1} once; "
            f"it gave {groups}"
        )
    return {rank: group for group in groups for rank in group}


@functools.lru_cache(maxsize=4096)
def mixing_row(rule: ReplicaRule, round: int, rank: int, workers: int) -> Mapping[int, float]:
    """A worker's row of the mixing matrix, checked."""
    row = dict(rule.weights(round, rank, workers))
    if rank not in row or not row.keys() <= set(range(workers)) or abs(sum(row.values()) - 1) > 1e-6:
        raise BadOption(
            f"{rule.name}: weights(round={round}, rank={rank}, workers={workers}) must weigh rank {rank} and others from 0 to "
            f"{workers - 1}, 1 in all; it gave {row}"
        )
    return row
