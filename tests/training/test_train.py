"""What a run does to the process that it is made in."""

import gc

import pytest

from lib.cluster.virtual import VirtualWorld
from lib.training.train import Job

TASK = {"samples": 200, "batch_size": 50, "save": False}


def test_the_collector_sees_everything_again_after_a_run():
    often, frozen = gc.get_threshold(), []
    Job.of("ctr-synthetic", "sync", "virtual", **TASK).run(lambda _: frozen.append(gc.get_freeze_count()))
    assert min(frozen) > 0 and gc.get_freeze_count() == 0

    def fails(_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Job.of("ctr-synthetic", "sync", "virtual", **TASK).run(fails)
    assert gc.get_freeze_count() == 0 and gc.get_threshold() == often


def worlds():
    return [each for each in gc.get_objects() if type(each) is VirtualWorld]


def test_nothing_of_a_runs_world_is_left():
    """Its circles would stay, tables and all: whoever sets old objects aside puts off Python's next look at them."""
    others = worlds()  # of tests before this one
    for protocol in ("sync", "s-easgd", "oac"):
        Job.of("ctr-synthetic", protocol, "virtual", **TASK).run(lambda _: gc.collect(1))  # as in a long run: it is old
        assert len(worlds()) == len(others)
