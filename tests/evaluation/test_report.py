"""The page: what a browser would make of it."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from evaluation import world
from tellapart.evaluation import cards, report
from tellapart.html import read
from tellapart.metrics import descriptions

HOSTILE = "<script>alert(1)</script> \"' onload='x' {grids} &lt;"


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.elements, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.texts.append(data)

    def of(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def page(tmp_path):
    def write(*grids):
        report.write(grids, [grid.differences() for grid in grids], tmp_path / "report.html")
        return Page((tmp_path / "report.html").read_text(encoding="utf-8"))

    return write


def test_every_model_stands_beside_every_photo(tmp_path, grid, page):
    data = world.make(tmp_path / "w", 40)
    exact, vague = world.exact_and_vague(data, "the")
    found = page(grid(data, {"exact": exact, "vague": vague}, retrievers=("word", "judge"), human=True))
    articles = [article for article in found.of("article") if "data-kinds" in article]
    assert len(articles) >= 24 + 1
    assert [article["data-kinds"].split().count("0") for article in articles].count(1) == 24
    pictures = [element for element in found.of("span") if element.get("role") == "img"]
    pairs = [element for element in found.of("div") if element.get("class") == "pair"]
    # the photo and its look-alikes; those whose words earn most; those that one alone identifies, and what is picked
    assert len(pictures) == 6 * len(articles) + 3 + 2 * len(pairs)
    text = "".join(found.texts)
    assert "24 photos drawn by chance" in text
    assert "vague: the largest changes of rank against exact, by judge" in text
    assert text.count("data:image/webp;base64,") == 40  # each photo once
    assert "exact, 1: 100" in text  # all are the first
    assert "independent only of captions" in text
    assert "100.0 to 100.0" in text  # the interval of what is always right
    assert found.of("td")[0] == {}


def test_every_column_is_explained_by_a_tooltip_and_below_the_table(tmp_path, grid, page):
    data = world.make(tmp_path / "w", 30)
    exact, vague = world.exact_and_vague(data, "the")
    found = page(grid(data, {"exact": exact, "vague": vague}, retrievers=("word", HOSTILE), human=True))
    titles = [element["title"] for element in found.of("abbr")]
    text = "".join(found.texts)
    for column in ("TT R@1", "Prec", "CIDEr-D", "R@1[word]", f"R@1[{HOSTILE}]", "UniCap", "Rep", "BadEnd", "AvgLen"):
        meaning = descriptions.explained(column)
        assert meaning
        assert meaning in titles, column
        assert meaning in text, column
    assert all(titles)
    assert len(found.of("dt")) == len(found.of("dd")) == 9 + 6  # the main ones, and those that were asked for


def test_the_page_says_in_plain_words_what_was_found_and_which_figure_to_believe(tmp_path, grid, page):
    data = world.make(tmp_path / "w", 30)
    exact, vague = world.exact_and_vague(data, "the")
    measured = grid(data, {"exact": exact, "vague": vague}, retrievers=("word", "judge"))
    text = "".join(page(measured).texts)
    above = text.partition("All ")[0]
    tt, prec = (round(100 * measured.scores["vague"][name]) for name in ("TT R@1", "Prec"))
    assert f"Of 100 captions, so many lead a reader to the right one of the 30 photos: exact 100, vague {tt}." in above
    assert f"Of 100 content words, so many are people's words for the photo too: exact 100, vague {prec}." in above
    assert "R@1[judge], believe TT R@1: it is the one that people win." in above


def test_a_page_for_everybody_opens_with_photos_that_show_the_difference(tmp_path, grid):
    """Two of ten captions say where; one of these says it wrong, of the others every second one says nothing new."""
    data = world.make(tmp_path / "w", 10)
    exact, vague = world.exact_and_vague(data, "the")
    ours = vague | {7: exact[7], 4: "a tree on the moon"}
    measured = grid(data, {"vague": vague, "ours": ours})
    report.write([measured], [measured.differences()], tmp_path / "page.html", examples=10, first=6)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.index('<div class="cards">') < text.index('<table class="sortable">')
    files = re.findall(r'<figcaption class="file" dir="auto">([^<]+)</figcaption>', text)
    assert len(files) == 10
    assert files[0] == world.records_of(data)[7]["file"]
    shown = re.findall(r'<article data-kinds="([^"]*)"', text)
    assert [own.split().count("0") for own in shown] == [1] + 9 * [0]  # what is shown when it is opened
    assert '<option value="0" selected>' in text
    assert "1 of 10 photos, chosen by figures: ours says something else than vague" in text
    assert "the other 9 too, mistakes among them" in text


def test_a_page_of_captions_without_any_clear_difference_shows_them_all(tmp_path, grid):
    data = world.make(tmp_path / "w", 10)
    _, vague = world.exact_and_vague(data, "the")
    measured = grid(data, {"vague": vague, "same": vague})
    report.write([measured], [measured.differences()], tmp_path / "page.html", examples=10, first=6)
    assert " selected>" not in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_behind_a_caption_is_its_place_by_text_to_text_first(tmp_path, grid, page):
    data = world.make(tmp_path / "w", 12)
    exact, vague = world.exact_and_vague(data, "the")
    records = world.records_of(data)
    records[3]["captions"] = records[3]["captions"][:1]  # people's own caption of it cannot be compared with another
    world.write(data, records)
    measured = grid(data, {"exact": exact, "vague": vague}, human=True)
    found = page(measured)
    heads = [element for element in found.of("abbr") if "place" in element["title"]]
    assert len(heads) == 2 * 12
    assert "only reads" in heads[0]["title"]
    assert "sees the photos" in heads[1]["title"]
    assert measured.rows["exact"].places()["TT"] == dict.fromkeys(range(12), 1)
    assert 3 not in measured.rows["human"].places()["TT"]


def test_what_words_earn_and_weigh(tmp_path, grid):
    data = world.make(tmp_path / "w", 60)
    exact, vague = world.exact_and_vague(data, "the")
    measured = grid(data, {"vague": vague, "exact": exact}, human=True)

    report.write([measured], [measured.differences()], tmp_path / "page.html")
    text = "".join(Page((tmp_path / "page.html").read_text(encoding="utf-8")).texts)
    for title in ("What words earn", "What n-grams weigh"):
        assert title in text
    assert "By the references of these photos. The thresholds λ = 5 and η = 1 are the defaults." in text
    # log(60 photos / 6 that have the word), a reference's share of it: the weight that the formula gives "cat"
    assert f"{np.log(60 / 6):.2f}" in text


def test_texts_from_anybody_are_texts(tmp_path, grid, page):
    data = world.make(tmp_path / "w", 5, name=HOSTILE)
    exact, _ = world.exact_and_vague(data, "the")
    found = page(grid(data, {HOSTILE: dict.fromkeys(exact, HOSTILE), "b": exact}, retrievers=(HOSTILE,)))
    assert len(found.of("script")) == 1  # ours
    assert "".join(found.texts).count(HOSTILE) >= 7
    attributes = {key for _, own in found.elements for key in own}
    assert not [key for key in attributes if key.startswith("on") or key in ("src", "href", "style")]
    policy = next(meta["content"] for meta in found.of("meta") if "http-equiv" in meta)
    digest = base64.b64encode(hashlib.sha256(read(cards.SCRIPT).encode()).digest()).decode()
    assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_a_photo_that_went_away_and_one_without_a_look_alike(tmp_path, grid, page):
    data = world.make(tmp_path / "w", 1)
    measured = grid(data, {"a": {0: "a cat"}})
    (data.parent / "cat-street.png").unlink()
    found = page(measured)
    assert not [element for element in found.of("span") if element.get("role") == "img"]
    assert "no picture: there is no such file" in "".join(found.texts)


def test_examples_are_drawn_alike_every_time(tmp_path, grid):
    data = world.make(tmp_path / "w", 40)
    exact, vague = world.exact_and_vague(data, "the")
    pages = []
    for number in range(2):
        measured = grid(data, {"exact": exact, "vague": vague})
        report.write([measured], [measured.differences()], tmp_path / f"{number}.html")
        pages.append((tmp_path / f"{number}.html").read_bytes())
    assert pages[0] == pages[1]


def test_the_largest_changes_are_by_how_many_times_a_place_changed():
    ours = {0: 1, 1: 100, 2: 5, 3: 50, 4: 7}
    theirs = {0: 10, 1: 10, 2: 5, 3: 60, 4: 6}
    assert cards._changes(ours, theirs) == [0, 3, 1, 4]
