import base64
import dataclasses
import json
import math
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from lib.errors import BadOption, UnknownName
from lib.protocols import ALL
from reports import markup, palette, plots
from reports.claims import Verdict, judge
from reports.notebook_output import differences
from tests.reports.test_claims import CALIBRATION, GOOD, claim, results_of
from tests.reports.test_judge import five, table


def test_a_figure_has_words_and_numbers(house, runs):
    data, name = plots.histories(runs), "gba/figure_1/auc"
    html = plots.show(plots.curves(data, y="auc"), data, name=name, caption="C & c.", alt='A "rise".').html
    place = house.reports / "interactive" / "gba" / "figure_1"
    assert 'alt="A &#34;rise&#34;."' in html and "C &amp; c." in html
    saved = pd.read_csv(place / "auc.csv")
    offered = re.search(r'href="data:text/csv;base64,([^"]+)" download="auc.csv"', html)[1]  # works in JupyterLab
    assert base64.b64decode(offered) == (place / "auc.csv").read_bytes()
    assert len(saved) == 12 and saved["auc"].dropna().tolist() == pytest.approx([0.5, 0.7, 0.5, 0.71] * 2)
    embedded = re.search(r"png;base64,([^\"]+)", html)[1]
    assert base64.b64decode(embedded) == (place / "auc.png").read_bytes()


def test_what_was_found_is_a_runs_own_or_for_a_short_run_what_is_published(house):
    house.notebook("gba/one", "# One")
    house.claims(GOOD, "gba")
    own = house.record(results_of(0.2), "gba/one", "laptop")
    html = plots.found(own, "a.b").html
    assert "<p>Found:</p>" in html and "Better. Found: 100 %" in html and "published" not in html
    short = [dataclasses.replace(verdict, profile="smoke") for verdict in own]
    assert plots.found(short, "a.b").html == "", "nothing is published"
    shutil.copytree(house.reports / "claims", house.root / "reports" / "reference" / "claims")
    assert "Found, as published" in plots.found(short, "a.b").html
    with pytest.raises(UnknownName, match=r"a\.c"):
        plots.found(own, "a.c")
    assert str(plots.found([], "a.b")) == "", "of runs that are not judged"


def test_equal_figures_are_equal_bytes(runs):
    data = plots.histories(runs)
    first, second = (plots.png(plots.curves(data, y="auc")) for _ in range(2))
    assert first == second
    assert not re.search(rb"tEXt|Software|matplotlib|tIME", first)


@pytest.mark.filterwarnings("error")
def test_panels_stand_over_numbers_or_over_words():
    data = pd.DataFrame({"rate": [1, 3], "best": [0.5, 0.6], "protocol": "gba", "task": "clicks", "all": ""})
    for rate in (data["rate"], ["1", "3"]):
        fig = plots.panels(data.assign(rate=rate), x="rate", y="best", row="task", column="all")
        assert fig.axes[0].lines[0].get_ydata().tolist() == [0.5, 0.6]


@pytest.mark.filterwarnings("error")
def test_a_panel_of_what_was_not_measured_stays_empty():
    data = pd.DataFrame({"rate": [1, 3], "best": [0.5, 0.6], "protocol": "gba", "task": ["a", "b"], "of": ["c", "d"]})
    fig = plots.panels(data, x="rate", y="best", row="task", column="of")
    assert [len(ax.lines) for ax in fig.axes] == [1, 0, 0, 1]


@pytest.mark.parametrize(("field", "word"), [("caption", "caption"), ("alt", "alternative text")])
def test_a_figure_without_words_is_refused(house, runs, field, word):
    given = {"name": "a/b", "caption": "c", "alt": "a", field: " "}
    data = plots.histories(runs)
    with pytest.raises(BadOption, match=word):
        plots.show(plots.curves(data), data, **given)


@pytest.mark.parametrize("name", ["b", "a/b/c/d", "../a/b", "a/../b", "/a/b", "a//b", "a/.", ""])
def test_a_figure_belongs_to_a_notebook(house, runs, name):
    data = plots.histories(runs)
    with pytest.raises(BadOption, match="figure name"):
        plots.show(plots.curves(data), data, name=name, caption="c", alt="a")


def test_axes_say_which_seconds(runs):
    for seconds in ("virtual", "wall"):
        assert plots.curves(plots.histories(runs), seconds=seconds).axes[0].get_xlabel() == f"{seconds} seconds"
    assert plots.gantt(plots.traces({"gba": runs["gba"][0]}), "wall").axes[-1].get_xlabel() == "wall seconds"


def test_virtual_and_wall_are_never_mixed(runs):
    runs["gba"][1].summary["clock"] = "wall"
    with pytest.raises(BadOption, match="virtual and wall"):
        plots.histories(runs)


