"""Semi-synchronous training: TorchRec's `TrainPipelineSemiSync` (pytorch/torchrec, torchrec/distributed/train_pipeline).

The rule in one sentence: updates are Sync's, but a worker reads the parameters of its next batch before the update of the one
that it computes, so that the transfers of rows hide behind the computation.

TorchRec -> code: "each batch prediction is calculated on parameters which were last updated B-2" -> `pull_ahead` of 1;
`stash_gradients=True`, where dense parameters lag as well -> the rule for both; its default, where rows lag alone ->
`Pair(sparse=SemiSync(), dense=AllReduce())`, on the command line `semi-sync+all-reduce`.

Special case: pull_ahead = 0 is Sync, to the bit. Departure: TorchRec begins with some batches of Sync (`start_batch`), which
here is a `Schedule` of two phases.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from lib.options.checked import Natural
from lib.protocols.baselines import Sync
from lib.protocols.hop import StepCountingRule, StepCounts
from lib.protocols.server_rule import Apply, Decisions, with_value


@dataclass(frozen=True, kw_only=True)
class SemiSync(StepCountingRule, Sync):
    """Sync whose workers read the parameters of a step some updates before it begins.

    A gradient's token is the step that it belongs to. Guarantee: each update is the mean of one gradient of that step from each
    worker, and no gradient is more than `pull_ahead` updates old.
    """

    name: ClassVar = "semi-sync"
    cite: ClassVar = "TorchRec, TrainPipelineSemiSync, 2024"

    pull_ahead: Natural = 1
    """Batches whose parameters a worker reads ahead, and updates that these do not have yet."""

    @property
    def max_staleness(self) -> float:
        return self.pull_ahead

    def may_start(self, state: StepCounts, worker: int) -> bool:
        return state.begun[worker] - state.step <= self.pull_ahead

    def on_start(self, state: StepCounts, worker: int) -> tuple[StepCounts, int]:
        return super().on_start(state, worker)[0], state.begun[worker]

    def on_join(self, state: StepCounts, worker: int) -> StepCounts:
        begun = with_value(state.begun, worker, self._resume_step(state, worker))
        return replace(super().on_join(state, worker), begun=begun)

    def on_pause(self, state: StepCounts) -> StepCounts:
        return replace(state, begun=tuple(self._resume_step(state, worker) for worker in range(len(state.begun))))

    def _resume_step(self, state: StepCounts, worker: int) -> int:
        """The step that a worker begins with after a death or a pause."""
        waiting = [push.token + 1 for push in state.pending if push.worker == worker]
        return max([state.step, *waiting])

    def _apply_if_complete(self, state: StepCounts) -> tuple[StepCounts, Decisions]:
        """Make the updates of all steps, from the oldest on, that have a gradient of every worker that is left."""
        updates: list[Apply] = []
        while state.pending and len(state.pending) >= len(state.active):
            step = min(push.token for push in state.pending)
            whole = tuple(push for push in state.pending if push.token == step)
            if not state.active <= {push.worker for push in whole}:
                break
            updates.append(Apply(whole, (1.0,) * len(whole), len(whole)))
            rest = tuple(push for push in state.pending if push.token != step)
            left = frozenset(push.worker for push in rest)
            state = replace(state, step=state.step + 1, pending=rest, pending_workers=left)
        return state, tuple(updates)
