"""The table of measures: complete, and as the documentation has it."""

import json
import re
from pathlib import Path

import pytest

from capscore import caption_files, scoring
from capscore.caption_files import TrainingCaptions
from capscore.errors import UserError
from capscore.measures import MEASURES, Measure, Score
from capscore.scoring import ScoringInputs
from capscore.statistics import mean_of
from tellapart.metrics import descriptions

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


@pytest.mark.parametrize("family", [name for name in MEASURES if name != "SPICE"])
def test_a_measure_computes_the_scores_that_it_names_and_signs_them(family):
    """Its names, needs and settings are said once; what it computes has to agree with them."""
    measure = MEASURES[family]
    if measure.missing():
        pytest.skip(measure.missing())
    captions = {1: ["a dog runs", "a dog"], 2: ["a red cat on a bed", "a cat"]}
    references = {1: ["a dog runs fast", "the dog"], 2: ["a cat sleeps", "a tabby"]}
    training = TrainingCaptions([["a", "dog", "runs"]])
    result = scoring.measure(captions, references, metrics=[family], training=training)
    (statistics,) = result.statistics
    assert statistics.names == measure.names
    assert all(result.signature[name].startswith(f"{name}|") for name in measure.names)
    assert all(score.description.endswith(".") for score in measure.scores)
    inputs = ScoringInputs(list(captions.values()), list(references.values()), training=training)
    if "references" not in measure.needs:  # then it may not look at them
        other = ScoringInputs(list(captions.values()), [[""], [""]], training=training)
        assert measure.compute(other).rows.tolist() == measure.compute(inputs).rows.tolist()
    assert ("refs" in measure.signature) <= ("references" in measure.needs)
    assert ("training" in measure.signature) == ("training captions" in measure.needs)


def test_a_score_has_one_home():
    names = [name for measure in MEASURES.values() for name in measure.names]
    assert len(set(names)) == len(names)
    assert {MEASURES.home[name] for name in names} == set(MEASURES)


def test_a_measure_can_be_added_and_is_then_asked_for_by_its_name(monkeypatch):
    monkeypatch.setattr(MEASURES, "_lines", dict(MEASURES._lines))
    asks = Score("Asks", "Captions that end with a question mark, as a share of all.", False)
    MEASURES["Asks"] = Measure(
        (asks,), lambda inputs: mean_of("Asks", [text.endswith("?") for text in inputs.texts]), needs=(), signature=()
    )
    assert scoring.score({1: "a dog?", 2: "a cat"}, {1: ["x"], 2: ["y"]}, metrics="asks") == {"Asks": 0.5}
    assert descriptions.lower_is_better("Asks")
    del MEASURES["Asks"]
    assert descriptions.of("Asks") is None


def test_training_captions_are_those_of_the_training_split(tmp_path):
    record = {"id": 1, "file": "1.jpg", "split": "train", "captions": ["A dog."]}
    data = {"dataset": "x", "images": [record, record | {"id": 2, "split": "test", "captions": ["A cat."]}]}
    (tmp_path / "data.json").write_text(json.dumps(data))
    (tmp_path / "more.json").write_text(json.dumps({"1": ["a bus"]}))
    result = caption_files.read_training([tmp_path / "data.json", str(tmp_path / "more.json")])
    assert [words in result for words in (["a", "dog"], ["a", "cat"], ["a", "bus"])] == [True, False, True]
    data["images"] = data["images"][1:]
    (tmp_path / "data.json").write_text(json.dumps(data))
    with pytest.raises(UserError, match=r"data\.json: has no split 'train'; it has 'test'\."):
        caption_files.read_training(tmp_path / "data.json")
    (tmp_path / "more.json").write_text("{}")
    with pytest.raises(UserError, match="hold no caption"):
        caption_files.read_training(tmp_path / "more.json")


def documented():
    """The rows of the documentation's tables of measures: names, what stands in the last column, and its heading."""
    column = ""
    for line in DOCS.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells[:1] == ["name"]:
            column = cells[-1]
        elif cells and cells[0].startswith("`"):
            yield [name for name in re.findall(r"`([^`]+)`", cells[0]) if not name.startswith("-")], cells[-1], column


def test_the_documentation_names_lines_that_there_are_and_their_directions():
    meant = {"more": True, "less": False, "": None}
    rows = list(documented())
    assert len(rows) > 20
    for names, last, column in rows:
        for name in names:
            info = descriptions.of(name)
            assert info is not None, name
            if column == "better":
                assert info.higher_is_better == meant[last], name


def test_a_description_names_the_retriever_whatever_its_name_is():
    assert "{place} <b>" in descriptions.explained("R@1[{place} <b>]")
    assert "right photo first." in descriptions.explained("R@1[judge]")
    assert "among the first 10." in descriptions.explained("TT R@10")
    assert descriptions.of("no such measure") is None
    assert descriptions.explained("no such measure") == ""
