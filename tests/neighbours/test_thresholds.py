import numpy as np
import pytest

from tellapart import __main__
from tellapart.models.retrievers import load
from tellapart.neighbours import collection, thresholds
from tellapart.neighbours.thresholds import quantile_of_pairs
from tellapart.retrievers import EMBEDDED


@pytest.mark.parametrize("name", EMBEDDED)
def test_every_embedded_retriever_is_calibrated_with_the_weights_that_it_has(name):
    """New weights need new numbers: scripts/calibrate_look_alikes.py."""
    retriever = load(name)
    for by in ("image", "caption"):
        assert 0 < thresholds.ALIKE_ABOVE[retriever.sha256, by] < 1
    assert 0.8 < thresholds.duplicates_above(retriever.encoder) < 1
    encoder = retriever.encoder
    assert (encoder.weights_sha256, encoder.config.image_size) in thresholds.DUPLICATES_ABOVE
    assert (retriever.encoder.weights_sha256, "image") in thresholds.ALIKE_ABOVE


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
    assert (
        f"as measured for the retriever, {thresholds.ALIKE_ABOVE[embedded.sha256, 'image']:g} for the embedded one"
        in text
    )