def test_an_unknown_column(runs):
    with pytest.raises(UnknownName, match="did you mean 'auc'"):
        plots.curves(plots.histories(runs), y="acu")


def test_traces_are_the_first_workers_in_the_window(runs):
    table = plots.traces({"gba": runs["gba"][0]}, workers=2, until=1.5)
    assert table[["node", "end"]].values.tolist() == [["worker0", 1.0], ["worker2", 1.5]]
    assert plots.traces({"gba": runs["gba"][0]})["node"].unique().tolist() == ["worker0", "worker10", "worker2"]


def test_protocols_look_alike_everywhere_and_unlike_each_other():
    known = palette.protocols()
    assert len({*known.values()}) == len(known) and known.keys() >= {*ALL} - {"pair"}
    assert plots.colour("gba(iota=4)") == plots.colour("gba") == known["gba"]
    assert plots.colour("bsp-4k") == known["bsp"] and plots.colour("hop-bs-2") == known["hop-bs"]
    assert plots.colour("DS-Sync, naive") == plots.colour("ds-sync") != plots.colour("BSP")
    assert plots.colour("BSP") == plots.colour("all-reduce")
    assert plots.colour("mine") == plots.colour("mine")
    own = {plots.colour(name)[0] for name in ("mine", "fresh", "mine.py:Mine", "my-rule")}
    assert own == {*palette.OWN} and not own & {tone for tone, _ in known.values()}
    assert len(set(plots.shades("bsp", 4))) == 4


def test_names_in_a_protocols_colour_can_be_read_on_white():
    """A contrast of 4.5 to 1, as accessibility asks of text."""

    def light(colour):
        parts = (x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in to_rgb(colour))
        return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), parts, strict=True))

    for name, (tone, _) in palette.protocols().items():
        assert 1.05 / (light(tone) + 0.05) >= 4.5 or name == "frozen", name


def test_what_the_paper_has_is_hollow_and_what_is_predicted_a_line():
    data = pd.DataFrame(
        {"protocol": "gba", "seed": [0, 1, 0, 1], "n": [1, 1, 2, 2], "qps": [1.0, 3.0, 2.0, 4.0], "at": "a"}
    )
    paper = pd.DataFrame({"protocol": ["gba"], "n": [2], "qps": [5.0], "at": "a"})
    predicted = data[data["seed"] == 0]
    curves = plots.curves(data, "n", "qps", predicted=predicted)
    panels = plots.panels(data, "n", "qps", row="at", column="at", paper=paper, predicted=predicted)
    for fig in (curves, panels):
        tone = plots.colour("gba")[0]
        lines = [line for line in fig.axes[0].lines if len(line.get_xdata())]
        hollow = [line for line in lines if line.get_markerfacecolor() == "none"]
        assert [line.get_ydata().tolist() for line in hollow] == [[5.0]] * (fig is panels)
        assert all(line.get_markeredgecolor() == tone for line in hollow)
        (line,) = [line for line in lines if line.get_linestyle() != "None"]
        assert line.get_ydata().tolist() == [1.0, 2.0] and line.get_color() == tone
        words = [text.get_text() for text in (fig.legends or [fig.axes[0].get_legend()])[0].get_texts()]
        assert words == ["gba", "measured", "predicted", *["the paper"] * (fig is panels)]


@pytest.mark.parametrize("index", [["sync", "gba"], [7, 3]])
def test_names_of_rows_are_shown_and_counts_of_rows_are_not(index):
    html = plots.table(pd.DataFrame({"auc": [0.5, 0.75]}, index=index)).html
    named = ["sync", "0.50", "gba", "0.75"]
    assert re.findall(r"<td[^>]*>([^<]*)</td>", html) == (named if "gba" in index else named[1::2])


def test_a_table_has_no_raw_numbers():
    data = pd.DataFrame({"task": ["a", "b"], "auc": [0.731234567, None], "n": [1200, 3], "qps": [0.25, 1.0]})
    html = plots.table(data.set_index("task"), "Told.").html
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", html)
    assert cells == ["a", "0.7312", "1\u202f200", "0.25", "b", "–", "3", "1.00"]
    assert ">AUC</th>" in html and "Told." in html and "NaN" not in html


def test_the_provenance_card_says_what_is_shared_once(runs, house, monkeypatch):
    house.notebook("x", parameters='profile: str = "smoke"  # size\nseeds: int = 3  # how many')
    card = plots.provenance_card(runs, "x")
    assert card.html.count("abc") == 1 and "sync; gba" in card.html and "0; 1" in card.html
    assert "<code>lockstep run x --profile smoke</code>" in card.html and "d" * 16 in card.html
    monkeypatch.setenv("LOCKSTEP_COMMAND", "lockstep run x -p seeds=5")
    assert "seeds=5" in plots.provenance_card(runs["gba"][0], "x").html


