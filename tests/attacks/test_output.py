"""Names, captions and files in the way of the output that steer a terminal, forge rows, or cost what was there."""

import subprocess
import sys

import pytest
from PIL import Image

STEERING = ("\x1b", "\x07", "\x9b", "\r", "\u202e", "\u2066", "\u2028")


def is_plain(text):
    return not any(character in text for character in STEERING)


@pytest.fixture
def caption(tellapart, small_model):
    return lambda *arguments: tellapart("caption", "--model", small_model, *arguments)


# Terminals

NAMES = [
    "a\x1b[31mred\x07.png",
    "b\u202egpj.png",
    "c\td.png",
    "e\nf.jpg\tforged caption.png",
    "g\r\x9bh.png",
    "\u2028.png",
]


def test_names_of_photos_neither_steer_a_terminal_nor_forge_a_line(caption, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for position, name in enumerate(NAMES):
        Image.new("RGB", (20, 20), (40 * position, 0, 0)).save(folder / name)
    (folder / "empty\x1b]0;title\x07\nx.png").touch()
    code, out, err = caption(folder)
    assert code == 1
    assert is_plain(out + err)
    assert [line.count("\t") for line in out.split("\n")[:-1]] == [1] * len(NAMES)
    assert err.endswith("empty\\x1b]0;title\\x07\\nx.png: the file is empty\n")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "request_",
    [
        ["caption", "--\x1b[2J"],
        ["caption", "x.png", "--out", "\x1b]0;t\x07\u202e\n.txt"],
        ["\x1b[2Jcaption"],
        ["train", "no\x1b[31m\n.yaml"],
        ["score", "no\x9b\r.json", "b.json"],
        ["lint", "no\u202e.json"],
        ["lookalikes", "--no\x1bthere\n"],
        ["compare", "no\x1bthere\nruns/b"],
        ["evaluate", "human", "--data", "no\x1b.json"],
        ["features", "no\x1b.json", "--encoder", "x\x07", "--out", "y"],
        ["prepare", "folder", "no\x1b\nthere", "--out", "o.json"],
        ["export", "no\x1bmodel", "--out", "o"],
        ["demo", "--\x1b"],
    ],
    ids=lambda request_: request_[0],
)
def test_what_is_repeated_in_a_message_does_not_steer_the_terminal(tellapart, tmp_path, monkeypatch, request_):
    monkeypatch.chdir(tmp_path)
    code, out, err = tellapart(*request_)
    assert code == 2
    assert is_plain(out + err)
    assert len(err.splitlines()) == 1


def test_captions_of_others_do_not_steer_the_terminal(tellapart, tmp_path):
    (tmp_path / "c.json").write_text('{"a": "red\\u001b[31m\\u202e", "b\\u0007": "red\\u001b[31m\\u202e"}')
    code, out, err = tellapart("lint", tmp_path / "c.json")
    assert code == 1
    assert "b\\x07\tshared\tred" in out
    assert is_plain(out + err)


def test_a_fault_of_ours_is_printed_without_what_a_name_holds():
    code = """
import sys, tellapart.commands.models as models
models.main = lambda _: open("no\\x1b[2J")
from tellapart.__main__ import main
sys.exit(main(["models"]))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "FileNotFoundError" in run.stderr
    assert is_plain(run.stderr)
