"""What is written to a terminal steers nothing, and is otherwise as it was."""

import io
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capscore.printable import print_message, print_row, printable, printable_lines, printable_streams
from tellapart.errors import BadPhoto
from tellapart.evaluation.table import text_table
from tellapart.html import escaped

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # PropList.txt: Bidi_Control


def steers(text):
    """By Unicode's own table, after what the bytes of the text say to a terminal."""
    shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    byte = any("\udc80" <= character <= "\udc9f" for character in shown)  # C1 to a terminal that does not read UTF-8
    return byte or any(unicodedata.category(one) in ("Cc", "Zl", "Zp") or one in BIDI for one in shown)


@given(st.text(st.characters() | st.sampled_from(f"\x1b\x9b\x07\t\n\r\u2028{BIDI}\udcc2\udc9b\ud800\\")))
def test_no_text_steers_a_terminal(text):
    assert not steers(printable(text))
    assert printable(printable(text)) == printable(text)
    assert not steers(printable_lines(text).replace("\n", "").replace("\t", ""))


@pytest.mark.parametrize("text", ["a man's café", "家族写真", "👩‍👧 ❤️", "مرحبا", "C:\\new", "caf\udce9.png", ""])
def test_what_people_write_stays_as_it_is(text):
    assert printable(text) == text
    assert printable_lines(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb\x07", "a\\x1b[31mb\\x07"),
        ("a\tb\nc\rd", "a\\tb\\nc\\rd"),
        ("photo\u202egpj.exe", "photo\\u202egpj.exe"),
        ("\x9b2J \udc9b2J \udcc2\udc9b2J", "\\x9b2J \\x9b2J \\x9b2J"),  # one control in three disguises
        ("half \ud83d", "half \\ud83d"),
    ],
)
def test_what_steers_is_written_out(text, shown):
    assert printable(text) == shown


def test_a_line_has_tabs_between_its_cells_only(capsys):
    print_row("a\tb\n.png", "two\tcells\rof text")
    print_message("c\nd: cannot be read")
    out, err = capsys.readouterr()
    assert out == "a\\tb\\n.png\ttwo\\tcells\\rof text\n"
    assert err == "c\\nd: cannot be read\n"


def test_whatever_a_command_prints_is_made_printable(monkeypatch):
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with printable_streams(), printable_streams():
        print("a table\twith \x1b[2J\na second line", "\u202e")
        sys.stderr.writelines(["one\x07\n", "two\r\n"])
        assert not sys.stdout.isatty()
    assert out.getvalue() == "a table\twith \\x1b[2J\na second line \\u202e\n"
    assert err.getvalue() == "one\\x07\ntwo\\r\n"
    assert (sys.stdout, sys.stderr) == (out, err)


def test_a_table_of_recipes_keeps_its_lines():
    table = text_table(["run\n1", "run 2"], {"note\x1b": ["red\x1b[31m\nforged  line", "x"]}, 100)
    lines = table.splitlines()
    assert len(lines) == 2
    assert lines[0].split() == ["run\\n1", "run", "2"]
    assert lines[1].split() == ["note\\x1b", "red\\x1b[31m\\nforged", "line", "x"]


def test_a_page_and_an_error_show_names_written_out():
    assert escaped("<\x1b\u202e>\n\udcff") == "&lt;\\x1b\\u202e&gt;\n?"
    assert str(BadPhoto("a\u202e\n.png", "is damaged")) == "a\\u202e\\n.png: is damaged"
