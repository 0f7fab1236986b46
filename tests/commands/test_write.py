"""tellapart write: what other programs read of it, what stays, and what --undo brings back."""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from support.killed import run_killed

exiftool = pytest.mark.skipif(shutil.which("exiftool") is None, reason="exiftool is not installed")
WRITTEN = {"XMP-dc:Description", "XMP-tiff:ImageDescription", "XMP-iptcCore:AltTextAccessibility"}
KINDS = ["a.jpg", "b.png", "c.webp", "lossless.webp", "alpha.webp"]


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """One of each kind, with metadata of others in it; and a TIFF."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "photos"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (33, 47, 4), dtype=np.uint8)
    image = Image.fromarray(pixels[..., :3])
    exif = Image.Exif()
    exif[0x010F], exif[0x0112] = "Camera & Co", 6
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", "theirs")
    image.save(folder / "a.jpg", exif=exif, comment=b"theirs", icc_profile=b"profile", quality=90)
    image.save(folder / "b.png", exif=exif, pnginfo=text)
    image.save(folder / "c.webp", exif=exif)
    image.save(folder / "lossless.webp", lossless=True)
    Image.fromarray(pixels).save(folder / "alpha.webp", lossless=True)
    image.save(folder / "d.tif")
    return folder


def listed(*rows, name="captions.jsonl"):
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def captions(folder, words="a noisy square"):
    paths = [path for path in sorted(folder.iterdir()) if path.suffix not in (".xmp", ".txt")]
    return listed(*({"file": str(path), "caption": f"{words} {path.name}"} for path in paths))


def tags(folder):
    """All that exiftool reads of each file, but for the file's own dates and sizes.  One call: it starts slowly."""
    command = ["exiftool", "-j", "-G1", "-struct", *sorted(folder.iterdir())]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    changing = ("System:", "ExifTool:", "SourceFile", "XMP-x:", "XMP-tellapart:", "File:FileSize")
    return {read["System:FileName"]: without(read, changing) for read in found}


def without(tags, prefixes):
    return {name: value for name, value in tags.items() if not name.startswith(prefixes)}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def pixels_of(path):
    with Image.open(path) as image:
        return hashlib.sha256(image.tobytes()).hexdigest(), image.size, image.mode


# What is read of the picture itself differs where a WebP gets the chunk that says what else is in the file.
OF_WEBP = ("RIFF:", "File:FileType", "Composite:")


@exiftool
def test_exiftool_and_pillow_read_what_is_in_the_files_and_all_else_is_as_before(tellapart, photos):
    (photos / "d.tif").unlink()
    before, seen, bytes_before = tags(photos), {name: pixels_of(photos / name) for name in KINDS}, contents(photos)
    listed(*({"file": f"photos/{name}", "caption": f"a <noisy> & colourful {name}"} for name in KINDS))
    assert tellapart("write", "captions.jsonl", "--in-file")[::2] == (0, "5 written; 0 unchanged\n")
    for name, after in tags(photos).items():
        assert {after.pop(field) for field in WRITTEN} == {f"a <noisy> & colourful {name}"}
        changing = OF_WEBP if name.endswith(".webp") else ("-",)
        assert without(before[name], changing) == without(after, changing)
        assert pixels_of(photos / name) == seen[name]
        with Image.open(photos / name) as image:
            assert f"a &lt;noisy&gt; &amp; colourful {name}</rdf:li>".encode() in image.info["xmp"]
    assert tellapart("write", "captions.jsonl", "--in-file")[2] == "0 written; 5 unchanged\n"
    assert tellapart("write", "captions.jsonl", "--undo")[0] == 0
    assert contents(photos) == bytes_before


@exiftool
@pytest.mark.slow
def test_exiftool_reads_sidecars_of_all_kinds_of_photos(tellapart, photos):
    before = contents(photos)
    assert tellapart("write", captions(photos))[0] == 0
    assert {name: data for name, data in contents(photos).items() if not name.endswith(".xmp")} == before
    found = tags(photos)
    for name in before:
        assert {found[f"{name}.xmp"][field] for field in WRITTEN} == {f"a noisy square {name}"}
    assert tellapart("write", "captions.jsonl", "--undo")[0] == 0
    assert contents(photos) == before


