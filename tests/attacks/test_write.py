"""Sidecars, captions, photos, journals and pages of others in the way of `write` and `alt`: nothing is lost."""

import base64
import hashlib
import json
import os
import pkgutil

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from capscore import files
from tellapart.data.media.identity import identify
from tellapart.desk import alt, in_file, xmp
from tellapart.errors import BadPhoto

STEERING = ("\x1b", "\x07", "\r", "\u202e")
TEXT = xmp.Text({"x-default": "a dog"}, False, "2026-01-01T00:00:00Z")


@pytest.fixture
def photo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (20, 20), (9, 99, 9)).save(tmp_path / "photos" / "a.jpg")
    return tmp_path / "photos" / "a.jpg"


def listed(*rows):
    with files.Path("c.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return "c.jsonl"


def refused(tellapart, reason, *options):
    """One sentence, and nothing but the captions and photos is there."""
    before = {path: path.read_bytes() for path in files.Path().rglob("*") if path.is_file()}
    code, _, err = tellapart("write", "c.jsonl", *options)
    assert code == 1
    assert reason in err
    lines = [line for line in err.splitlines() if not line.endswith("/s")]  # progress, on a slow machine
    assert len(lines) == 2  # and the counts
    assert not any(character in err for character in STEERING)
    assert {path: path.read_bytes() for path in files.Path().rglob("*") if path.is_file()} == before


LAUGHS = '<!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "' + "&a;" * 1000 + '"><!ENTITY c "' + "&b;" * 1000 + '">]><a>&c;</a>'


@pytest.mark.parametrize(
    ("sidecar", "reason"),
    [
        ("my notes", "a.jpg.xmp: the XMP is not well-formed XML (line 1"),
        ('<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>', "the XMP has a DTD, which is not read"),
        ('<!DOCTYPE a SYSTEM "http://localhost:1/x.dtd"><a/>', "the XMP has a DTD, which is not read"),
        (LAUGHS, "the XMP has a DTD, which is not read"),
        ("<a>" * 100_000, "the XMP has more than"),
        ("<a>" + "<b/>" * 300_000 + "</a>", "the XMP has more than"),
        ("\0" * (17 << 20), "more than 16 MB"),
    ],
    ids=["text", "xxe", "dtd", "laughs", "deep", "many", "large"],
)
def test_a_sidecar_that_is_no_xmp_is_left(tellapart, photo, sidecar, reason):
    photo.with_name("a.jpg.xmp").write_text(sidecar)
    listed({"file": "photos/a.jpg", "caption": "a dog"})
    refused(tellapart, reason)
    refused(tellapart, reason, "--replace")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_a_packet_in_another_encoding_stops_nothing(tellapart, photo, encoding):
    packet = xmp.EMPTY.decode().encode(encoding)
    data = photo.read_bytes()
    body = b"http://ns.adobe.com/xap/1.0/\0" + packet
    photo.write_bytes(data[:2] + b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body + data[2:])
    for name in ("b.jpg", "c.jpg"):
        photo.with_name(name).write_bytes(data)
    photo.with_name("b.jpg.xmp").write_bytes(packet)
    listed(*({"file": f"photos/{name}.jpg", "caption": "a dog"} for name in "abc"))
    for options in ((), ("--in-file",)):
        assert tellapart("write", "c.jsonl", *options)[0] == 0
    assert ">a dog</rdf:li>".encode(encoding) in photo.read_bytes()
    assert ">a dog</rdf:li>" in photo.with_name("b.jpg.xmp").read_bytes().decode(encoding)
    assert b">a dog</rdf:li>" in photo.with_name("c.jpg").read_bytes()


@pytest.mark.parametrize("where", ["identify", "files.replace"])
def test_an_error_of_the_program_with_one_photo_is_that_photos(tellapart, photo, monkeypatch, where):
    photo.with_name("b.jpg").write_bytes(photo.read_bytes())
    listed({"file": "photos/a.jpg", "caption": "a dog"}, {"file": "photos/b.jpg", "caption": "a dog"})
    name = f"tellapart.desk.write.{where}"
    right = pkgutil.resolve_name(name)

    def wrong(file, *rest):
        return right(file, *rest) if "b.jpg" in str(file) else {}[f"\x1b{file}"]

    monkeypatch.setattr(name, wrong)
    code, _, err = tellapart("write", "c.jsonl")
    assert code == 1
    assert "photos/a.jpg: tellapart has an error here, please report it (KeyError: " in err
    assert err.endswith("1 written; 0 unchanged; 1 could not be written for\n")
    assert "\x1b" not in err


def test_two_sidecars_of_one_photo_are_a_question(tellapart, photo):
    for name in ("a.xmp", "a.jpg.xmp"):
        photo.with_name(name).write_bytes(xmp.EMPTY)
    listed({"file": "photos/a.jpg", "caption": "a dog"})
    refused(tellapart, "has two files, a.jpg.xmp and a.xmp; --name file or stem says which to use")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"file": "photos/gone.jpg"}, "gone.jpg: there is no such file"),
        ({"file": "photos/a.jpg", "key": "0" * 16 + "-00000000-00000000"}, "has changed since it was captioned"),
        ({"file": "../{outside}/b.jpg"}, "is outside the current folder"),
        ({"file": "{absolute}/b.jpg"}, "is outside the current folder"),
        ({"file": "photos/notes.docx"}, "its name is not that of a photo"),
        ({"file": "photos"}, "is a folder"),
        ({"file": "photos/\x1b[31m\u202e\r.jpg"}, "there is no such file"),
        ({"file": "photos/a\0.jpg"}, "is no file name"),
    ],
)
def test_rows_of_other_files_are_left(tellapart, photo, tmp_path_factory, row, reason):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "b.jpg").write_bytes(photo.read_bytes())
    photo.with_name("notes.docx").write_text("notes")
    name = row["file"].format(outside=os.path.relpath(outside, photo.parent.parent.parent), absolute=outside)
    listed(row | {"file": name, "caption": "a dog"})
    refused(tellapart, reason)
    assert [path.name for path in outside.iterdir()] == ["b.jpg"]


