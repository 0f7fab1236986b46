"""Names, captions and files in the way of the output that steer a terminal, forge rows, or cost what was there."""

import csv
import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from capscore import caption_files, files
from capscore.errors import UserError
from tellapart import journals
from tellapart.desk.captions_file import CaptionsFile

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


# Tables


def cells_of(path, separator=","):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file, delimiter=separator))


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "'=1", "''@x", "x;=1", 'y",=1', "'tis"]
FORMULAS += ["\uff1d1", "\uff0b1", "\uff0d1", "\uff201"]  # full-width
BREAKS = ["a\rb", "a\nb", "a\r\nb,c,d", '"', "\x1b[31m\u202e", "\\x3d1", "\\\\x1b", "\udcff\ud800"]


@pytest.mark.parametrize("text", [*FORMULAS, *BREAKS])
def test_a_cell_is_text_to_every_program_and_comes_back_as_it_was(tmp_path, text):
    file = CaptionsFile(tmp_path / "o.csv")
    row = {"file": f"{text}.png", "caption": text, "logprob": -1.5, "look_alikes": [text], "gap": -0.5, "key": "0" * 16}
    named = {"file": text, "error": text, "id": text}
    file.keep([row, named])
    for separator in ",;\t|":
        cells = [cell for row in cells_of(file.path, separator) for cell in row if cell not in ("-1.5", "-0.5")]
        begin = {cell[:1] for cell in cells if cell}
        assert not begin & set("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
    data = file.path.read_bytes()
    assert data.count(b"\n") == 3
    assert is_plain(data.decode("utf-8"))
    assert CaptionsFile(file.path).rows == [row, named]
    assert caption_files.read(file.path).by_id == {f"{text}.png": [text]}


def test_names_of_photos_forge_no_rows_of_a_table(caption, tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path / "photos")
    names = ["=1+1.png", "a\rb.png", "c\nd.png,forged,,,,,,,", "@x.png", "-y.png"]
    for position, name in enumerate(names):
        Image.new("RGB", (20, 20), (40 * position, 0, 0)).save(name, "PNG")
    files = [f"./{name}" if name.startswith("-") else name for name in names]
    for _ in range(2):  # the second run finds them all
        code, _, err = caption(*files, "--out", "../o.csv")
        assert code == 0
    assert "5 kept" in err
    assert len(cells_of(tmp_path / "o.csv")) == 6
    assert [row["file"] for row in CaptionsFile(tmp_path / "o.csv").rows] == files


# What was there before


@pytest.mark.parametrize("name", ["notes.jsonl", "notes.csv"])
@pytest.mark.parametrize(
    "text", ["my precious notes", "a,b\n1,2", "{}", '{"a": 1}', '["x"]', '{"file": "x"}', "file,x\n1"]
)
def test_a_file_that_is_not_ours_is_left_alone_whether_its_last_line_ends_or_not(
    caption, photo_folder, tmp_path, name, text
):
    notes = tmp_path / name
    notes.write_text(text)
    code, _, err = caption(photo_folder, "--out", notes)
    assert (code, notes.read_text()) == (2, text)
    assert "exists and is no file of captions" in err


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [("o.jsonl", '{"file": "elsewhere.jpg", "caption": "my words"}'), ("o.csv", "elsewhere.jpg,my words,,,,,,,,,,,,")],
)
def test_a_last_row_by_hand_without_a_line_break_stays(caption, photo_folder, tmp_path, name, by_hand):
    out = tmp_path / name
    caption(photo_folder / "0.png", "--out", out)
    out.write_text(out.read_text() + by_hand)
    assert caption(photo_folder, "--out", out)[0] == 0
    rows = CaptionsFile(out).rows
    assert (rows[0]["file"], rows[0]["caption"]) == ("elsewhere.jpg", "my words")
    assert len(rows) == 7


@pytest.mark.parametrize(
    ("name", "rest"), [("o.jsonl", '{"file": "e.jpg", "caption": "my wo'), ("o.csv", "e.jpg,my wo")]
)
def test_a_last_line_that_breaks_off_is_put_aside_and_not_thrown_away(caption, photo_folder, tmp_path, name, rest):
    out = tmp_path / name
    caption(photo_folder / "0.png", "--out", out)
    out.write_text(out.read_text() + rest)
    code, _, err = caption(photo_folder, "--out", out)
    assert (code, len(CaptionsFile(out).rows)) == (0, 6)
    assert (tmp_path / f"{name}.rejected").read_text() == rest + "\n"
    assert f"the last line breaks off; it was put aside in {out}.rejected" in err


def test_what_people_add_to_rows_stays(caption, photo_folder, tmp_path):
    out = tmp_path / "o.csv"
    caption(photo_folder, "--out", out)
    (header, *rows) = out.read_text().splitlines()
    out.write_text("\n".join([f"{header},stars", *(f"{row},5" for row in rows)]) + "\n")
    caption(photo_folder, "--beam", 2, "--out", out)  # all are made again
    assert [row["stars"] for row in CaptionsFile(out).rows] == ["5"] * 6
    rows = [json.dumps(row | {"tags": ["x"]}) for row in CaptionsFile(out).rows]
    (tmp_path / "o.jsonl").write_text("\n".join(rows))
    caption(photo_folder, "--out", tmp_path / "o.jsonl")
    assert [(row["stars"], row["tags"]) for row in CaptionsFile(tmp_path / "o.jsonl").rows] == [("5", ["x"])] * 6


# Files that are no files


