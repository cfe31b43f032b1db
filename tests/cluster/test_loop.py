"""asyncio's own tools in virtual time."""

import asyncio
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lib
from lib.cluster.virtual import VirtualLoop
from lib.errors import Deadlock


def run(main):
    return VirtualLoop().run_until_complete(main)


def now():
    return asyncio.get_running_loop().time()


def test_the_clock_jumps_to_the_next_timer_and_stands_still_between():
    async def main():
        times = [now()]
        for seconds in (0, 1e6, 2.5):
            await asyncio.sleep(seconds)
            times.append(now())
        return times

    assert run(main()) == [0, 0, 1e6, 1e6 + 2.5]


def test_a_time_limit_ends_what_takes_longer_and_nothing_else():
    async def main():
        assert await asyncio.wait_for(asyncio.sleep(3, "slept"), 5) == "slept" and now() == 3
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(9)
        return now()

    assert run(main()) == 8


def test_a_cancelled_timer_moves_no_clock():
    async def main():
        async with asyncio.timeout(100):
            await asyncio.sleep(1)
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"virtual time 1\.0"):
        run(main())


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_ties_run_in_the_order_of_scheduling_every_time(delays):
    async def main():
        woken = []

        async def sleeper(index, delay):
            await asyncio.sleep(delay)
            woken.append((delay, index))
            await asyncio.sleep(4 - delay)  # so that all of them tie once more
            woken.append((9, index))

        await asyncio.gather(*(sleeper(index, delay) for index, delay in enumerate(delays)))
        return woken

    woken = run(main())
    assert woken == run(main())
    first = [mark for mark in woken if mark[0] < 9]
    assert [mark for mark in first if mark[0]] == sorted(mark for mark in first if mark[0])
    # At the last tie, whoever set the later timer runs later: in the order of waking, save those who need no second timer.
    second = [index for delay, index in woken if delay == 9 and delays[index] < 4]
    assert second == [index for delay, index in first if delay < 4]


def test_a_deadlock_names_every_task_and_where_it_waits():
    async def stuck():
        await asyncio.Event().wait()

    async def main():
        await asyncio.sleep(7)
        async with asyncio.TaskGroup() as group:
            group.create_task(stuck(), name="worker 3")
            group.create_task(stuck(), name="worker 5")

    with pytest.raises(Deadlock) as caught:
        run(main())
    text = str(caught.value)
    assert "at virtual time 7.0" in text and "main" not in text
    for name in ("worker 3", "worker 5"):
        line = next(line for line in text.splitlines() if name in line)
        assert "stuck:" in line and "Event.wait:" in line
    with pytest.raises(Deadlock, match=r"main in .*stuck:\d+ > Event\.wait:\d+"):
        run(stuck())


def test_an_error_in_a_task_comes_through_and_the_others_clean_up():
    cleaned = []

    async def fails():
        await asyncio.sleep(1)
        raise ZeroDivisionError("here")

    async def goes_on():
        try:
            await asyncio.sleep(1000)
        finally:
            cleaned.append(now())

    async def main():
        await asyncio.gather(goes_on(), fails())

    with pytest.raises(ZeroDivisionError, match="here"):
        run(main())
    assert cleaned == [1]


def test_an_error_of_a_task_without_a_waiter_stops_the_loop():
    async def fails():
        raise ZeroDivisionError("unseen")

    async def main():
        asyncio.get_running_loop().create_task(fails())
        await asyncio.sleep(1)
        await asyncio.sleep(1)

    with pytest.raises(ZeroDivisionError, match="unseen"):
        run(main())


def test_an_interrupt_from_another_thread_ends_an_endless_program_and_cleans_up():
    loop, cleaned = VirtualLoop(), []

    async def main():
        try:
            while True:
                await asyncio.sleep(1)
        finally:
            cleaned.append(True)

    timer = threading.Timer(0.02, loop.interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(main())
    timer.join()
    assert cleaned and loop.events > 0


def test_training_runs_inside_a_running_event_loop_as_in_jupyter():
    async def cell(cluster):
        run = lib.train("quadratic", "sync", cluster, workers=2, samples=256, save=False)
        assert asyncio.get_running_loop().is_running()
        return run.summary["applied"]

    assert [asyncio.run(cell(name)) for name in ("virtual", "local")] == [8, 8]