def test_captions_that_steer_or_are_no_xml_become_plain_text(tellapart, photo):
    listed({"file": "photos/a.jpg", "caption": "a\x1b[31m \x00dog\ud800\ufffe\u202e ]]> <b>&lt;"})
    assert tellapart("write", "c.jsonl")[0] == 0
    data = photo.with_name("a.jpg.xmp").read_text()
    assert "]]&gt; &lt;b&gt;&amp;lt;</rdf:li>" in data
    assert not any(character in data for character in STEERING)


@pytest.mark.parametrize("line", ["x", "{}", '{"file": "/etc/passwd", "before": null, "after": "", "back": []}'])
def test_a_journal_of_others_is_refused(tellapart, photo, line):
    listed({"file": "photos/a.jpg", "caption": "a dog"})
    files.Path("c.jsonl.journal").write_text(line + "\n")
    code, _, err = tellapart("write", "c.jsonl", "--undo")
    assert code == 2
    assert "c.jsonl.journal: line 1" in err


def sha256(data):
    return data if data is None else hashlib.sha256(data).hexdigest()


def change(file, before, after):
    """A line of a journal that makes `before` of `after`, or of no file where there was none."""
    back = [[0, len(after), base64.b64encode(before).decode()]] if before is not None else []
    row = {"file": str(file), "before": sha256(before), "after": sha256(after), "back": back}
    return json.dumps(row | {"time": 1, "replaced": False}) + "\n"


@pytest.mark.parametrize("where", ["outside", "inside", "through a link", "beside a photo outside", "a photo"])
def test_a_forged_journal_changes_nothing_of_others(tellapart, photo, tmp_path_factory, where):
    outside = tmp_path_factory.mktemp("project")
    link = photo.parent.parent / "link"
    link.symlink_to(outside)
    folder = {"inside": photo.parent, "through a link": link, "a photo": photo.parent}.get(where, outside)
    names = ("a.png", "b.png") if where == "a photo" else ("requirements.txt", "LICENSE.txt")
    files_of_others = [folder / name for name in names]
    for file in files_of_others:
        file.write_bytes(b"precious")
        if where in ("beside a photo outside", "through a link"):
            file.with_suffix(".jpg").write_bytes(photo.read_bytes())
    # Even if the captions name the photo: it is not the one that was captioned, or nothing says what that showed.
    key = "0" * 16 + "-00000000-00000000"
    listed(*({"file": str(file.with_suffix(".jpg")), "caption": "a dog", "key": key} for file in files_of_others[:1]))
    one, other = files_of_others
    forged = change(one, b"evil", b"precious") + change(other, None, b"precious")
    files.Path("c.jsonl.journal").write_text(forged)
    code, out, _ = tellapart("write", "c.jsonl", "--undo", "--dry-run")
    assert where == "a photo" or (code, out) == (1, "")
    code, _, err = tellapart("write", "c.jsonl", "--undo")
    assert code == 1
    assert err.endswith("0 files as before; 2 changes not taken back\n")
    assert [file.read_bytes() for file in files_of_others] == [b"precious"] * 2
    assert files.Path("c.jsonl.journal").read_text() == forged


