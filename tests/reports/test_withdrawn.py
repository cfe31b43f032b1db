"""What a page says of verdicts that are withdrawn: once, by name, and no mark of theirs is green."""

import pytest

from reports.withdrawn import with_withdrawn

OLD = '<section class="short" role="note"><p>Verdicts are withdrawn.</p></section>'


def pill(tag, verdict, link=""):
    return f'<{tag} class="verdict {verdict.replace(" ", "-")}"{link}>{verdict}</{tag}>'


def entry(name, verdict):
    anchor = f'<a class="anchor" href="#{name}" id="{name}"><code>{name}</code></a>'
    return f'<tbody class="entry k-paper">{pill("span", verdict)}{anchor}<td>one {pill("span", verdict)}</td></tbody>'


def page(box="", **verdicts):
    led = "".join(pill("a", verdict, f' href="#{name}"') for name, verdict in verdicts.items())
    return f"<main>{box}{led}{''.join(entry(*each) for each in verdicts.items())}</main>"


@pytest.fixture
def two():
    return page(a="replicated", b="direction only")


def test_a_page_whose_verdicts_stand_is_as_it_was(two):
    assert (
        with_withdrawn(two, {"a", "b"}) == two
        and with_withdrawn("<main>No claims.</main>", ()) == "<main>No claims.</main>"
    )


def test_the_box_says_which_verdicts_are_withdrawn_and_that_measurements_stand(two):
    told = with_withdrawn(two, {"b"})
    assert "1 of 2 verdicts of this page are withdrawn (<code>a</code>)" in told and "what was measured stands" in told
    assert "All 2 verdicts of this page are withdrawn (<code>a</code>, <code>b</code>)" in with_withdrawn(two, ())
    assert "The verdict of this page is withdrawn (<code>a</code>)" in with_withdrawn(page(a="kept"), ())


def test_no_mark_of_a_withdrawn_claim_is_green(two):
    """Above, where it leads to its claim, and thrice in its entry; the other's stay."""
    told = with_withdrawn(two, {"b"})
    assert 'class="verdict replicated"' not in told
    assert told.count('class="verdict not-run"') == told.count(">withdrawn: replicated<") == 3
    assert told.count('class="verdict direction-only"') == two.count('class="verdict direction-only"') == 3


def test_twice_is_once_and_what_was_said_before_is_gone(two):
    once = with_withdrawn(two, {"b"})
    assert with_withdrawn(once, {"b"}) == once and once.count('role="note"') == 1
    assert with_withdrawn(page(OLD + OLD, a="replicated", b="direction only"), {"b"}) == once


def test_a_claim_that_stands_again_has_its_verdict_back(two):
    assert with_withdrawn(with_withdrawn(two, ()), {"a", "b"}) == two