@exiftool
@pytest.mark.slow
def test_metadata_that_exiftool_wrote_into_photos_stays(tellapart, photos):
    (photos / "d.tif").unlink()
    change = ["-XMP-dc:Title=theirs", "-XMP-dc:Description=", "-XMP-xmp:Rating=4", "-q", "-overwrite_original"]
    subprocess.run(["exiftool", *change, *photos.iterdir()], check=True)
    before = tags(photos)
    captions(photos)
    assert tellapart("write", "captions.jsonl", "--in-file")[0] == 0
    for name, after in tags(photos).items():
        assert {after.pop(field) for field in WRITTEN} == {f"a noisy square {name}"}
        assert after == before[name]


def test_a_dry_run_says_what_it_would_do_and_does_nothing(tellapart, photos):
    captions(photos)
    (photos / "a.txt").write_text("by Anna")
    before = contents(photos)
    code, out, _ = tellapart("write", "captions.jsonl", "--txt", "--dry-run")
    assert code == 0
    assert {line.split("\t")[0].rpartition("/")[2]: line.split("\t")[1] for line in out.splitlines()} == {
        **{f"{name}.txt": "write" for name in ("alpha", "b", "c", "d", "lossless")},
        "a.txt": "keep",
    }
    assert contents(photos) == before
    assert sorted(path.name for path in photos.parent.iterdir()) == ["captions.jsonl", "photos"]


def test_our_text_files_are_replaced_and_those_of_people_are_not(tellapart, photos):
    (photos / "a.txt").write_text("by Anna")
    captions(photos, "first")
    assert tellapart("write", "captions.jsonl", "--txt")[0] == 0
    listed({"file": "photos/a.jpg", "caption": "second"}, {"file": "photos/b.png", "caption": "second"})
    assert "1 written; 0 unchanged; 1 keep a person's text" in tellapart("write", "captions.jsonl", "--txt")[2]
    assert [(photos / name).read_text() for name in ("a.txt", "b.txt")] == ["by Anna", "second\n"]
    assert tellapart("write", "captions.jsonl", "--txt", "--replace")[0] == 0
    assert (photos / "a.txt").read_text() == "second\n"
    assert tellapart("write", "captions.jsonl", "--undo")[0] == 0  # of all three runs
    assert (photos / "a.txt").read_text() == "by Anna"
    assert not (photos / "b.txt").exists()


def test_undo_gives_photos_the_time_back_that_they_had(tellapart, photos):
    captions(photos)
    for path in photos.iterdir():
        os.utime(path, ns=(10**18, 10**18 + 123_000))
    tellapart("write", "captions.jsonl", "--in-file")
    assert (photos / "a.jpg").stat().st_mtime_ns > 10**18 + 123_000  # other programs see that it changed
    tellapart("write", "captions.jsonl", "--undo")
    assert {path.stat().st_mtime_ns for path in photos.iterdir()} == {10**18 + 123_000}


def test_undo_leaves_what_changed_since_and_takes_back_the_rest(tellapart, photos):
    captions(photos)
    tellapart("write", "captions.jsonl")
    tellapart("write", "captions.jsonl", "--txt")
    theirs = {photos / "a.jpg.xmp": b"<mine/>", photos / "b.txt": b"mine"}
    for path, data in theirs.items():
        path.write_bytes(data)
    code, _, err = tellapart("write", "captions.jsonl", "--undo")
    assert code == 1
    assert f"{photos}/b.txt: the file has changed since it was written" in err
    assert f"{photos}/a.jpg.xmp: has changed since it was written (this is no XMP" in err
    assert {path: path.read_bytes() for path in photos.iterdir() if path.suffix in (".xmp", ".txt")} == theirs


