"""The drop-in classes give what pycocoevalcap gives: figures of a thousand images, stored as it computed them."""

import numpy as np
import pytest

from capscore import meteor
from capscore.errors import UserError
from capscore.pycoco import Bleu, Cider, Meteor, PTBTokenizer, Rouge
from scored import loo1000

IMAGES, CORPUS = loo1000()["images"], loo1000()["corpus"]
GTS = {image["id"]: image["reference_words"] for image in IMAGES}  # tokens of Stanford's program
RES = {image["id"]: [image["caption_words"]] for image in IMAGES}


def stored(name):
    return [image["scores"][name] for image in IMAGES]


@pytest.mark.parametrize(("scorer", "name"), [(Rouge, "ROUGE-L"), (Cider, "CIDEr-D"), (Meteor, "METEOR")])
def test_scores_are_those_of_pycocoevalcap(scorer, name):
    if name == "METEOR" and meteor.available():
        pytest.skip(meteor.available())
    score, scores = scorer().compute_score(GTS, RES)
    assert score == pytest.approx(CORPUS[name], abs=1e-12)
    np.testing.assert_allclose(scores, stored(name), rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [4, 2])
def test_bleu_is_a_list_of_its_orders(n):
    score, scores = Bleu(n).compute_score(GTS, RES, verbose=0)
    names = [f"BLEU-{order}" for order in range(1, n + 1)]
    assert score == pytest.approx([CORPUS[name] for name in names], abs=1e-12)
    np.testing.assert_allclose(scores, [stored(name) for name in names], rtol=0, atol=1e-12)


def test_the_tokenizer_gives_strings_by_id():
    tokenised = PTBTokenizer().tokenize(
        {image["id"]: [{"caption": text} for text in image["references"]] for image in IMAGES}
    )
    assert tokenised == GTS
    assert PTBTokenizer().tokenize({1: []}) == {1: []}


def test_swapped_arguments_are_refused():
    with pytest.raises(UserError, match="swapped"):
        Cider().compute_score(RES, GTS)
    with pytest.raises(UserError, match="same ids"):
        Cider().compute_score(GTS, {"61": RES["61"]})
