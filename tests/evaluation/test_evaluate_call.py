"""`tellapart.evaluate` in Python, with retrievers that see words instead of photos."""

import json

import pytest

import tellapart
from capscore.errors import UserError
from evaluation import world

QUICK = {"metrics": ["CIDEr-D", "AvgLen"], "retrievers": "judge"}


@pytest.fixture(autouse=True)
def words_for_photos(monkeypatch):
    world.words_for_photos(monkeypatch)


@pytest.fixture
def data(tmp_path):
    return world.make(tmp_path / "w", 12)


@pytest.fixture
def captions(tmp_path, data):
    """Every caption has five words; the name of the model would be a tag if it were not escaped."""
    path = tmp_path / "<b>mine.json"
    path.write_text(json.dumps(world.exact_and_vague(data)[0]))
    return path


def test_scores_are_by_data_set_and_model_and_nothing_is_left_behind(data, captions, tmp_path, capsys):
    before = sorted(tmp_path.rglob("*"))
    result = tellapart.evaluate([captions, "human"], data, **QUICK)
    assert result.scores["world"]["<b>mine"]["R@1[judge]"] == 1
    assert result.scores["world"]["<b>mine"]["AvgLen"] == 5
    assert set(result.scores["world"]) == {"<b>mine", "human"}
    assert result.problems == []
    assert sorted(tmp_path.rglob("*")) == before
    assert capsys.readouterr().out == ""  # a notebook shows what is returned


def test_a_notebook_shows_the_table_with_names_escaped(data, captions):
    result = tellapart.evaluate([captions, "human"], data, **QUICK)
    html = result._repr_html_()
    assert html.count("<table") == 1
    assert "&lt;b&gt;mine" in html
    assert "<b>mine" not in html
    assert "CIDEr-D" in str(result)
    assert repr(result) == "<Evaluation of <b>mine, human on world (12 photos)>"


def test_results_are_written_by_the_call_and_later(data, captions, tmp_path):
    seen = []
    result = tellapart.evaluate(captions, [data], out=tmp_path / "out", show=seen.append, **QUICK)
    assert seen == [result]
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == result.scores
    result.write(tmp_path / "later")
    for name in ("results.json", "details.json", "report.html", "world.qrels"):
        assert (tmp_path / "later" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"models": []}, "there is no model"),
        ({"data": []}, "there is no data file"),
        ({"retrievers": []}, "there is no retriever"),
        ({"photos": 0}, "photos must be 1 or more, not 0"),
        ({"photos": -3}, "photos must be 1 or more, not -3"),
    ],
)
def test_a_wrong_request_is_one_sentence(data, captions, wrong, message):
    with pytest.raises(UserError, match=message):
        tellapart.evaluate(**({"models": captions, "data": data} | QUICK | wrong))


def test_a_measure_that_cannot_run_here_is_found_before_a_photo_is_captioned(data, monkeypatch):
    """SPICE without its program ended the evaluation after all captions were made, without a table."""
    from capscore import spice
    from tellapart.evaluation import captions as made

    monkeypatch.setattr(spice, "available", lambda: "SPICE needs Java.")
    monkeypatch.setattr(made.Captioners, "check", lambda *_: pytest.fail("captioning begins"))
    with pytest.raises(UserError, match=r"^SPICE cannot be computed: SPICE needs Java\.$"):
        tellapart.evaluate("plain", data, metrics="CIDEr-D,SPICE", retrievers="judge")
