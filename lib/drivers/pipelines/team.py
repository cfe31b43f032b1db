"""What the devices of one pipeline send each other while they compute a batch together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

import numpy as np

from lib.cluster.base import Handle, Meeting, Site, nbytes
from lib.drivers.pipelines.share import Places, Share
from lib.drivers.run.plan import Plan
from lib.drivers.run.trainer import Trainer, finite
from lib.errors import MemberLost
from lib.models.flat import Launched, StepResult
from lib.store.blank import blank, joined
from lib.store.device.road import uploaded

Blocks = Mapping[str, Any]
"""Table -> a block of rows, or of their gradients."""


class Alone:
    """One device: it has all rows and computes all samples, and nothing goes anywhere."""

    async def rows(self, share: Share, values: Blocks) -> Blocks:
        return values

    async def gradient(self, share: Share, result: Launched | StepResult | None) -> Launched | StepResult:
        return result


class Team:
    """Several devices.

    Guaranteed: bits do not depend on who comes first. A batch's gradient is the mean over its samples: the devices' gradients,
    weighted by how many of them each has, are summed in the order of the devices (under Ray dense ones as its collective
    does). So all copies of the dense parameters stay equal. Where one meets what is not finite, all hear of it.

    Blocks go from host to host: in a step the host waits for its device.
    """

    def __init__(
        self, site: Site, plan: Plan, trainer: Trainer, device: int, devices: Sequence[Handle], lives: list[int]
    ):
        """`lives`: which one of its node's each device is in."""
        self._site, self._plan, self._size, self._record = site, plan, trainer.size, trainer.record
        self._device = device
        self._others = {other: handle.seen_from(site) for other, handle in enumerate(devices) if other != device}
        self._members, self._lives = tuple(range(len(devices))), tuple(lives)
        self._dims = {name: spec.dim for name, spec in plan.workload.tables().items()}
        self._mail: dict[tuple[str, int, int], asyncio.Future[Blocks]] = {}
        """(what, batch, device) -> what came from there."""

    def deliver(self, what: str, batch: int, device: int, blocks: Blocks) -> None:
        """A message has come."""
        self._slot(what, batch, device).set_result(blocks)

    async def rows(self, share: Share, values: Blocks) -> Blocks:
        """The values of the rows that this device's samples need, from whoever has them; `values` are those of its own rows."""
        sent = await self._site.launch(None, self._packed, values, share.gives)
        parts = await self._exchange("rows", share.index, sent, share.takes)
        return await self._site.launch(None, self._placed, parts, share.takes) if share.batch else {}

    async def gradient(self, share: Share, result: Launched | StepResult | None) -> Launched | StepResult:
        """The whole batch's gradient of this device's own rows and of the dense parameters; its own samples' loss and scores."""
        grads, loss, scores = (result.rows, result.loss, result.scores) if result else ({}, 0.0, None)
        sent = await self._site.launch(None, self._packed, grads, share.takes, share.weight)
        parts = await self._exchange("gradients", share.index, sent, share.gives)
        rows = self._summed(parts, share)
        mine = await self._site.launch(None, self._message, result, share.weight, rows)
        self._record.bytes["mix gradients"] += mine.nbytes
        meeting = Meeting(f"batch {share.index}", self._members, 0, self._lives)
        try:
            mean = await self._site.mean(meeting, mine)
        except MemberLost:
            await asyncio.Event().wait()  # who called the one that died hears of it, and ends this
        return await self._site.launch(None, self._uploaded, mean, rows, loss, scores)

    def _packed(self, blocks: Blocks, places: Sequence[Places], weight: float | None = None) -> list[Blocks]:
        """For each device, of each table the rows at these places on the host, times the weight if there is one."""
        return [{name: self._taken(blocks.get(name), name, at, weight) for name, at in each.items()} for each in places]

    def _taken(self, block: Any, table: str, at: np.ndarray, weight: float | None) -> np.ndarray:
        if block is None or not self._plan.gradients:
            return blank(at.size, self._dims[table])
        rows = block.index_select(0, uploaded(at, block.device)).cpu().numpy()
        return rows if weight is None else rows * np.float32(weight)

    async def _exchange(self, what: str, batch: int, sent: Sequence[Blocks], wanted: Sequence[Places]) -> list[Blocks]:
        """Send each device what is for it, and get from each what is wanted from it; nothing goes where there are no rows."""
        got = [sent[self._device] if other == self._device else {} for other in self._members]

        async def get(other: int) -> None:
            got[other] = await self._slot(what, batch, other)
            del self._mail[what, batch, other]

        calls = []
        for other, handle in self._others.items():
            if any(len(block) for block in sent[other].values()):
                self._record.bytes[f"{what} among devices"] += nbytes(sent[other])
                calls.append(handle.deliver(what, batch, self._device, sent[other]))
            if any(at.size for at in wanted[other].values()):
                calls.append(get(other))
        await together(*calls)
        return got

    def _slot(self, *key: Any) -> asyncio.Future[Blocks]:
        return self._mail.setdefault(key, asyncio.get_running_loop().create_future())

    def _placed(self, parts: Sequence[Blocks], places: Sequence[Places]) -> Blocks:
        """The parts' rows where they belong, on the device."""
        whole = {}
        for name, dim in self._dims.items():
            blocks = [part.get(name, blank(0, dim)) for part in parts]
            whole[name] = self._onto_device(joined(blocks, [each[name] for each in places]))
        return whole

    def _summed(self, parts: Sequence[Blocks], share: Share) -> dict[str, np.ndarray]:
        """The gradients of the device's own rows; each part's positions are distinct."""
        sums = {}
        for name, ids in share.ids.items():
            if not self._plan.gradients:
                sums[name] = blank(ids.size, self._dims[name])
                continue
            sums[name] = np.zeros((ids.size, self._dims[name]), np.float32)
            for part, places in zip(parts, share.gives, strict=True):
                if name in part:
                    sums[name][places[name]] += part[name]
        return sums

    def _message(self, result: Launched | StepResult | None, weight: float, rows: dict[str, np.ndarray]) -> np.ndarray:
        """This device's part of the mean of dense gradients, and a last number that is none where anything is not finite."""
        if not self._plan.gradients:
            return blank(self._size + 1)
        mine = np.zeros(self._size + 1, np.float32)
        if result:
            mine[:-1] = result.dense.cpu().numpy() * np.float32(weight * len(self._members))
        loss = float(result.loss) if result else 0.0
        mine[-1] = 0.0 if finite(StepResult(loss=loss, dense=mine, rows=rows, scores=None)) else np.nan
        return mine

    def _uploaded(self, mean: np.ndarray, rows: Blocks, loss: Any, scores: Any) -> Launched | StepResult:
        if not self._plan.gradients:
            return StepResult(loss=float("nan"), dense=mean[:-1], rows=rows, scores=None)
        dense = self._onto_device(mean)
        return Launched(
            loss=loss + dense[-1],
            dense=dense[:-1],
            rows={name: self._onto_device(block) for name, block in rows.items()},
            scores=dense[:0] if scores is None else scores,
        )

    def _onto_device(self, block: np.ndarray) -> Any:
        return uploaded(block, self._site.device) if self._plan.gradients else block


async def together(*calls: Awaitable[Any]) -> None:
    """Wait for all of them; the first that fails ends the others."""
    if len(calls) == 1:
        await calls[0]
        return
    async with asyncio.TaskGroup() as tasks:
        for call in calls:
            tasks.create_task(_awaited(call))


async def _awaited(call: Awaitable[Any]) -> None:
    await call
