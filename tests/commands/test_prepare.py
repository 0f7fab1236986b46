"""`tellapart prepare`: what is written, what is said, and wrong requests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.written import put, touch
from tellapart.data import examples


def annotations(*names):
    images = [{"id": i, "file_name": name} for i, name in enumerate(names)]
    texts = [{"id": i, "image_id": i, "caption": f"a photo called {name}"} for i, name in enumerate(names)]
    return {"images": images, "annotations": texts}


@pytest.fixture
def coco(tmp_path):
    """Annotations of two photos, which lie beside them."""
    touch(tmp_path / "dog.jpg", tmp_path / "cat.jpg")
    return put(tmp_path / "captions_val2014.json", annotations("dog.jpg", "cat.jpg"))


@pytest.fixture
def prepare(tellapart, coco, tmp_path):
    """Prepare the annotations: exit code, stdout, stderr, and the images of what was written."""

    def run(*options, format="coco", source=coco):
        code, out, err = tellapart("prepare", format, source, "--out", tmp_path / "data.json", *options)
        return code, out, err, json.loads((tmp_path / "data.json").read_text())["images"]

    return run


def test_a_data_set_is_written_and_counted(prepare, tmp_path):
    code, out, err, images = prepare()
    assert (code, out, err) == (0, f"{tmp_path / 'data.json'}: 2 photos, 2 captions (2 val)\n", "")
    assert images[0] == {"id": 0, "file": "dog.jpg", "split": "val", "captions": ["a photo called dog.jpg"]}


def test_what_is_left_out_is_named_and_the_rest_written(prepare, coco):
    content = annotations("dog.jpg", "cat.jpg")
    del content["images"][0]["file_name"]
    put(coco, content)
    code, out, err, images = prepare()
    assert (code, err, [image["id"] for image in images]) == (1, f'{coco}: image 0: "file_name" is missing.\n', [1])
    assert "1 photo, 1 caption (1 val)" in out


def test_photos_that_are_not_there_are_told_in_one_line_but_the_data_is_written(prepare, coco, tmp_path):
    (tmp_path / "dog.jpg").unlink()
    code, _, err, images = prepare()
    assert (code, err.startswith("1 of 2 photos cannot be found: "), len(images)) == (1, True, 2)
    assert err.endswith("dog.jpg.\n")
    put(coco, annotations(*(f"{i}.jpg" for i in range(1000))))
    code, _, err, _ = prepare()
    assert (code, err.count("\n")) == (1, 1)
    assert "1,000 of 1,000 photos cannot be found" in err
    assert "--photos" in err


def test_photos_in_another_folder_and_splits_by_option_or_by_lists(prepare, tmp_path):
    (tmp_path / "album").mkdir()
    for name in ("dog.jpg", "cat.jpg"):
        (tmp_path / name).rename(tmp_path / "album" / name)
    code, out, _, images = prepare("--photos", tmp_path / "album", "--split", "test")
    assert (code, images[0]["file"], "(2 test)" in out) == (0, "album/dog.jpg", True)
    lists = put(tmp_path / "karpathy_test.txt", "cat.jpg\n"), put(tmp_path / "train.txt", "dog\n")
    code, out, _, _ = prepare("--photos", tmp_path / "album", "--split-file", *lists)
    assert (code, "2 photos, 2 captions (1 train, 1 test)" in out) == (0, True)


def test_a_folder_of_photos(prepare, tmp_path):
    code, out, _, images = prepare(format="folder", source=tmp_path)
    assert (code, "2 photos, 0 captions (2 test)" in out) == (0, True)
    assert [image["file"] for image in images] == ["cat.jpg", "dog.jpg"]


def test_a_photo_whose_name_is_not_utf_8_can_be_named_on_the_screen(tmp_path):
    """In a process of its own, because its output has to be encoded.  A link to nowhere is a photo not found."""
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jpg")).symlink_to("nowhere")
    command = [sys.executable, "-m", "tellapart", "prepare", "folder", str(tmp_path), "--out", str(tmp_path / "d.json")]
    result = subprocess.run(command, capture_output=True, check=False)
    assert result.returncode == 1
    assert b"caf\xe9.jpg" in result.stderr
    assert b"Traceback" not in result.stderr
    assert len(examples.read(tmp_path / "d.json").examples) == 1


def test_prepare_loads_neither_torch_nor_numpy_for_formats_that_need_no_photos(coco, tmp_path):
    script = (
        "import sys; from tellapart.__main__ import main; "
        f"main(['prepare', 'coco', {str(coco)!r}, '--out', {str(tmp_path / 'd.json')!r}]); "
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
