"""Books that balance, and books that do not."""

from collections import Counter

import pytest

from lib.drivers.record import PartLog, gradient_ledger
from lib.errors import LockstepError


def server(started, **outcomes):
    return PartLog("server0", None, ledger=Counter(started=started, **outcomes), final={"dense": {}})


def worker(issued, **outcomes):
    return PartLog("worker0", None, ledger=Counter(issued=issued, **outcomes))


def test_every_outcome_counts_once():
    outcomes = {"applied": 3, "decayed": 1, "dropped": 2, "lost": 0, "in_flight": 1}
    assert gradient_ledger([server(7, **outcomes), worker(7)]) == {"issued": 7, **outcomes}
    assert gradient_ledger([server(7, **outcomes), worker(7)], undone=4) == {"issued": 11, **outcomes, "lost": 4}
    assert gradient_ledger([worker(2, applied=2)])["applied"] == 2


@pytest.mark.parametrize("applied", [6, 8])
def test_a_gradient_that_vanishes_or_counts_twice_is_an_error(applied):
    with pytest.raises(LockstepError, match=f"server0 does not balance: issued 7, accounted for {applied}"):
        gradient_ledger([server(7, applied=applied), worker(7)])


def test_what_was_started_was_computed_unless_a_worker_was_lost():
    with pytest.raises(LockstepError, match="7 started, 6 computed"):
        gradient_ledger([server(7, applied=7), worker(6)])
    assert gradient_ledger([server(7, applied=6, lost=1), worker(6)])["lost"] == 1


@pytest.mark.parametrize("started, computed", [(22, 64), (22, 23), (22, 20)])
def test_one_lost_gradient_excuses_no_more_than_itself(started, computed):
    """A server that forgot what it had ended with 22 started and 64 computed, and its books balanced."""
    with pytest.raises(LockstepError, match=f"{started} started, {computed} computed"):
        gradient_ledger([server(started, applied=started - 1, lost=1), worker(computed)])


def test_a_step_that_a_cached_worker_asked_for_and_died_may_be_unknown_to_the_server():
    assert gradient_ledger([server(21, applied=21), worker(22, unanswered=1)])["issued"] == 21
    with pytest.raises(LockstepError, match="21 started, 23 computed"):
        gradient_ledger([server(21, applied=21), worker(23, unanswered=1)])
