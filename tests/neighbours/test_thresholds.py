import json
import re
from pathlib import Path

import numpy as np
import pytest

from capscore.errors import UserError
from tellapart import __main__, encoders
from tellapart.models.retrievers import load
from tellapart.neighbours import collection, groups
from tellapart.neighbours.groups import quantile_of_pairs
from tellapart.retrievers import EMBEDDED

PAGE = (Path(__file__).parents[2] / "docs" / "look_alikes.md").read_text()


@pytest.mark.parametrize("name", EMBEDDED)
def test_every_embedded_retriever_is_calibrated_with_the_weights_that_it_has(name):
    """New weights need new numbers: scripts/calibrate_look_alikes.py."""
    retriever = load(name)
    cosines = json.loads((EMBEDDED[name] / "look_alikes.json").read_text())["alike_above"]
    assert retriever.alike_above == cosines
    assert cosines.keys() == {"image", "caption"}
    assert re.search(rf"^\| `{name}`(, the default)? \| {cosines['image']:g} \| {cosines['caption']:g} \|$", PAGE, re.M)
    assert 0.8 < groups.duplicates_above(retriever.encoder) < 1
    assert groups.duplicates_above(retriever.encoder) != groups.OTHERWISE
    assert groups.alike_above(retriever.encoder)


def test_thresholds_are_of_the_weights_that_they_were_measured_with(small_retriever):
    assert load(small_retriever).alike_above == {}
    file = small_retriever / "look_alikes.json"
    try:
        for sha256, expected in (("0" * 64, {}), (load(small_retriever).sha256, {"image": 0.5})):
            file.write_text(json.dumps({"weights_sha256": sha256, "alike_above": {"image": 0.5}}))
            assert load(small_retriever).alike_above == expected
        file.write_text('{"alike_above": {"image": "much"}}')
        with pytest.raises(UserError, match=r"look_alikes\.json: \"alike_above\" must give cosines"):
            load(small_retriever)
    finally:
        file.unlink()


@pytest.mark.parametrize("name", groups.measured_encoders())
def test_the_page_has_the_thresholds_of_encoders(name):
    entry = groups.measured_encoders()[name]
    assert name in encoders.ENCODERS
    row = next(line for line in PAGE.splitlines() if re.match(rf"\| `{name}`( \(pooled features\))? \|", line))
    assert f"| {entry['alike_above']['image']:g} |" in row


def test_the_quantile_is_that_of_the_pairs_that_are_different_photos():
    count = 100
    scores = np.arange(count**2, dtype=float).reshape(count, count)
    different = np.ones((count, count), bool)
    others = np.sort(scores[~np.eye(count, dtype=bool)])
    found = quantile_of_pairs(scores, different, distances=False)
    assert np.mean(others > found) == pytest.approx(0.005, abs=1e-3)
    assert np.mean(others < quantile_of_pairs(scores, different, distances=True)) == pytest.approx(0.005, abs=1e-3)
    different[scores > 5000] = False  # bursts, which would raise the bar
    assert 4900 < quantile_of_pairs(scores, different, distances=False) < 5000


def test_a_small_collection_and_one_of_duplicates_have_no_quantile():
    assert quantile_of_pairs(np.ones((20, 20)), np.ones((20, 20), bool), distances=False) is None
    assert quantile_of_pairs(np.ones((80, 80)), np.zeros((80, 80), bool), distances=False) is None


def test_help_names_the_thresholds_that_the_embedded_retriever_has(capsys):
    embedded = collection.source(None)
    with pytest.raises(SystemExit):
        __main__.main(["lookalikes", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"as measured for the encoder, {embedded.duplicates_above:g} for the embedded one" in text
    assert f"as measured for the retriever, {embedded.alike_above['image']:g} for the embedded one" in text
