"""Who takes part, and what may become of whom."""

from hypothesis import given
from hypothesis import strategies as st

from lib.drivers.membership import CHANGES, HERE, PAUSED, Members

STANDINGS = {"in", "resuming", "paused", "left out", "away", "joining", "gone"}


def after(*changes):
    """What has become of worker 1 of three."""
    members = Members.of(3)
    for change in changes:
        members = members.after(1, change)
    return members


def test_a_worker_dies_comes_back_and_is_waited_for_from_its_first_question_on():
    assert after("dies").awaited == after("dies").active == {0, 2}
    back = after("dies", "comes back")
    assert back.joining == {1} and back.awaited == {0, 2}
    assert after("dies", "comes back", "comes in") == Members(("in",) * 3, (0, 1, 0))


def test_what_is_of_an_earlier_life_is_told_by_the_life():
    assert Members.of(2).after(0, "dies").generations == (1, 0)
    assert Members.of(2).with_generation(0, 3).after(0, "dies").generations == (4, 0)
    assert Members.of(2).with_generation(1, 3).with_zero_generations() == Members.of(2)


def test_who_pauses_takes_part_and_may_be_left_out_until_the_cut():
    assert after("pauses").paused == {1} and after("pauses").awaited == {0, 2} and after("pauses").active == {0, 1, 2}
    assert after("pauses", "goes unawaited").left_out == {1} and not after("pauses", "goes unawaited").paused
    goes_on = after("pauses", "goes unawaited").with_all_resuming()
    assert goes_on.awaited == {0, 1, 2} and set(goes_on.standing) == {"resuming"}
    assert after("dies").with_all_resuming().awaited == {0, 2} and after("leaves").with_all_resuming().awaited == {0, 2}


def test_a_message_that_a_dead_worker_had_sent_changes_nothing():
    for late in ("pauses", "leaves", "comes in", "goes unawaited"):
        assert after("dies", late) == after("dies")
    assert after("dies", "comes back", "pauses") == after("dies", "comes back")


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([*CHANGES]))))
def test_each_is_in_one_standing_whatever_happens(changes):
    members = Members.of(3)
    for rank, change in changes:
        before, members = members, members.after(rank, change)
        assert [other for other in range(3) if members.standing[other] != before.standing[other]] in ([], [rank])
        assert members.awaited | members.paused | members.left_out == members.active
        assert not members.active & members.joining and members.generations[rank] >= before.generations[rank]
    assert {*members.standing} <= STANDINGS and not HERE & PAUSED


def test_who_dies_in_a_pause_takes_part_no_more():
    members = after("pauses", "dies")
    assert members.active == members.with_all_resuming().active == {0, 2}
    left_out = after("pauses", "goes unawaited", "dies")
    assert left_out.active == {0, 2} and left_out.standing[1] == "away"


def test_a_worker_that_has_paused_or_joins_may_leave():
    for before in (["pauses"], ["pauses", "goes unawaited"], ["dies", "comes back"], []):
        assert after(*before, "leaves").standing == ("in", "gone", "in"), before