def test_provenance_of_several_tasks_says_of_each_what_differs():
    """Three tasks of eight worlds each stood there twenty-four times in full."""
    both = ({"name": "a", "batch_size": 8}, {"name": "b", "batch_size": 9})
    tasks = [{**task, "world": world} for task in both for world in (5, 6, 7)]
    shared, differing = differences([{"workload": task, "clock": "virtual"} for task in tasks])
    assert shared == {"workload a": {"batch_size": 8}, "workload b": {"batch_size": 9}, "clock": "virtual"}
    assert differing == {"workload": "a; b", "workload a, world": "5 to 7", "workload b, world": "5 to 7"}


def test_every_verdict_is_shown_alike():
    rows = [Verdict(claim=claim(id=f"c.{i}"), word=word) for i, word in enumerate(("contradicted", "reproduced"))]
    html = plots.verdicts([*rows, Verdict(claim=claim(), word="reproduced", remarks=("its rule is new",))]).html
    assert html.count("<tr>") == 4 and '<span class="changed">its rule is new</span>' in html
    assert html.index("c.0") < html.index("c.1") and "the paper&#39;s claim" in html


def test_cases_stand_below_their_claim():
    """A row for the claim, one for each case with its own verdict, numbers, picture and the paper's figure."""
    cases = claim(subject="{case}", cases={"a": 2.0, "b": "more"})
    found = judge(cases, table(a=five(5), b=five(2), y=[0] * 5))
    html = plots.verdicts([found]).html
    assert html.count("<tr>") == 4 and html.count("<svg") == 1, "the paper has no number for b"
    assert re.findall(r'<span class="verdict ([a-z-]+)"', html) == ["other-size", "other-size", "reproduced"]
    assert "larger" in html and ">more</td>" in html and "250 % [240, 260] of the paper&#39;s effect" in html
    assert "5.00 [4.80, 5.20]" in html and "a other size larger | 5.00" in repr(plots.verdicts([found]))


def test_what_is_claimed_shows_rules_and_calibrations(house):
    house.claims(GOOD)
    (house.notebooks / "calibrations.yaml").write_text(CALIBRATION)
    html = plots.claims("one").html
    assert "50 to 200 % of the paper&#39;s" in html and "lib.seeds.JUDGING.start" in html
    assert "auc of g* and s*" in html and "Tab. 5" in html


def test_intervals_of_one_row_have_no_column_that_is_not_there():
    """pandas takes a list as long as the rows for their groups."""
    with pytest.raises(KeyError, match="subject"):
        plots.intervals(pd.DataFrame({"seed": [1], "auc": [0.7]}), ["auc"])


def test_intervals():
    results = pd.DataFrame({"subject": ["b"] * 3 + ["a"], "seed": [0, 1, 2, 0], "auc": [0.1, 0.2, 0.3, 0.5]})
    text = repr(plots.intervals(results, ["auc"]))
    assert text.endswith("protocol | AUC | seeds\nb | 0.2 ± 0.2 | 3\na | 0.5000 | 1")


def test_markup_in_values_is_text():
    assert "<b>" not in plots.settings(x="<b>").html
    assert "<b>" not in markup.parts().table(["<b>"], [["<b>"]], "<b>")


def test_numbers():
    assert [markup.number(x) for x in (None, math.nan, True, "x")] == ["–", "–", "True", "x"]
    assert [markup.number(x) for x in (0.6, 0.0, -0.00575, 2.3456)] == ["0.6", "0", "−0.00575", "2.346"]
    assert [markup.number(x) for x in (1e-8, 1234567)] == ["1.00 × 10⁻⁸", "1\u202f234\u202f567"]


def test_what_is_no_protocol_has_a_colour_of_its_own_in_a_figure():
    codecs = ["fp32", "fp16", "int8", "sign", "top-k"]
    assert len({tone for tone, _ in plots.colours(codecs).values()}) == len(codecs)
    assert plots.colours(["gba", "x", "y"])["gba"] == plots.colour("gba")
    assert plots.colours(["mine"]) == {"mine": plots.colour("mine")}, "as on every other page"


def test_no_notebook_has_colours_of_its_own_for_protocols():
    """They come from one table, by `plots.colour` and `plots.shades`; greys and black are for what is no protocol."""
    own = re.compile(
        r"plots\.(BLUE|VERMILLION|GREEN|PINK|ORANGE|SKY)\b|#(?!EEEEEE)[0-9A-Fa-f]{6}\b|color=\"(?!black|gray)\w+\""
    )
    folder = Path(__file__).parents[2] / "notebooks"
    found = set()
    for path in [*folder.glob("*.ipynb"), *folder.glob("[!.]*/*.ipynb")]:
        code = "".join("".join(c["source"]) for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code")
        found |= {path.stem} if own.search(code) else set()
    assert not found
