"""Links in the place of files that tellapart names itself: whoever made a folder cannot say where we write."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
import torch
from PIL import Image

from capscore import files
from capscore.errors import UserError
from tellapart.data.store import Store
from tellapart.desk import captions_file
from tellapart.desk.captions_file import CaptionsFile
from tellapart.desk.serve.database import Photos
from tellapart.desk.serve.job import REVIEWED
from tellapart.desk.write import Captions, Writer
from tellapart.study.folder import Answers

ROW = {"file": "$(touch PWNED).jpg", "caption": "a cat"}


def written(folder, kind, name="captions.jsonl"):
    Image.new("RGB", (8, 8)).save(folder / ROW["file"])
    row = ROW | {"file": str(folder / ROW["file"])}
    writer = Writer(Captions.of(folder / name, [row]), kind)
    with writer.journal.held():
        for one in writer.run():
            if isinstance(one, UserError):
                raise one


def stored(folder):
    store = Store(folder, {"format": 1}, {"grid": (2,)})
    with store.writing():
        store.append([torch.ones(1, 2)], [{"id": "a"}])


def put_aside(folder):
    (folder / "c.jsonl").write_text(json.dumps(ROW) + '\n{"file')
    with CaptionsFile(folder / "c.jsonl").writing():
        pass


def results(folder):
    with CaptionsFile(captions_file.rows_of_results(folder / "c.json")).writing():
        pass


ACTIONS = [  # and the files that each names itself
    (lambda folder: written(folder, "xmp"), ["captions.jsonl.journal", f"{ROW['file']}.xmp"]),
    (lambda folder: written(folder, "txt"), ["captions.jsonl.journal", "$(touch PWNED).txt"]),
    (lambda folder: written(folder, "in-file"), ["captions.jsonl.journal"]),
    (lambda folder: written(folder, "xmp", REVIEWED), ["tellapart.reviewed.jsonl.journal"]),
    (Photos, ["tellapart.db", "tellapart.db-journal"]),
    (Answers, ["answers.db", "answers.db-journal"]),
    (stored, ["manifest.json", "rows.jsonl", "grid.f16"]),
    (put_aside, ["c.jsonl.rejected"]),
    (results, ["c.jsonl"]),
]


@pytest.mark.parametrize("there", [None, b"", b"precious"], ids=["dangling", "empty", "full"])
@pytest.mark.parametrize(("action", "name"), [(action, name) for action, names in ACTIONS for name in names])
def test_nothing_is_written_through_a_link(tmp_path, action, name, there):
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    if there is not None:
        (outside / ".bash_login").write_bytes(there)
    (folder / name).symlink_to(outside / ".bash_login")
    with pytest.raises(UserError) as refused:
        action(folder)
    assert name.removesuffix("-journal") in str(refused.value)
    left = {} if there is None else {".bash_login": there}
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == left


def test_a_captions_file_that_the_user_names_may_be_a_link_of_theirs(tellapart, tmp_path, small_model, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    Image.new("RGB", (40, 40)).save(tmp_path / "a.jpg")
    (tmp_path / "c.jsonl").symlink_to("elsewhere/c.jsonl")
    assert tellapart("caption", "a.jpg", "--model", small_model, "--out", "c.jsonl")[0] == 0
    assert tellapart("write", "c.jsonl")[0] == 0
    assert Path("c.jsonl").is_symlink()
    assert json.loads(Path("elsewhere/c.jsonl").read_text())["file"] == "a.jpg"
    assert Path("a.jpg.xmp").exists()


# What a file has beside its contents


def test_owner_permissions_and_extended_attributes_stay(tmp_path):
    file = tmp_path / "a.xmp"
    file.write_bytes(b"before")
    file.chmod(0o640)
    try:
        os.setxattr(file, "user.note", b"theirs")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    owner = (1234, 2345) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.chown(file, *owner)
    files.replace(file, b"after")
    status = file.stat()
    assert file.read_bytes() == b"after"
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (*owner, 0o640)
    assert os.getxattr(file, "user.note") == b"theirs"


@pytest.mark.skipif(shutil.which("setfacl") is None, reason="setfacl is not installed")
def test_access_lists_stay(tmp_path):
    file = tmp_path / "a.xmp"
    file.write_bytes(b"before")
    os.system(f"setfacl -m u:1234:r {file}")
    before = os.getxattr(file, "system.posix_acl_access")
    files.replace(file, b"after")
    assert os.getxattr(file, "system.posix_acl_access") == before


@pytest.mark.parametrize("kind", ["xmp", "in-file"])
def test_a_file_with_several_names_is_named_and_left(tmp_path, kind):
    written(tmp_path, "xmp")
    for path in (tmp_path / ROW["file"], tmp_path / f"{ROW['file']}.xmp"):
        os.link(path, tmp_path / f"other {path.name}")
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if "journal" not in path.name}
    row = ROW | {"file": str(tmp_path / ROW["file"]), "caption": "a dog"}
    (problem,) = Writer(Captions.of(tmp_path / "captions.jsonl", [row]), kind).run(dry_run=True)
    assert "2 names (hard links)" in str(problem)
    assert {path: path.read_bytes() for path in before} == before


def test_a_captions_file_with_several_names_is_refused(tmp_path):
    (tmp_path / "c.jsonl").write_text("")
    os.link(tmp_path / "c.jsonl", tmp_path / "d.jsonl")
    file = CaptionsFile(tmp_path / "c.jsonl")
    with pytest.raises(UserError, match=r"c\.jsonl: the file has 2 names \(hard links\)"), file.writing():
        pass
