"""The answer on the front: who is told as one, which differences stand beside a share, and what is said where it is shown."""

from itertools import combinations

import pandas as pd
import pytest
from matplotlib.figure import Figure

from lib.protocols import ALL
from notebooks import compare_figure
from reports import plots
from reports.palette import colour

SYNC, FROZEN = (0.80, 0.81, 0.82), (0.5, 0.5, 0.5)


def modes(**of):
    """Of each protocol its samples per second and the AUC of three seeds."""
    of = {"sync": (1, SYNC), "frozen": (3, FROZEN)} | of
    rows = [(name, 1000 + seed, auc, qps) for name, (qps, found) in of.items() for seed, auc in enumerate(found)]
    return pd.DataFrame(rows, columns=["protocol", "seed", "auc", "qps"])


def less(by):
    return tuple(auc - by for auc in SYNC)


def test_protocols_whose_every_run_is_the_same_are_told_as_one():
    """The first in the families' order stands for them; a run that differs by an AUC of 10⁻⁹ is another."""
    once = (0.799, 0.81, 0.82)
    data = modes(bsp=(2, once), gba=(2, once), **{"s-easgd": (2, (0.799 - 1e-9, 0.81, 0.82))})
    assert compare_figure.identical(data) == {"sync": [], "gba": ["bsp"], "s-easgd": [], "frozen": []}
    first = compare_figure.answer(data)[0]
    assert "use gba: training is 2.00 ± 0.00× as fast" in first
    assert "In this test bsp is identical; gba is more careful." in first
    assert any("use either" in each for each in compare_figure.front(data)["about"])


def test_beside_a_share_stands_the_difference_paired_by_seed():
    """Differences of -0.02, -0.01 and -0.03: a mean of -0.02, and 4.303 x 0.01 / sqrt(3) = 0.025 to each side; of -0.001, 0.001
    and 0: 0 and 0.0025."""
    data = modes(gba=(2, (0.799, 0.811, 0.82)), **{"async": (3, (0.78, 0.80, 0.79))})
    first, _, third = compare_figure.answer(data)
    assert first.endswith("AUC is the same within noise (0.000 ± 0.002).")
    assert "with async" in third and third.endswith("AUC is the same within noise (−0.02 ± 0.02).")
    assert "Untrained, the AUC is 0.5" in compare_figure.front(data)["about"][1]


def test_who_loses_measurably_is_not_the_answer_even_if_it_is_the_fastest():
    """With the same loss on every seed, 0.1 % of what is learnt, async is out; with one that chance may explain it is in."""
    sure, maybe = less(0.0003), (0.80 - 0.0009, 0.81, 0.82 + 0.0003)
    assert "cluster, use gba:" in compare_figure.answer(modes(gba=(2, SYNC), **{"async": (3, sure)}))[0]
    assert "cluster, use async:" in compare_figure.answer(modes(gba=(2, SYNC), **{"async": (3, maybe)}))[0]
    assert "cluster, use sync:" in compare_figure.answer(modes(**{"async": (3, sure)}))[0]


def test_names_stand_on_no_mark_and_no_other_name():
    at = [(1, 1), (1.01, 1.01), (1.02, 1), (0, 0), (1, 0.98), (0.99, 1.02)]
    with plots.style():
        ax = Figure(figsize=(plots.WIDTH, 4)).subplots()
        ax.plot(*zip(*at, strict=True), "o")
        compare_figure.name_marks(ax, [f"protocol {place}" for place in range(5)], at, ["black"] * 5)
    boxes = [text.get_window_extent() for text in ax.texts if text.get_text()]
    marks = ax.transData.transform(at)
    assert len(boxes) == 5 and not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert not any(box.contains(*mark) for box in boxes for mark in marks)


@pytest.mark.parametrize(
    ("aucs", "told"),
    [
        (less(-0.002), "A measurably higher AUC than sync's there: gba."),
        ((0.81, 0.81, 0.82), "No protocol reaches a measurably higher AUC than sync there."),  # more, and not surely
        (less(0.001), "No protocol reaches a measurably higher AUC than sync there."),
    ],
)
def test_that_one_learns_more_than_another_is_said_where_it_is_shown(aucs, told):
    assert compare_figure.answer(modes(gba=(2, aucs)))[1].startswith(told)


def test_marks_have_their_familys_colour():
    data = modes(gba=(2, less(0.001)), **{"s-easgd": (1.5, less(0.01))})
    ax = compare_figure.figure(data).axes[0]
    marks = {line.get_color() for line in ax.get_lines() if line.get_marker() == "o" and len(line.get_xdata())}
    assert {colour("gba")[0], colour("s-easgd")[0]} < marks
    legend = [text.get_text() for text in compare_figure.figure(data).legends[0].get_texts()]
    assert legend == ["Synchronous", "Fixed-size global batch", "Averaging in the background"]


def test_what_the_answer_depends_on_leads_to_pages():
    measured, _, depends = compare_figure.front(modes(gba=(2, SYNC)))["about"]
    unmeasured = f"(not yet {len(ALL) - 6} newer ones and the single-device ones)"
    assert f"We measured 2 of {len(ALL) - 1} protocols {unmeasured}" in measured and "(90_compare)" in measured
    for page in ("gba/table_5_2_throughput", "02_regime", "03_what_decides", "gba/figure_6_learning_rates"):
        assert f"]({page})" in depends


def test_where_a_family_is_faster_slower_and_what_it_loses():
    """On a cluster with stragglers GBA is twice as fast as Sync and async three times; on a slow network both are slower."""
    speeds = {"stragglers": (1.0, 2.0, 3.0), "slow network": (1.0, 0.5, 0.8), "equal": (1.0, 1.04, 0.5)}
    protocols, aucs = ("sync", "gba", "async"), (0.8, 0.8, 0.79)
    rows = [
        (condition, *of)
        for condition, qps in speeds.items()
        for seed in (1, 2)
        for of in zip(protocols, [seed] * 3, qps, aucs, strict=True)
    ]
    data = pd.DataFrame(rows, columns=["condition", "protocol", "seed", "samples/s", "metric"])
    both = compare_figure.advice(data, ["gba", "async"])
    assert both == ("stragglers (3.0×)", "slow network (0.8×)", "−0.0100 to 0.0000")
    assert compare_figure.advice(data, ["gba"]) == ("stragglers (2.0×)", "slow network (0.5×)", "0.0000")
    assert compare_figure.advice(data, ["oac"]) == ("–", "–", "–")
    measured = compare_figure.measurements(data)
    assert measured["stragglers"]["async"] == [3.0, 3.0, 3.0, -0.01, -0.01, -0.01]
    assert [*measured["equal"]] == ["sync", "gba", "async"]
