"""Cards: what is marked in a caption, and what a person can do with a list of them in a browser.

And which photos a page may open with.
"""

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from markupsafe import Markup
from PIL import Image

from support import browser
from support.clips import write_clip
from tellapart.evaluation import cards
from tellapart.evaluation.cards import Card, Columns, Kind, Line, Order, Pictures, WordRegions, clarity, positions
from tellapart.html import render_page


def said(caption, of_look_alikes=(), references=(), regions=None):
    """The caption as HTML."""
    line = Line("x", caption, frozenset(of_look_alikes), regions=regions)
    html = cards.section([Card(Path("x.png"), [], [line], references)], NoPictures(), Columns([]))
    return re.search(r'<td class="said" dir="auto">(.*?)</td>', html)[1]


class NoPictures:
    style = ""

    def show(self, file, long_side=0):
        return ""


def test_words_that_are_said_of_no_look_alike_are_marked_and_carry_what_they_rest_on():
    html = said("a red bus on a bridge", ["a", "bus", "on", "street"], ["A bus crosses a bridge."])
    assert html == 'a <mark class="untold">red</mark> bus on a <mark class="told">bridge</mark>'
    assert said("a red bus", ["bus"]) == 'a <mark class="own">red</mark> bus'  # nobody said whether it is true
    regions = WordRegions(["0000", "9310"])
    html = said("the bus", regions=regions)
    assert html == '<span data-at="0000">the</span> <mark class="own" data-at="9310">bus</mark>'
    assert said("the old bus", ["old", "bus"], regions=regions) == "the old bus"  # they are of other words
    assert "<script" not in said("<script>x</script>").replace("&lt;script", "")


def test_a_photo_is_in_the_page_once_and_in_full_size_if_it_has_a_card(tmp_path):
    for name, colour in (("one", "red"), ("two", "blue")):
        Image.new("RGB", (800, 400), colour).save(tmp_path / f"{name}.png")
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    pictures = Pictures()
    html = cards.section([Card(one, [two], []), Card(two, [one], [])], pictures, Columns([]))
    assert pictures.style.count("data:image/webp") == 2
    assert html.count('aria-label="one.png"') == html.count('aria-label="two.png"') == 2
    alone = Pictures()
    cards.section([Card(one, [two], [])], alone, Columns([]))
    assert len(alone.style) < len(pictures.style)


@pytest.fixture(scope="module")
def tab():
    if not browser.CHROMIUM:
        pytest.skip("Chromium is not installed")
    with browser.tab() as opened:
        yield opened


def whole(body, *, style="", scripts=(cards.SCRIPT,)):
    styles = (cards.TABLES, cards.STYLE)
    return render_page("page/page.html", title="T", body=body, styles=styles, more_style=style, scripts=scripts)


WORDS = ["bus", "boat", "cat", "dog"]


@pytest.fixture
def opened(tab, tmp_path):
    """Four photos; the boat and the cat are of the kind that is shown at first, and the dog is best by the order."""
    made = []
    for number, word in enumerate(WORDS):
        file = tmp_path / f"{number} <b>.png"
        Image.new("RGB", (300, 200), (60 * number, 100, 90)).save(file)
        looked = WordRegions(["0000", "0009"])
        made.append((file, Line("model", f"a {word}", frozenset({"a"}), {"judge": 4.0 - number}, looked)))
    files = [file for file, _ in made]
    listed = [Card(file, [one for one in files if one != file], [line], [f"the {line.caption}"]) for file, line in made]
    pictures = Pictures()
    body = cards.section(
        listed,
        pictures,
        Columns(["judge"], frozenset({"judge"}), "place by"),
        orders=[Order("rank", [4, 3, 2, 1])],
        kinds=[Kind("at sea & home", frozenset({1, 2}), at_first=True)],
    )
    table = (
        '<table class="sortable"><thead><tr><td></td><th>R@1</th></tr></thead><tbody>'
        '<tr><th>low</th><td data-value="1">1</td></tr><tr><th>none</th><td></td></tr>'
        '<tr><th>high</th><td data-value="10">10</td></tr></tbody></table>'
    )
    page = tmp_path / "page.html"
    page.write_bytes(whole(Markup(table) + body, style=pictures.style))
    tab.problems.clear()
    tab.open(page)
    yield tab
    assert tab.problems == []


