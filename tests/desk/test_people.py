"""A person's text, wherever in a photo or beside it: none of ours is put anywhere for that photo."""

import json
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tellapart.data.media.identity import identify
from tellapart.desk import in_file, xmp
from tellapart.desk.captions_file import fingerprint

exiftool = pytest.mark.skipif(shutil.which("exiftool") is None, reason="exiftool is not installed")
MINE, OURS = "Papa isst Fisch, Rügen", "a machine wrote this"
KINDS = ["--xmp", "--in-file", "--txt"]
XMP = f"""<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:description><rdf:Alt>
<rdf:li xml:lang="de">{MINE}</rdf:li></rdf:Alt></dc:description></rdf:Description></rdf:RDF></x:xmpmeta>""".encode()
RATED = XMP[: XMP.index(b"<dc:")] + b"</rdf:Description></rdf:RDF></x:xmpmeta>"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    return tmp_path / "photos"


def picture():
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8))


def write(tellapart, folder, *options, caption=OURS):
    names = sorted(path for path in folder.iterdir() if path.suffix not in (".xmp", ".txt"))
    rows = [{"file": str(path), "caption": caption} for path in names]
    for row, path in zip(rows, names, strict=True):  # a model wrote it
        row["key"] = f"{identify(path).picture[:16]}-00000000-{fingerprint(row)}"
    Path("captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tellapart("write", "captions.jsonl", *options)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def by_exiftool(*arguments):
    subprocess.run(["exiftool", "-q", "-overwrite_original", *map(str, arguments)], check=True, capture_output=True)


def nothing_of_ours(tellapart, folder, kind, reason):
    before, count = contents(folder), len([path for path in folder.iterdir() if path.suffix != ".xmp"])
    code, out, _ = write(tellapart, folder, kind, "--dry-run")
    assert (code, {line.split("\t")[1] for line in out.splitlines()}) == (0, {"keep"})
    code, _, err = write(tellapart, folder, kind)
    assert code == 0
    assert f"0 written; 0 unchanged; {count} keep a person's text (--replace replaces it)\n" in err
    assert err.count("keeps a person's text (") == count
    assert reason in err
    assert contents(folder) == before


# Written by another program

PLACES = {
    "description": ("XMP-dc:Description", ["a.jpg", "b.png", "c.webp"], "dc:description"),
    "in German": ("XMP-dc:Description-de", ["a.jpg"], "dc:description"),
    "image description": ("XMP-tiff:ImageDescription", ["a.jpg"], "tiff:ImageDescription"),
    "alt text": ("XMP-iptcCore:AltTextAccessibility", ["a.jpg"], "Iptc4xmpCore:AltTextAccessibility"),
    "long alt text": ("XMP-iptcCore:ExtDescrAccessibility", ["a.jpg"], "Iptc4xmpCore:ExtDescrAccessibility"),
    "IPTC": ("IPTC:Caption-Abstract", ["a.jpg"], "the IPTC caption"),
    "EXIF": ("EXIF:ImageDescription", ["a.jpg", "b.png", "c.webp"], "the EXIF description"),
}


@exiftool
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_a_text_in_the_photo_keeps_ours_out(tellapart, folder, place, kind):
    field, names, reason = PLACES[place]
    for name in names:
        picture().save(folder / name)
    by_exiftool("-codedcharacterset=utf8", f"-{field}={MINE}", *folder.iterdir())
    nothing_of_ours(tellapart, folder, kind, reason)


@exiftool
@pytest.mark.parametrize("field", ["XMP-dc:Description", "IPTC:Caption-Abstract", "EXIF:ImageDescription"])
@pytest.mark.parametrize("name", ["a.tif", "a.dng", "a.heic"])
def test_a_text_in_a_tiff_raw_or_heic_photo_keeps_ours_out_of_its_sidecar(tellapart, folder, name, field):
    file = folder / ("a.heic" if name == "a.heic" else "a.tif")
    if name == "a.heic":
        pytest.importorskip("pi_heif", reason="tellapart[heic]")
        shutil.copy(Path(__file__).parent.parent / "golden" / "quadrants.heic", file)
        field = field.replace("IPTC:Caption-Abstract", "XMP-dc:Description")  # it has no place for it
    else:
        picture().save(file)
    by_exiftool(f"-{field}={MINE}", file)
    file.rename(folder / name)
    nothing_of_ours(tellapart, folder, "--xmp", f" in {name})")


@exiftool
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_in_a_sidecar_keeps_ours_out_of_all_fields_and_of_the_photo(tellapart, folder, kind):
    for name in ("a.jpg", "b.jpg"):
        picture().save(folder / name)
    by_exiftool("-o", folder / "a.jpg.xmp", f"-XMP-dc:Description={MINE}", folder / "a.jpg")
    by_exiftool("-o", folder / "b.xmp", f"-XMP-iptcCore:AltTextAccessibility={MINE}", folder / "b.jpg")
    nothing_of_ours(tellapart, folder, kind, "dc:description")


@exiftool
@pytest.mark.parametrize("kind", ["--xmp", "--in-file"])
def test_a_correction_in_another_program_takes_ours_out_of_the_other_fields(tellapart, folder, kind):
    for name in ("a.jpg", "b.png", "c.webp"):
        picture().save(folder / name)
    assert write(tellapart, folder, kind)[0] == 0
    written = [path for path in folder.iterdir() if kind == "--in-file" or path.suffix == ".xmp"]
    by_exiftool(f"-XMP-dc:Description={MINE}", "-XMP-xmp:Rating=5", *written)
    corrected = contents(folder)
    code, out, _ = write(tellapart, folder, kind, "--dry-run", caption="another")
    assert (code, {line.split("\t")[1] for line in out.splitlines()}) == (0, {"withdraw"})
    assert contents(folder) == corrected
    assert "in 3 of them our earlier text withdrawn" in write(tellapart, folder, kind, caption="another")[2]
    command = ["exiftool", "-j", "-G1", "-XMP:all", *written]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert OURS not in listing
    for found in json.loads(listing):
        assert (found["XMP-dc:Description"], found["XMP-xmp:Rating"]) == (MINE, 5)
        assert "XMP-tiff:ImageDescription" not in found
    nothing_of_ours(tellapart, folder, kind, "dc:description")
    assert tellapart("write", "captions.jsonl", "--undo")[0] == 0
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert OURS not in listing
    assert {found["XMP-dc:Description"] for found in json.loads(listing)} == {MINE}


@exiftool
def test_our_text_that_another_program_copied_into_iptc_and_exif_stays_ours(tellapart, folder):
    picture().save(folder / "a.jpg")
    write(tellapart, folder, "--in-file")
    by_exiftool("-IPTC:Caption-Abstract<XMP-dc:Description", "-ImageDescription<XMP-dc:Description", folder / "a.jpg")
    code, _, err = write(tellapart, folder, "--in-file", caption="another")
    assert (code, err) == (0, "1 written; 0 unchanged\n")


# Made by hand


def segment(kind, body):
    return b"\xff" + bytes([kind]) + (len(body) + 2).to_bytes(2, "big") + body


def chunk(kind, body):
    return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")


def profile(name, data):
    body = f"\n{name}\n{len(data):8}\n{data.hex()}\n".encode()
    return chunk(b"zTXt", f"Raw profile type {name}".encode() + b"\0\0" + zlib.compress(body))


IPTC = b"\x1c\x02\x00\x00\x02\x00\x04\x1c\x02\x78" + len(MINE.encode()).to_bytes(2, "big") + MINE.encode()
RESOURCES = b"8BIM\x03\xed\x00\x00\x00\x00\x00\x02ab8BIM\x04\x04\x03abc" + len(IPTC).to_bytes(4, "big") + IPTC
HALF = len(XMP) // 2


def extended(place, part):
    head = b"http://ns.adobe.com/xmp/extension/\0" + b"A" * 32
    return segment(0xE1, head + len(XMP).to_bytes(4, "big") + place.to_bytes(4, "big") + part)


IN_JPEG = {
    "extended XMP": extended(HALF, XMP[HALF:]) + extended(0, XMP[:HALF]),
    "IPTC": segment(0xED, b"Photoshop 3.0\0" + RESOURCES),
    "UTF-16": segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + XMP.decode().encode("utf-16-le")),
}
IN_PNG = {
    "XMP as a profile": profile("xmp", XMP),
    "XMP as APP1": profile("APP1", b"http://ns.adobe.com/xap/1.0/\0" + XMP),
    "IPTC as a profile": profile("iptc", RESOURCES),
    "IPTC alone": profile("iptc", IPTC),
    "a description": chunk(b"iTXt", b"Description\0\0\0\0\0" + MINE.encode()),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [*IN_JPEG, *IN_PNG])
