from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tellapart.__main__ import main
from tellapart.data import examples
from tellapart.data.readers import READERS


def annotations(*names: str) -> dict[str, object]:
    return {
        "images": [{"id": i, "file_name": name} for i, name in enumerate(names)],
        "annotations": [{"id": i, "image_id": i, "caption": f"a photo called {name}"} for i, name in enumerate(names)],
    }


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """Annotations of two photos, which lie beside them."""
    for name in ("dog.jpg", "cat.jpg"):
        (tmp_path / name).write_bytes(b"")
    path = tmp_path / "captions_val2014.json"
    path.write_text(json.dumps(annotations("dog.jpg", "cat.jpg")))
    return path


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a wrong request is answered with."""
    assert main(["prepare", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("tellapart prepare: ")
    assert printed.err.count("\n") == 1
    return printed.err


def test_a_data_set_is_written_and_counted(coco, tmp_path, capsys):
    out = tmp_path / "data.json"
    assert main(["prepare", "coco", str(coco), "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{out}: 2 photos, 2 captions (2 val)\n"
    assert printed.err == ""
    assert json.loads(out.read_text())["images"][0] == {
        "id": 0,
        "file": "dog.jpg",
        "split": "val",
        "captions": ["a photo called dog.jpg"],
    }


def test_what_is_left_out_is_named_and_the_rest_written(coco, tmp_path, capsys):
    content = annotations("dog.jpg", "cat.jpg")
    del content["images"][0]["file_name"]  # type: ignore[index]
    coco.write_text(json.dumps(content))
    assert main(["prepare", "coco", str(coco), "--out", str(tmp_path / "data.json")]) == 1
    printed = capsys.readouterr()
    assert printed.err == f'{coco}: image 0: "file_name" is missing.\n'
    assert "1 photo, 1 caption (1 val)" in printed.out
    assert [example.id for example in examples.read(tmp_path / "data.json").examples] == [1]


def test_photos_that_are_not_there_are_told_but_the_data_is_written(coco, tmp_path, capsys):
    (tmp_path / "dog.jpg").unlink()
    assert main(["prepare", "coco", str(coco), "--out", str(tmp_path / "data.json")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("1 of 2 photos cannot be found: ")
    assert said.endswith("dog.jpg.\n")
    assert len(examples.read(tmp_path / "data.json").examples) == 2


def test_when_no_photo_is_there_the_option_for_it_is_told(coco, tmp_path, capsys):
    names = [f"{i}.jpg" for i in range(1000)]
    coco.write_text(json.dumps(annotations(*names)))
    assert main(["prepare", "coco", str(coco), "--out", str(tmp_path / "data.json")]) == 1
    said = capsys.readouterr().err
    assert "1,000 of 1,000 photos cannot be found" in said
    assert "--photos" in said
    assert said.count("\n") == 1


def test_photos_in_another_folder(coco, tmp_path, capsys):
    (tmp_path / "album").mkdir()
    for name in ("dog.jpg", "cat.jpg"):
        (tmp_path / name).rename(tmp_path / "album" / name)
    out = tmp_path / "data.json"
    assert main(["prepare", "coco", str(coco), "--photos", str(tmp_path / "album"), "--out", str(out)]) == 0
    assert json.loads(out.read_text())["images"][0]["file"] == "album/dog.jpg"


def test_a_split_for_all_photos(coco, tmp_path, capsys):
    assert main(["prepare", "coco", str(coco), "--split", "test", "--out", str(tmp_path / "data.json")]) == 0
    assert "(2 test)" in capsys.readouterr().out


def test_splits_from_lists(coco, tmp_path, capsys):
    (tmp_path / "karpathy_test.txt").write_text("cat.jpg\n")
    (tmp_path / "train.txt").write_text("dog\n")
    lists = [str(tmp_path / "karpathy_test.txt"), str(tmp_path / "train.txt")]
    assert main(["prepare", "coco", str(coco), "--out", str(tmp_path / "data.json"), "--split-file", *lists]) == 0
    assert "2 photos, 2 captions (1 train, 1 test)" in capsys.readouterr().out


def test_a_list_whose_name_says_no_split_is_refused(coco, tmp_path, capsys):
    (tmp_path / "interval.txt").write_text("cat.jpg\n")
    arguments = [
        "coco",
        str(coco),
        "--out",
        str(tmp_path / "data.json"),
        "--split-file",
        str(tmp_path / "interval.txt"),
    ]
    assert "interval.txt: the name of a split file must say which split" in refused(arguments, capsys)


def test_a_folder_of_photos(coco, tmp_path, capsys):
    out = tmp_path / "data.json"
    assert main(["prepare", "folder", str(tmp_path), "--out", str(out)]) == 0
    assert "2 photos, 0 captions (2 test)" in capsys.readouterr().out
    assert [record["file"] for record in json.loads(out.read_text())["images"]] == ["cat.jpg", "dog.jpg"]


def test_the_source_is_never_overwritten(coco, capsys):
    before = coco.read_bytes()
    assert "overwrite" in refused(["coco", str(coco), "--out", str(coco)], capsys)
    assert coco.read_bytes() == before


def test_a_source_that_is_wrong_leaves_the_old_output(coco, tmp_path, capsys):
    out = tmp_path / "data.json"
    out.write_text("yesterday's")
    coco.write_text("{")
    refused(["coco", str(coco), "--out", str(out)], capsys)
    assert out.read_text() == "yesterday's"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "FORMAT"),
        (["coco"], "SOURCE"),
        (["coco", "x.json"], "--out"),
        (["cocoa", "x.json", "--out", "y.json"], "cocoa"),
        (["coco", "x.json", "--out", "y.json", "--colour", "red"], "--colour"),
        (["coco", "x.json", "--out", "y.json", "--split", "a", "--split-file", "b"], "--split-file"),
        (["coco", "x.json", "--out"], "--out"),
        (["vizwiz", "x.json", "--out", "y.json"], "vizwiz"),
        (["folder", ".", "--out", "y.json", "--photos", "."], "--photos"),
        (["coco", "x" * 5000, "--out", "y.json"], "x"),
    ],
    ids=str,
)
def test_a_wrong_request_is_answered_in_one_line(arguments, word, capsys):
    assert word in refused(arguments, capsys)


def test_help_names_every_format_and_ends_with_an_example(capsys):
    with pytest.raises(SystemExit) as left:
        main(["prepare", "--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in READERS)
    assert text.rstrip().splitlines()[-1].strip().startswith("tellapart prepare ")


def test_a_photo_whose_name_is_not_utf_8_can_be_named_on_the_screen(tmp_path):
    """In a process of its own, because its output has to be encoded.  A link to nowhere is a photo not found."""
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jpg")).symlink_to("nowhere")
    command = [sys.executable, "-m", "tellapart", "prepare", "folder", str(tmp_path), "--out", str(tmp_path / "d.json")]
    result = subprocess.run(command, capture_output=True, check=False)
    assert result.returncode == 1
    assert b"caf\xe9.jpg" in result.stderr
    assert b"Traceback" not in result.stderr


def test_prepare_loads_neither_torch_nor_numpy_for_formats_that_need_no_photos(coco, tmp_path):
    script = (
        "import sys; from tellapart.__main__ import main; "
        f"main(['prepare', 'coco', {str(coco)!r}, '--out', {str(tmp_path / 'd.json')!r}]); "
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