@exiftool
@pytest.mark.parametrize("kind", ["--xmp", "--in-file"])
def test_undo_takes_our_texts_out_of_files_that_another_program_changed_since(tellapart, photos, kind):
    (photos / "d.tif").unlink()
    for words in ("first", "second"):
        tellapart("write", captions(photos, words), kind)
    written = sorted(path for path in photos.iterdir() if (path.suffix == ".xmp") == (kind == "--xmp"))
    assert len(written) == len(KINDS)
    command = ["exiftool", "-q", "-overwrite_original", "-XMP-xmp:Rating=5", "-XMP-dc:Title=theirs"]
    subprocess.run([*command, *written[1:]], check=True)
    before, changed = tags(photos), contents(photos)
    code, out, _ = tellapart("write", "captions.jsonl", "--undo", "--dry-run")
    assert (code, contents(photos)) == (0, changed)
    assert {tuple(line.split("\t")) for line in out.splitlines()} == {
        (str(path), "withdraw" if path in written[1:] else "restore") for path in written
    }
    summary = "1 file as before; 4 changed by others since, without our texts; 0 changes not taken back\n"
    assert tellapart("write", "captions.jsonl", "--undo")[::2] == (0, summary)
    after = tags(photos)
    for path in written[1:]:
        theirs = {name: value for name, value in before[path.name].items() if name not in WRITTEN}
        assert after[path.name] == theirs
        assert theirs["XMP-xmp:Rating"] == 5
        assert b"<tellapart:" not in path.read_bytes()
    assert not (photos.parent / "captions.jsonl.journal").exists()


@exiftool
def test_undo_leaves_a_changed_file_where_a_persons_text_had_been_replaced(tellapart, photos):
    listed({"file": "photos/a.jpg", "caption": "a square"})
    command = ["exiftool", "-q", "-overwrite_original", photos / "a.jpg"]
    subprocess.run([*command, "-XMP-dc:Description=by Anna"], check=True)
    assert tellapart("write", "captions.jsonl", "--in-file", "--replace")[0] == 0
    subprocess.run([*command, "-XMP-xmp:Rating=5"], check=True)
    code, _, err = tellapart("write", "captions.jsonl", "--undo")
    assert code == 1
    assert "a.jpg: the file has changed since it was written" in err


@pytest.mark.parametrize(("there", "option", "written"), [
    ([], "auto", "a.jpg.xmp"), (["a.xmp"], "auto", "a.xmp"), ([], "stem", "a.xmp"), (["a.xmp"], "file", "a.jpg.xmp"),
    (["a.xmp", "a.cr2"], "auto", "a.jpg.xmp"),  # that of the RAW photo
])  # fmt: skip
def test_a_sidecar_has_the_name_that_is_asked_for_or_that_there_is(tellapart, photos, there, option, written):
    from tellapart.desk.xmp import EMPTY

    for name in there:
        (photos / name).write_bytes(EMPTY)
    listed({"file": "photos/a.jpg", "caption": "a noisy square"})
    assert tellapart("write", "captions.jsonl", "--name", option)[0] == 0
    assert b"a noisy square" in (photos / written).read_bytes()


def test_languages_of_rows_are_languages_of_the_sidecar(tellapart, photos):
    rows = [
        {"file": "photos/a.jpg", "caption": "a square", "language": "en"},
        {"file": "photos/a.jpg", "caption": "ein Quadrat", "language": "de"},
    ]
    assert tellapart("write", listed(*rows))[0] == 0
    data = (photos / "a.jpg.xmp").read_text()
    texts = ('xml:lang="x-default">a square<', 'xml:lang="en">a square<', '"de">ein Quadrat<')
    assert [data.count(text) for text in texts] == [3, 3, 3]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_kill_loses_nothing_and_the_same_command_goes_on(tellapart, photos, share):
    captions(photos)
    before = contents(photos)
    rows = photos.parent / "captions.jsonl"
    run_killed(photos.parent / "captions.jsonl.journal", 3, share, "write", rows, "--in-file")
    images = {name: data for name, data in contents(photos).items() if not name.startswith(".tellapart-")}
    assert sum(images[name] != before[name] for name in before) == 2
    assert {name: pixels_of(photos / name) for name in before}
    assert tellapart("write", "captions.jsonl", "--in-file")[0] == 1  # the TIFF
    assert all(b"a noisy square" in (photos / name).read_bytes() for name in KINDS)
    assert tellapart("write", "captions.jsonl", "--undo")[0] == 0
    assert contents(photos) == before


def test_rows_of_caption_are_written_and_say_that_a_model_wrote_them(tellapart, small_model, photos):
    (photos / "d.tif").unlink()
    tellapart("caption", "photos", "--model", small_model, "--out", "o.csv")
    assert tellapart("write", "o.csv", "--in-file")[0] == 0
    assert b"<tellapart:Source>model<" in (photos / "a.jpg").read_bytes()
    assert tellapart("write", "o.csv")[0] == 0  # the same pictures: what was put into the files changes nothing
