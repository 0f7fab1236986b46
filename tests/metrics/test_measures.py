"""The table of measures: complete, and as the documentation has it."""

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from tellapart.metrics import measures, retrieval, scoring
from tellapart.training import retrieval_validation, validation

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
KINDS = get_args(retrieval.Kind)


def name_of(kind):
    """One score of a kind of retrieval."""
    own = kind in ("TT R", "self R")
    return str(retrieval.Name(kind, 0 if kind.startswith("GEG") else 5, "" if own else "judge"))


def test_every_score_of_text_is_described_in_the_order_in_which_it_is_computed():
    names = [name for measure in scoring.MEASURES.values() for name in measure.names]
    assert [info.name for info in measures.TEXT] == names


@pytest.mark.parametrize(
    "name", [*map(name_of, KINDS), "ObjPrec[d]", "ObjRec[d]", *validation.METRICS, *retrieval_validation.METRICS]
)
def test_every_figure_of_evaluations_and_validations_is_described(name):
    text = measures.explained(name)
    assert text.endswith(".")
    assert not set("{}") & set(text)


def test_directions_are_those_of_the_documentation():
    meant = {"more": True, "less": False, "": None}
    documented, column = {}, ""
    for line in DOCS.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells[:1] == ["name"]:
            column = cells[-1]
        elif column == "better" and cells and cells[0].startswith("`"):
            documented |= dict.fromkeys(re.findall(r"`([^`]+)`", cells[0]), meant[cells[2]])
    assert len(documented) > 20
    for name, better in documented.items():
        info = measures.of(name)
        assert info is not None, name
        assert info.higher_is_better == better, name


def test_a_description_names_the_retriever_whatever_its_name_is():
    assert "{place} <b>" in measures.explained("R@1[{place} <b>]")
    assert "right photo first." in measures.explained("R@1[judge]")
    assert "among the first 10." in measures.explained("TT R@10")
    assert measures.of("no such measure") is None
    assert measures.explained("no such measure") == ""


def test_help_does_not_wait_for_numpy():
    code = "import sys, tellapart.metrics.measures; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
