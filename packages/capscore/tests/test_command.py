"""`capscore CAPTIONS REFERENCES`: what it prints, how it ends, how quickly it starts."""

import json
import subprocess
import sys

import pytest

from capscore.command import run as main

CAPTIONS = {"1": "a red bus", "2": "a dog on grass"}
REFERENCES = {"1": ["a red bus", "the bus is red"], "2": ["a dog lies on grass", "a brown dog"]}


@pytest.fixture
def files(tmp_path):
    for name, content in (("c.json", CAPTIONS), ("r.json", REFERENCES)):
        (tmp_path / name).write_text(json.dumps(content))
    return str(tmp_path / "c.json"), str(tmp_path / "r.json")


def test_scores_are_printed_as_json(files, capsys):
    assert main([*files, "--metrics", "ROUGE-L,BLEU-1"]) == 0
    printed = json.loads(capsys.readouterr().out)
    # BLEU-1: 6 of 7 words are in a reference of their photo; lengths are those of the nearest references
    assert printed["corpus"]["BLEU-1"] == pytest.approx(1.0)
    assert printed["signature"]["ROUGE-L"].startswith("ROUGE-L|tok:ptb|refs:2|v:")


@pytest.mark.parametrize("arguments", [[], ["gone.json", "r.json"], ["--metric", "BLEU"]])
def test_a_wrong_request_is_one_sentence(arguments, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("capscore: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        ("import capscore, capscore.measures", "numpy numba"),
        ("from capscore import command; command.parser().format_help()", "numpy numba torch"),
        ("import capscore.pycoco, capscore.scoring", "torch tellapart PIL"),
    ],
)
def test_what_is_not_needed_is_not_imported(code, forbidden):
    code = f"import sys; {code}; print([name for name in {forbidden.split()} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
