"""Folders in which nothing may be written: one sentence, and everything is as it was."""

import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from capscore.errors import UserError
from study.studies import study
from support.small_models import photos
from tellapart.commands import alt as alt_command
from tellapart.data.readers import folder as reader
from tellapart.desk import alt
from tellapart.desk.serve.database import Photos
from tellapart.desk.serve.job import Job, export
from tellapart.desk.serve.job import write as write_files
from tellapart.study import simulate
from tellapart.study.folder import Answers, save
from tellapart.study.results import analyse
from tellapart.study.results import write as write_results

NOBODY = 65534


@contextmanager
def somebody_else():
    """Root may write everywhere, so it is somebody else for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def folder():
    """Read-only, with photos, captions and a page; outside of tmp_path, which only its owner may enter."""
    base = Path(tempfile.mkdtemp(prefix="read-only-"))
    try:
        made = photos(base / "photos")
        names = sorted(path.name for path in made.iterdir())
        rows = [{"file": str(made / name), "caption": f"a red bus {name[0]}"} for name in names]
        (made / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (made / "index.html").write_text(f'<img src="{names[0]}">')
        for path in (base, made):
            path.chmod(0o755)
        yield made
        made.chmod(0o755)
    finally:
        shutil.rmtree(base)


@pytest.fixture
def locked(folder):
    folder.chmod(0o555)
    before = {path: path.read_bytes() for path in folder.rglob("*")}
    yield folder
    assert {path: path.read_bytes() for path in folder.rglob("*")} == before


def one_sentence(tellapart, *arguments):
    with somebody_else():
        code, out, err = tellapart(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    return err


@pytest.mark.parametrize("option", ["--xmp", "--txt", "--in-file", "--undo"])
def test_write_beside_captions(tellapart, locked, option):
    err = one_sentence(tellapart, "write", locked / "c.jsonl", option)
    assert "c.jsonl.journal" in err


def test_write_to_photos_elsewhere(tellapart, locked, monkeypatch):
    monkeypatch.chdir(locked)
    elsewhere = locked.parent / "mine"
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    shutil.copy(locked / "c.jsonl", elsewhere)
    for options in ((), ("--in-file",)):
        with somebody_else():
            code, _, err = tellapart("write", elsewhere / "c.jsonl", *options)
        assert code == 1
        assert err.count("the file cannot be written (Permission denied)") == 6


def test_pages(locked):
    (page,) = alt.read_pages(locked)
    page.describe(page.wanted[0][0], "a red bus")
    with somebody_else():
        assert alt_command._write(page) is False
    (problem,) = page.problems
    assert problem == (
        f"{locked}/index.html: the file cannot be written (Permission denied); what was there before is untouched."
    )


def test_the_database_of_serve(locked):
    with (
        somebody_else(),
        pytest.raises(
            UserError, match=r"tellapart\.db: the database cannot be made \(Permission denied\); --database names"
        ),
    ):
        Photos(locked)


def test_serve_with_a_database_elsewhere(locked, postgresql):
    stored = Photos(locked, postgresql)
    stored.add({"file": path.name, "caption": "a red bus"} for path in sorted(locked.glob("*.png")))
    job = Job(id=1, kind="write")
    with somebody_else():
        assert len(export(stored, "all", ".csv").splitlines()) == 7
        with pytest.raises(UserError, match=r"tellapart\.reviewed\.jsonl\.journal.*Permission denied"):
            write_files(job, stored, "xmp", "all", replace_texts=False, dry_run=False)


def test_studies(folder):
    made = study(folder, "choose", captions=("plain.json",), sets=2, catch=0)
    result = analyse(made, *simulate.people(made, {"plain": 0.5}))
    folder.chmod(0o555)
    with somebody_else():
        with pytest.raises(UserError, match=r"answers\.db: the database cannot be made \(Permission denied\)"):
            Answers(folder)
        with pytest.raises(UserError, match=r"another/photos/.*: .*\(Permission denied\)"):
            save(made, folder / "another", [("p00000", b"a picture")])
        with pytest.raises(UserError, match=r"results/answers\.jsonl: .*\(Permission denied\)"):
            write_results(result, folder / "results")


def test_a_folder_that_may_not_be_opened_is_not_called_empty(folder):
    (folder / "inside").mkdir()
    (folder / "inside").chmod(0o755)
    with somebody_else():
        assert len(reader.read(folder).examples) == 6
    folder.chmod(0)
    denied = "cannot be opened (Permission denied)."
    empty = f"no photo or clip was found in this folder; {folder}: the folder {denied}"
    for place, sentence in ((folder, empty), (folder / "inside", denied)):
        with somebody_else(), pytest.raises(UserError) as refused:
            reader.read(place)
        assert str(refused.value) == f"{place}: {sentence}"
