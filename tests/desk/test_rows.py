"""The file of captions: rows come back as they were written, in JSON lines and in CSV."""

import json

import pytest

from tellapart.desk.captions_file import CaptionsFile

AMONG = [
    {"look_alikes": ["c, d.jpg", 'it\'s "e".jpg'], "gap": 0.1},
    {"look_alikes": [], "gap": None},
    {"look_alikes": ["x\n.jpg", "\udcff.jpg"], "gap": -0.25},
]
LISTED = [{"caption": "a cat", "logprob": -1.5}, {"caption": 'a "big", cat', "logprob": None}]
ROWS = [
    {"file": "a.jpg", "caption": "a dog", "logprob": -1.2345678901234567, "key": "0123456789abcdef"},
    {"file": "b.jpg", "caption": "a dog", "logprob": -2.5, **AMONG[0], "key": "0123456789abcdef-01234567-89abcdef"},
    {"file": "c.jpg", "caption": "", "logprob": None, **AMONG[1], "key": "k3"},
    {
        "file": "d.jpg",
        "caption": 'a "red", bus',
        "logprob": None,
        **AMONG[2],
        "key": "1123456789abcdef-01234567-89abcdef",
    },
    {"file": "e.jpg", "error": "there is no such file"},
    {"file": "f.jpg", "id": "12", "caption": "a cat", "logprob": 0.0, "key": "k5"},
    {"file": "g.jpg", "caption": "a cat", "logprob": -1.5, "captions": LISTED, "key": "k6"},
]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_rows_come_back_as_they_were_written(tmp_path, suffix):
    file = CaptionsFile(tmp_path / f"captions.{suffix}")
    file.keep(ROWS[:2])
    file.append(ROWS[2:])
    assert CaptionsFile(file.path).rows == ROWS
    before = file.path.read_bytes()
    CaptionsFile(file.path).keep(CaptionsFile(file.path).rows)
    assert file.path.read_bytes() == before


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_row_that_a_kill_cut_off_does_not_count(tmp_path, suffix):
    file = CaptionsFile(tmp_path / f"captions.{suffix}")
    file.keep(ROWS[:3])
    whole = file.path.read_bytes()
    file.append(ROWS[3:4])
    for length in range(len(whole), file.path.stat().st_size - 1):
        (tmp_path / f"cut.{suffix}").write_bytes(file.path.read_bytes()[:length])
        assert CaptionsFile(tmp_path / f"cut.{suffix}").rows == ROWS[:3]
    (tmp_path / f"cut.{suffix}").write_bytes(file.path.read_bytes()[:-1])  # whole, but for the line break
    assert CaptionsFile(tmp_path / f"cut.{suffix}").rows == ROWS[:4]


@pytest.mark.parametrize(
    "line",
    [
        "a.jpg,a dog,-1,,,key,{,0.5,",
        "a.jpg,a dog,quick,,,key,,,",
        "a.jpg,a dog,-1,,,key,[],wide,",
        "a.jpg,a dog,-1,,,key,,,[",
    ],
)
def test_a_csv_row_with_other_things_in_its_cells_is_named_and_put_aside_by_who_writes(tmp_path, line):
    file = CaptionsFile(tmp_path / "captions.csv")
    file.keep(ROWS[:1])
    damaged = file.path.read_text() + line + "\n"
    file.path.write_text(damaged)
    read = CaptionsFile(file.path)
    assert read.rows == ROWS[:1]
    (problem,) = read.problems
    assert problem.startswith(f"--out {file.path}: line 3: ")
    assert file.path.read_text() == damaged
    with read.writing():
        pass
    assert (tmp_path / "captions.csv.rejected").read_text() == line + "\n"
    assert CaptionsFile(file.path).problems == []
    assert CaptionsFile(file.path).rows == ROWS[:1]


BROKEN_JSON = [
    '{"file": "b.jpg", "caption: "my words"}',
    '{"file": "b.jpg", "caption": my words}',
    '{"file": "b.jpg", "caption": 3}',
    '{"file": "b.jpg"}',
    '{"caption": "my words"}',
    '["b.jpg", "my words"]',
    "my words",
    '{"file": "b.jpg", "cap',
    "[" * 100_000,
]
BROKEN_CSV = [
    'b.jpg,"my words,,,,,,,,,,,',
    'b.jpg,"my" words,,,,,,,,,,,',
    "b.jpg,my words,,,,,,,,,,,,,,one,cell,too,many",
    "b.jpg,my words,-1,,,0123456789abcdef,not JSON,,,,,,",
]


@pytest.mark.parametrize(
    ("suffix", "line"), [*(("jsonl", line) for line in BROKEN_JSON), *(("csv", line) for line in BROKEN_CSV)]
)
@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_broken_line_costs_no_other_and_is_itself_kept(tmp_path, suffix, line, place):
    file = CaptionsFile(tmp_path / f"captions.{suffix}")
    file.keep(ROWS[:4])
    lines = file.path.read_text().splitlines()
    number = place + (suffix == "csv")
    lines.insert(number, line)
    file.path.write_text("\n".join(lines) + "\n")
    read = CaptionsFile(file.path, option="")
    assert read.rows == ROWS[:4]
    (problem,) = read.problems
    assert problem.startswith(f"{file.path}: line {number + 1}: ")
    with read.writing():
        read.keep([*read.rows, ROWS[4]])
    assert read.rejected == 1
    assert (tmp_path / f"captions.{suffix}.rejected").read_text() == line + "\n"
    assert CaptionsFile(file.path).rows == ROWS[:5]


def test_a_line_that_is_broken_while_rows_are_made_is_kept_too(tmp_path):
    file = CaptionsFile(tmp_path / "captions.jsonl")
    file.keep(ROWS[:3])
    with file.writing():
        file.path.write_text(file.path.read_text().replace('"a dog"', '"my " words"', 1))
        file.keep([*file.read_again(), ROWS[3]])
    assert '"my " words"' in (tmp_path / "captions.jsonl.rejected").read_text()
    assert CaptionsFile(file.path).rows == ROWS[1:4]


def test_the_look_alikes_of_a_csv_row_are_one_cell_of_json(tmp_path):
    file = CaptionsFile(tmp_path / "captions.csv")
    file.keep(ROWS[1:2])
    header, _ = file.path.read_text().splitlines()
    assert (
        header
        == "file,caption,logprob,error,id,key,look_alikes,gap,captions,edited,attributes,review,original,language"
    )
    assert json.dumps(ROWS[1]["look_alikes"]).replace('"', '""') in file.path.read_text()
