"""The answer on the front: who is told as one, which differences stand beside a share, and what is said where it is shown."""

import pandas as pd
import pytest

from lib.reporting import families, picture
from lib.reporting.looks import GREEN, PINK

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
    data = modes(bsp=(2, less(0.001)), gba=(2, less(0.001)), **{"s-easgd": (2, less(0.001 + 1e-9))})
    assert picture.alike(data) == {"sync": [], "gba": ["bsp"], "s-easgd": [], "frozen": []}
    first = picture.answer(data)[0]
    assert "use gba (bsp: the same runs here): it trained 2 times" in first and "or" not in first.split()


def test_beside_a_share_stands_the_difference_paired_by_seed():
    """Differences of -0.02, -0.01 and -0.03: a mean of -0.02, and 4.303 x 0.01 / sqrt(3) = 0.025 to each side."""
    data = modes(gba=(2, less(0.001)), **{"async": (3, (0.78, 0.80, 0.79))})
    first, _, third = picture.answer(data)
    assert first.endswith("% of what sync learns (AUC less sync's: −0.00100).")
    assert "async" in third and "(AUC less sync's: −0.02 ± 0.02)" in third
    assert "100 % is what sync learns, 0 % an untrained model" in third


@pytest.mark.parametrize(
    ("aucs", "told"),
    [
        (less(-0.002), "Shown to learn more than sync: gba. Sync waits"),
        ((0.81, 0.81, 0.82), "No protocol is shown to learn more than sync, which waits"),  # more, and not surely
        (less(0.001), "No protocol is shown to learn more than sync, which waits"),
    ],
)
def test_that_one_learns_more_than_another_is_said_where_it_is_shown(aucs, told):
    assert picture.answer(modes(gba=(2, aucs)))[1].startswith(told)


def test_marks_have_their_familys_colour():
    data = modes(bsp=(2, less(0.001)), **{"s-ma": (1.5, less(0.01))})
    ax = picture.picture(data).axes[0]
    marks = {line.get_color() for line in ax.get_lines() if line.get_marker() == "o" and len(line.get_xdata())}
    assert {GREEN, PINK} < marks
    legend = [text.get_text() for text in picture.picture(data).legends[0].get_texts()]
    assert legend == ["All in step", "A global batch of whoever comes", "Replicas that average in the background"]


def test_what_the_answer_hangs_on_leads_to_pages():
    measured, hangs = families.about(2, lambda text, page: f"<{page}|{text}>")
    assert "<90_compare|The page `90_compare`> measured 2 of 33 protocols" in measured
    for page in ("gba/table_5_2_throughput", "02_regime", "03_what_decides", "gba/figure_6_learning_rates"):
        assert f"<{page}|" in hangs