def shown(tab):
    """The last words of the captions that can be seen, from top to bottom."""
    return tab.run(
        "[...document.querySelectorAll('article')].filter(one => one.getBoundingClientRect().height)"
        ".sort((a, b) => a.getBoundingClientRect().y - b.getBoundingClientRect().y)"
        ".map(one => one.querySelector('td.said[dir]').textContent.split(' ')[1])"
    )


def choose(tab, name, value):
    tab.run(
        f"(() => {{ const one = document.querySelector('[name={name}]'); one.value = {value!r};"
        " one.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


def test_a_list_is_narrowed_down_sorted_and_searched(opened):
    assert shown(opened) == ["boat", "cat"]
    assert opened.run("document.querySelector('output').value") == "2 of 4 photos"
    choose(opened, "kind", "")
    assert shown(opened) == WORDS
    choose(opened, "order", "0")
    assert shown(opened) == WORDS[::-1]
    choose(opened, "search", "THE  bO")
    assert shown(opened) == ["boat"]
    choose(opened, "search", "<b> 3")
    assert shown(opened) == ["dog"]
    choose(opened, "search", "")
    choose(opened, "order", "")
    assert shown(opened) == WORDS


def test_a_word_that_is_pointed_at_shows_what_it_rests_on(opened):
    card = "article:not([hidden])"
    painted = (
        "(() => { const one = document.querySelector('article:not([hidden]) canvas');"
        " const data = one.getContext('2d').getImageData(0, 0, one.width, one.height).data;"
        " return [...data].filter((_, n) => n % 4 == 3); })()"
    )
    opened.point(f"{card} mark[data-at]")
    assert opened.run(painted) == [0, 0, 0, 205]
    opened.point("h1")
    assert opened.run(painted) == [0]
    opened.point(f"{card} mark[data-at]", click=True)
    opened.point("h1")
    assert opened.run(painted) == [0, 0, 0, 205]
    opened.point("h1", click=True)
    assert opened.run(painted) == [0]


def test_a_click_on_a_head_sorts_a_table_the_largest_first(opened):
    names = "[...document.querySelectorAll('.sortable tbody th')].map(one => one.textContent)"
    opened.point(".sortable thead th", click=True)
    assert opened.run(names) == ["high", "low", "none"]
    opened.point(".sortable thead th", click=True)
    assert opened.run(names) == ["low", "high", "none"]


def test_tools_that_are_folded_open_by_a_click_where_scripts_run(tab, tmp_path):
    lines = [Line("model", f"a {word}") for word in WORDS[:2]]
    listed = [Card(tmp_path / f"{line.caption}.png", [], [line]) for line in lines]
    body = cards.section(listed, Pictures(), Columns([]), orders=[Order("turned", [2, 1])], fold="All & sorted")
    page = tmp_path / "page.html"
    for script, visible in (([cards.SCRIPT], True), ([], False)):
        page.write_bytes(whole(body, scripts=script))
        tab.open(page)
        assert (tab.run("document.querySelector('summary').getBoundingClientRect().height") > 0) == visible
        assert shown(tab) == WORDS[:2]
        if visible:
            assert tab.run("document.querySelector('select').checkVisibility()") is False
            tab.point("summary", click=True)
            assert tab.run("document.querySelector('select').checkVisibility()") is True
            choose(tab, "order", "0")
            assert shown(tab) == WORDS[1::-1]
    assert tab.problems == []


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_all_of_it(opened, tmp_path, dark):
    opened.open(tmp_path / "page.html", width=360, height=740, dark=dark)
    assert opened.run("document.documentElement.scrollWidth") <= 360
    light = opened.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
    assert (light < 60) == dark
    box = "document.querySelector('article:not([hidden]) .own .picture').getBoundingClientRect()"
    assert opened.run(f"{box}.width / {box}.height") == pytest.approx(1.5, abs=0.02)


def test_of_a_clip_frames_stand_above_captions_whose_words_the_references_have_or_not(tmp_path):
    colours = [np.full((48, 64, 3), value, np.uint8) for value in (10, 60, 110, 160, 210, 250)]
    clip = write_clip(tmp_path / "a.mkv", [frame for frame in colours for _ in range(5)], codec="ffv1")
    pictures = Pictures()
    line = Line("run", "a dog runs", frozenset({"dog"}))
    html = cards.section([Card(clip, [], [line], ["a dog jumps"])], pictures, Columns([]))
    assert "<article class=clip" in html
    assert 'a <span class="in">dog</span> <mark class="untold out">runs</mark>' in html
    data = base64.b64decode(re.search(r"base64,([^\"]*)", pictures.style)[1])
    strip = np.asarray(Image.open(io.BytesIO(data)).convert("L"), float)
    found = [strip[24, round((place + 0.5) * strip.shape[1] / 6)] for place in range(6)]
    np.testing.assert_allclose(found, [10, 60, 110, 160, 210, 250], atol=6)


def test_a_strip_tells_how_much_of_the_colours_changes_at_most(tmp_path):
    left, right = np.zeros((2, 48, 64, 3), np.uint8)
    right[:12] = 255  # a quarter
    still = write_clip(tmp_path / "a.mkv", [left] * 12, codec="ffv1")
    cut = write_clip(tmp_path / "b.mkv", [left] * 6 + [right] * 6, codec="ffv1")
    pictures = Pictures()
    assert [pictures.strip(clip)[1] for clip in (still, cut)] == [0.0, 0.25]
    (tmp_path / "c.mkv").write_bytes(b"no clip")
    assert pictures.strip(tmp_path / "c.mkv")[0].startswith('<span class="none">no picture: ')


PEOPLE = ["A blue train stops at the station.", "People wait for a train."]


def judged(ours, plain="a train on the tracks", *, alike=(), references=PEOPLE, places=(1, 4), gain=0.5):
    lines = [
        Line("plain", plain, figures={"TT": places[1]} if places else {}),
        Line("ours", ours, frozenset(alike), {"TT": places[0]} if places else {}),
    ]
    return clarity(Card(Path("x.png"), [], lines, references), "ours", "plain", by="TT", gain=gain)


CLEAR = judged("a blue train at the station")


def test_a_caption_that_differs_is_right_and_found_is_clear():
    assert CLEAR.is_clear
    assert judged("a blue train at the station", places=()).is_clear  # nobody read it


def test_what_a_page_must_not_open_with():
    same = judged("A train, on the tracks.")
    false = judged("a blue train with a helmet")
    known = judged("a blue train", alike=["blue"])  # said of a look-alike too
    nothing_new = judged("a train")
    lost = judged("a blue train at the station", places=(2, 1))
    worse = judged("a blue train at the station", gain=-0.1)
    unknown = judged("a blue train", references=[])
    for one in (same, false, known, nothing_new, lost, worse, unknown):
        assert not one.is_clear
        assert one < CLEAR
    assert positions([same, false, CLEAR, lost]) == [3, 2, 0, 1]


def test_among_clear_ones_those_come_first_that_tell_most_then_that_only_this_caption_finds_then_that_gain_most():
    fewer = judged("a blue train", gain=2)
    found_before = judged("a blue train at the station", places=(1, 1), gain=2)
    more = judged("a blue train at the station", gain=0.6)
    assert all(one.is_clear for one in (fewer, found_before, more))
    assert positions([fewer, found_before, CLEAR, more, CLEAR]) == [4, 3, 1, 0, 2]