def test_a_text_in_a_less_common_place_keeps_ours_out(tellapart, folder, place, kind):
    file = folder / ("a.jpg" if place in IN_JPEG else "a.png")
    picture().save(file)
    data = file.read_bytes()
    end = 2 if place in IN_JPEG else data.index(b"IDAT") - 4
    file.write_bytes(data[:end] + IN_JPEG.get(place, b"") + IN_PNG.get(place, b"") + data[end:])
    before = contents(folder)
    _, _, err = write(tellapart, folder, kind)
    assert "0 written" in err
    assert contents(folder) == before
    if kind != "--in-file":  # where it may be refused
        nothing_of_ours(tellapart, folder, kind, " in a.")


def test_a_text_in_an_avif_keeps_ours_out_of_its_sidecar(tellapart, folder):
    picture().save(folder / "a.avif", xmp=XMP)
    nothing_of_ours(tellapart, folder, "--xmp", "dc:description in a.avif")


def with_description(file, text, make="OLYMPUS IMAGING CORP.", model="E-M10"):
    exif = Image.Exif()
    exif[0x010E], exif[0x010F], exif[0x0110] = text, make, model
    picture().save(file, exif=exif)


DEFAULTS = ("OLYMPUS DIGITAL CAMERA         ", "SONY DSC", "DCIM\\100MEDIA\\DJI_0012.JPG", "IMG_1234", "dav", "E-M10")
PLACE_NAMES, OTHERS = ("Paris 2019", "David", "Norway", "Monday"), ("♥", "猫", "P", "dsc of us", "Created by Anna")


