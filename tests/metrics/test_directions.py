"""Every figure that we report has a direction, and whoever compares figures goes by it."""

import pytest

from capscore.scoring import MEASURES
from capscore.statistics import Difference
from tellapart.evaluation import compare, table
from tellapart.metrics import descriptions
from tellapart.training import validation
from tellapart.training.loop import Position, judge

# What papers and plain sense say, not what the code says: a caption that repeats a word, breaks off, stutters or is
# oddly built is a fault; a loss is to be small; a length is neither good nor bad.
LOWER = {"loss", "Rep", "BadEnd", "Stutter", "UnusualOrder", "Unidiomatic", "CHAIRi", "CHAIRs", "CIDErBtw"}
LOWER |= {f"mBLEU-{n}" for n in range(1, 5)}
NEITHER = {"length", "AvgLen"}
VALIDATED = [*validation.METRICS, *validation.RETRIEVAL_METRICS]
SCORES = [name for measure in MEASURES.values() for name in measure.names]
RETRIEVED = ["R@1[judge]", "P@1/100[word]", "P@1/100-hard[word]", "GEG-Avg[word]", "GEG-Min[word]", "TT R@5", "TT@6"]
RETRIEVED += ["self R@1", "ObjPrec[yolox]", "ObjRec[yolox]"]


@pytest.mark.parametrize("name", dict.fromkeys([*VALIDATED, *SCORES, *RETRIEVED]))
def test_every_validation_metric_and_every_score_is_described_and_has_a_direction(name):
    expected = False if name in LOWER else None if name in NEITHER else True
    assert descriptions.of(name).higher_is_better is expected
    text = descriptions.explained(name)
    assert text.endswith(".")
    assert not set("{}") & set(text)


@pytest.mark.parametrize("name", [name for name in VALIDATED if name not in NEITHER])
def test_the_best_checkpoint_is_the_one_with_the_better_figure(name):
    better, worse = (0.1, 0.9) if name in LOWER else (0.9, 0.1)
    position = Position(step=1)
    assert judge(position, {name: worse}, name)
    assert judge(position, {name: better}, name)
    assert not judge(position, {name: worse}, name)
    assert (position.best, position.stale) == (better, 1)
    assert compare._best(name, [(1, worse), (2, better), (3, worse)]).endswith(" at 2")


@pytest.mark.parametrize("name", [*SCORES, *RETRIEVED])
def test_a_table_marks_what_is_better(name):
    verdict = table.verdict(name, Difference(value=0.1, low=0.05, high=0.15, p=0.001))
    assert verdict == ("worse" if name in LOWER else "other" if name in NEITHER else "better")
