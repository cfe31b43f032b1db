"""A part that returns: it is up again with its node and its survivors, and its callers notice nothing."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from lib import Failure, LocalCluster, RayCluster, VirtualCluster
from lib.errors import NodeLost


class Names:
    """A list of names that outlives its part: as an object, or as a file."""

    def __init__(self, file):
        self._file, self._names = file and Path(f"/dev/shm/tests-{file}"), []

    def read(self):
        if self._file is None:
            return list(self._names)
        return json.loads(self._file.read_text()) if self._file.exists() else []

    def write(self, names):
        self._names = list(names)
        if self._file:
            self._file.write_text(json.dumps(names))


class Returning:
    """It notes the names of its callers."""

    def __init__(self, site):
        self._site, self._noted = site, site.persistent_object("names", Names)
        self.attached = bool(self._noted.read())
        self._names = self._noted.read()

    async def note(self, name):
        if name not in self._names:
            self._names.append(name)
            self._noted.write(self._names)
        return list(self._names)

    async def slow(self, name):
        await self._site.sleep(0.05)
        return await self.note(name)

    async def process(self):
        return os.getpid()

    async def forget(self):
        self._noted.write([])


@pytest.fixture(autouse=True)
def _no_file_is_left():
    yield
    for file in Path("/dev/shm").glob("tests-*-names"):
        file.unlink()


@pytest.mark.parametrize("kind", [VirtualCluster, LocalCluster])
def test_calls_are_made_again_in_their_order_when_the_node_is_up(kind):
    """It dies during three calls, of which none has noted anything yet."""
    cluster = kind(failures=[Failure(node="server0", kind="dies", at=0.03, lasts=0.04)])

    async def main(world):
        part = await world.host(Returning, node="server0", returns=True)
        other = await world.host(Returning, node="server1")
        world.start_failure_clock()
        await part.note("before")
        answers = await asyncio.gather(*(part.slow(name) for name in "abc"))
        return answers, await part.note("after"), await other.note("another")

    (first, *_, last), after, other = cluster.open(seed=0, workers=1).run(main)
    assert first == ["before", "a"] and last == ["before", "a", "b", "c"]
    assert after == [*last, "after"] and other == ["another"]


@pytest.mark.parametrize("kind", [VirtualCluster, LocalCluster])
def test_a_part_whose_node_is_never_up_again_is_lost_to_its_callers(kind):
    cluster = kind(failures=[Failure(node="server0", kind="dies", at=0.03)])

    async def main(world):
        part = await world.host(Returning, node="server0", returns=True)
        world.start_failure_clock()
        await part.slow("a")

    with pytest.raises(NodeLost):
        cluster.open(seed=0, workers=1).run(main)


@pytest.mark.ray
def test_a_process_that_is_killed_is_replaced(joined_ray):
    """Each time another process has what survived; calls that the death met wait, and are made in their order."""

    async def main(world):
        part = await world.host(Returning, node="server0", returns=True)
        await part.note("first")
        processes = [await part.process()]
        for name in "xy":
            os.kill(processes[-1], signal.SIGKILL)
            noted = await asyncio.gather(*(part.note(f"{name}{number}") for number in range(3)))
            processes.append(await part.process())
        return processes, noted[-1]

    processes, noted = RayCluster(workers=1).open(seed=0, workers=1).run(main)
    assert len({*processes}) == 3 and noted == ["first", "x0", "x1", "x2", "y0", "y1", "y2"]


@pytest.mark.nightly
@pytest.mark.ray
def test_a_process_without_its_survivors_is_lost(joined_ray):
    async def main(world):
        part = await world.host(Returning, node="server0", returns=True)
        await part.forget()
        os.kill(await part.process(), signal.SIGKILL)
        await part.note("a")

    with pytest.raises(NodeLost):
        RayCluster(workers=1).open(seed=0, workers=1).run(main)
