"""What --help says of names and defaults is what the tables and the code say."""

import inspect
import re

import pytest

from capscore.scoring import MEASURES
from tellapart.commands import evaluate, score
from tellapart.evaluation.evaluate import _retrievers
from tellapart.recipe import ValidationConfig
from tellapart.retrievers import DEFAULT
from tellapart.training import validation


def words(parser):
    return " ".join(parser.format_help().split())


def test_score_explains_every_measure_and_says_which_runs_java():
    listed = words(score.parser())
    for measure in MEASURES.values():
        for name in measure.names:
            assert f" {name} " in listed
    assert "lower is better" in listed.partition(" Rep ")[2].partition(" BadEnd ")[0]
    assert [name for name, measure in MEASURES.items() if "Java" in measure.needs] == re.findall(
        r"(SPICE) [^(]*\(runs Java\)", listed
    )


def test_evaluate_says_which_retriever_is_the_default():
    asked = re.search(r"retrievers, from .*?\(default: (.*?)\)", words(evaluate.parser()))[1]
    assert asked == DEFAULT
    assert [retriever.name for retriever in _retrievers(None, "cpu")] == [asked]


@pytest.mark.parametrize("name", [*validation.METRICS, *validation.RETRIEVAL_METRICS])
def test_the_help_of_a_recipe_names_the_metrics_that_can_decide(name):
    said = re.search(r"metric: (.*?)patience:", " ".join(inspect.getdoc(ValidationConfig).split()))[1]
    by_score = MEASURES.score(name) is not None and "any score of `tellapart score`" in said
    assert (name in re.split(r"[ ,;:]+", said) or by_score) == (name != "length")