def test_pipes_and_devices_are_refused_and_stay(start_tellapart, small_model, photo_folder, tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "link.csv").symlink_to("/dev/full")
    for out in (tmp_path / "pipe.jsonl", tmp_path / "link.csv"):
        process = start_tellapart("caption", photo_folder, "--model", small_model, "--out", out)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (2, f"tellapart caption: --out {out}: this is not a regular file.\n")
    for number, put in enumerate((os.mkfifo, lambda path: path.symlink_to("/dev/null"))):  # and what becomes one
        file = CaptionsFile(tmp_path / f"{number}.jsonl")
        put(file.path)
        with pytest.raises(UserError, match="this is not a regular file"), file.writing():
            pass
        assert os.path.lexists(file.path)
    assert (tmp_path / "pipe.jsonl").is_fifo()
    assert (tmp_path / "link.csv").is_symlink()


def test_an_empty_file_and_a_dangling_link_are_not_removed(tmp_path):
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "target.jsonl")
    for name in ("empty.jsonl", "link.jsonl", "new.jsonl"):
        with CaptionsFile(tmp_path / name).writing():
            pass
    assert [os.path.lexists(tmp_path / f"{name}.jsonl") for name in ("empty", "link", "new")] == [True, True, False]


def test_rows_that_cannot_be_read_are_one_sentence_and_stay(caption, photo_folder, tmp_path, monkeypatch):
    out = tmp_path / "o.jsonl"
    for deep in ("[" * 100_000, '{"file": "a", "caption": "b", "x": ' + "[" * 100_000, '{"a":' * 50_000 + "\n"):
        out.write_text(deep)
        code, _, err = caption(photo_folder, "--out", out)
        assert (code, out.read_text(), err.count("\n")) == (2, deep, 1)

    def refuse(path, read=Path.read_bytes):
        if path != out:
            return read(path)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    code, _, err = caption(photo_folder, "--out", out)
    assert (code, err) == (2, f"tellapart caption: --out {out}: the file cannot be read (Permission denied).\n")


def test_one_broken_line_is_named_by_all_who_read_and_costs_no_other(
    tellapart, caption, photo_folder, tmp_path, small_retriever
):
    out = tmp_path / "o.jsonl"
    caption(photo_folder, "--out", out)
    edited = [row | {"caption": f"my words {number}"} for number, row in enumerate(CaptionsFile(out).rows)]
    lines = [json.dumps(row) for row in edited]
    lines[2] = lines[2].replace("my words", 'my "words')
    out.write_text("\n".join(lines) + "\n")
    for command in (
        ("lint", out),
        ("write", out, "--dry-run"),
        ("lookalikes", photo_folder, "--retriever", small_retriever, "--captions", out, "--out", tmp_path / "l.html"),
    ):
        code, _, err = tellapart(*command)
        assert code == 1
        assert f"{out}: line 3: this is not JSON (column " in err
    assert out.read_text() == "\n".join(lines) + "\n"
    code, _, err = tellapart("score", out, out)
    assert code == 2
    code, _, err = caption(photo_folder, "--out", out)
    assert code == 1
    assert f"{out}: line 3: this is not JSON (column " in err
    assert (tmp_path / "o.jsonl.rejected").read_text() == lines[2] + "\n"
    texts = [row["caption"] for row in CaptionsFile(out).rows]
    assert len(texts) == 6
    assert [text for text in texts if text.startswith("my words")] == [f"my words {n}" for n in (0, 1, 3, 4, 5)]
    assert caption(photo_folder, "--out", out)[0] == 0


# Kills and full disks


def test_what_killed_processes_left_is_removed_by_the_next_and_nothing_else(tmp_path):
    left, held = tmp_path / ".tellapart-0123456789ab.tmp", tmp_path / ".tellapart-ba9876543210.tmp"
    others = [tmp_path / name for name in (".tellapart-mine.tmp", "tellapart-0123456789ab.tmp", ".tellapart-012.tmp")]
    for path in (left, held, *others):
        path.write_bytes(b"half a file")
    link = tmp_path / ".tellapart-000000000000.tmp"
    link.symlink_to(others[0])
    with held.open() as file:  # as another process does while it writes
        fcntl.flock(file, fcntl.LOCK_EX)
        files.replace(tmp_path / "o.jsonl", b"new")
    assert not left.exists()
    assert all(path.exists() for path in (held, *others, link))


def test_a_kill_while_a_file_is_replaced_leaves_nothing_for_long(tmp_path):
    code = """
import os, signal, sys
from pathlib import Path
from capscore import files
os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
files.replace(Path(sys.argv[1]), b"new")
"""
    target = tmp_path / "x.json"
    target.write_bytes(b"old")
    subprocess.run([sys.executable, "-c", code, target], check=False)
    assert target.read_bytes() == b"old"
    assert len(list(tmp_path.glob(".tellapart-*.tmp"))) == 1
    files.replace(target, b"newer")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_two_processes_that_replace_one_file_do_not_take_each_others_for_leftovers(tmp_path):
    code = "import sys; from pathlib import Path; from capscore import files\n"
    code += "for _ in range(200): files.remove_leftovers.cache_clear(); files.replace(Path(sys.argv[1]), b'x' * 1000)"
    running = [subprocess.Popen([sys.executable, "-c", code, tmp_path / "x"]) for _ in range(3)]
    assert [process.wait(timeout=120) for process in running] == [0, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_full_disk_leaves_no_part_of_a_row(tmp_path, monkeypatch):
    journal = tmp_path / "o.jsonl"
    journal.write_bytes(b"before\n")

    def refuse(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", refuse)
    with pytest.raises(UserError, match="No space left on device"):
        journals.append(journal, b"a row that does not fit\n")
    assert journal.read_bytes() == b"before\n"


def test_a_private_file_stays_private(tmp_path):
    (tmp_path / "x.json").touch(mode=0o600)
    files.replace(tmp_path / "x.json", b"new")
    assert (tmp_path / "x.json").stat().st_mode & 0o777 == 0o600