def test_what_was_written_beside_a_captioned_photo_elsewhere_is_taken_back(tellapart, photo, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "b.jpg").write_bytes(photo.read_bytes())
    key = f"{identify(photo).picture[:16]}-00000000-00000000"
    row = {"file": str(elsewhere / "b.jpg"), "caption": "a dog", "key": key}
    for options in ((), ("--txt",), ("--in-file",)):
        listed(row)
        assert tellapart("write", "c.jsonl", *options)[0] == 0
        assert tellapart("write", "c.jsonl", "--undo")[0] == 0
        assert [path.name for path in elsewhere.iterdir()] == ["b.jpg"]
        tellapart("write", "c.jsonl", *options)
        files.Path("c.jsonl").write_text("")
        code, _, err = tellapart("write", "c.jsonl", "--undo")
        assert code == 1
        assert "is outside the current folder and that of the captions" in err
        os.chdir(elsewhere)
        assert tellapart("write", photo.parent.parent / "c.jsonl", "--undo")[0] == 0
        os.chdir(photo.parent.parent)
    assert (elsewhere / "b.jpg").read_bytes() == photo.read_bytes()


# Photos


def jpeg(*segments):
    parts = [b"\xff" + bytes([kind]) + (len(body) + 2).to_bytes(2, "big") + body for kind, body in segments]
    return b"\xff\xd8" + b"".join(parts) + b"\xff\xd9"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (jpeg((0xEB, b"JP\0\1\0\0\0\1\0\0\0\x20jumb....c2pa")), "signed"),
        (jpeg((0xE2, b"MPF\0II*\0")), "several pictures"),
        (b"\xff\xd8\xff\xe1\xff\xff", "damaged"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\x04caBX....", "damaged"),
        (b"RIFF\xff\xff\xff\x7fWEBP", "damaged"),
        (b"II*\0" + b"\0" * 20, "RAW"),
        (b"GIF89a", "only JPEG, PNG and WebP"),
    ],
)
def test_files_that_are_not_written_into(data, reason):
    with pytest.raises(BadPhoto, match=reason):
        in_file.merge(data, "a.cr2", TEXT, xmp.MergeOptions(replace=True))


def test_xmp_that_unpacks_to_very_much_is_refused(tmp_path):
    info = PngInfo()
    info.add_itxt("XML:com.adobe.xmp", " " * (17 << 20), zip=True)
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png", pnginfo=info)
    with pytest.raises(xmp.BadPacket, match="more than 16 MB"):
        in_file.merge((tmp_path / "a.png").read_bytes(), "a.png", TEXT, xmp.MergeOptions())


# Pages


OF_OTHERS = ("../../../../etc/passwd", "//localhost:1/a.jpg", "http://localhost:1/a.jpg", "file:///etc/passwd")


@pytest.mark.parametrize("source", [*OF_OTHERS, "link.jpg", "%00.jpg", "http://[", "gone\x1b[31m.jpg"])
def test_images_that_are_not_of_the_site_are_named_and_left(tellapart, tmp_path, source):
    site, page = tmp_path / "site", f'<img src="{source}">'.encode()
    site.mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "outside.jpg")
    (site / "link.jpg").symlink_to(tmp_path / "outside.jpg")
    (site / "index.html").write_bytes(page)
    code, out, err = tellapart("alt", site, "--write")
    assert (code, out) == (1 if b"gone" in page else 0, "")  # one that is missing is a fault
    assert err.count("\n") == 2
    assert "\x1b" not in err
    assert (site / "index.html").read_bytes() == page


@pytest.mark.parametrize("suffix", [".html", ".md"])
def test_pages_of_nonsense_take_no_time(tmp_path, suffix):
    parts = ["<img ", "![", "![[", "<!--", "`", "![a](", "[a]: ", '<img alt="', "---\n", "<title>"]
    for number, part in enumerate(parts):
        (tmp_path / f"{number}{suffix}").write_text(part * 500)
    assert not [image for page in alt.read_pages(tmp_path) for image in page.wanted]