def test_what_a_camera_writes_into_every_photo_is_no_persons_text_and_what_only_looks_like_it_is(tellapart, folder):
    for text in (*PLACE_NAMES, *OTHERS, "my new digital camera"):
        with_description(folder / "a.jpg", text.encode())
        assert in_file.read((folder / "a.jpg").read_bytes(), "a.jpg").texts == [("the EXIF description", text)]
    for number, text in enumerate((*DEFAULTS, " ")):
        with_description(folder / f"{number}.jpg", text)
    assert "7 written; 0 unchanged; 1 keep" in write(tellapart, folder)[2]


def test_a_resource_that_is_cut_off_says_nothing():
    entry = struct.pack("<HHHLL", 1, 34377, 7, 6, 26)  # Photoshop's resources, at the end of a TIFF
    assert in_file.read(b"II*\0\x08\0\0\0" + entry + b"\0" * 4 + b"8BIM\x04\x04", "a.tif").texts == []


def test_language_and_translated_keyword_of_a_png_text_stay(tellapart, folder):
    info = PngInfo()
    info.add_itxt("XML:com.adobe.xmp", RATED.decode(), "de-DE", "Über", zip=True)
    picture().save(folder / "a.png", pnginfo=info)
    assert write(tellapart, folder, "--in-file")[2] == "1 written; 0 unchanged\n"
    with Image.open(folder / "a.png") as image:
        image.load()
        text = image.text["XML:com.adobe.xmp"]
    assert (text.lang, text.tkey, OURS in text) == ("de-DE", "Über", True)


def test_an_xmp_in_the_photo_that_cannot_be_read_is_said_and_left(tellapart, folder):
    picture().save(folder / "a.jpg", xmp=b"<rdf:RDF")
    code, _, err = write(tellapart, folder)
    assert code == 1
    assert "a.jpg: the XMP is not well-formed XML" in err
    assert "nobody knows whether a person's text is in it (--replace does not ask)" in err
    assert write(tellapart, folder, "--replace")[0] == 0


def test_a_packet_that_says_that_it_must_not_be_changed_is_named(tellapart, folder):
    picture().save(folder / "a.jpg", xmp=RATED + b'<?xpacket end="r"?>')
    before = contents(folder)
    code, _, err = write(tellapart, folder, "--in-file")
    assert code == 1
    assert "a.jpg: the XMP says that it must not be changed" in err
    assert contents(folder) == before
    assert xmp.EMPTY.rstrip().endswith(b'<?xpacket end="w"?>')
