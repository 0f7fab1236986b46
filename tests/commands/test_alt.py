"""tellapart alt: a diff, then alt texts that lint passes, told apart, and every other byte as it was."""

import pkgutil
import re
import shutil

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tellapart.album import HERE
from tellapart.data.media import photos
from tellapart.desk import alt
from tellapart.desk.lint import faults


@pytest.fixture
def site(tmp_path):
    """Pages with photos of the album, for captions of random weights would all be refused."""
    photo_folder = tmp_path / "site"
    photo_folder.mkdir()
    for number, photo in enumerate(sorted((HERE / "photos").iterdir())[:24:4]):
        shutil.copy(photo, photo_folder / f"{number}.webp")
    (photo_folder / "index.html").write_bytes(
        b'<p>caf\xe9</p>\r\n<img src="0.webp"><img src="1.webp" alt="IMG_2041">\r\n'
        b'<img src="2.webp" alt="Two red buses on a street"><img src="3.webp" alt=""><img src="0.webp">'
    )
    (photo_folder / "a.md").write_text("![](4.webp)\n\n![Two red buses](5.webp)\n")
    return photo_folder


def test_a_diff_first_and_then_only_alt_texts_change(tellapart, site):
    before = {path.name: path.read_bytes() for path in site.iterdir()}
    request = ("alt", site)
    code, out, err = tellapart(*request)
    to_write = "alt texts to write (--write changes the pages); 0 left to you"
    assert (code, err.splitlines()[-1]) == (0, f"2 pages; 4 {to_write}")
    assert {path.name: path.read_bytes() for path in site.iterdir()} == before
    code, again, err = tellapart(*request, "--write")
    assert (code, again, err.splitlines()[-1]) == (0, out, "2 pages; 4 alt texts written; 0 left to you")
    html, markdown = (site / "index.html").read_bytes(), (site / "a.md").read_bytes()
    first, second, third, again = re.findall(rb'alt="([^"]+)"', html)
    assert third == b"Two red buses on a street"
    assert first == again != second
    assert [faults(text.decode()) for text in (first, second)] == [[], []]
    for text in (first, second):
        assert f"+{text.decode()}" in out or text.decode() in out
    assert re.sub(rb' alt="[^"]+"', b"", html) == re.sub(rb' alt="[^"]+"', b"", before["index.html"])
    assert re.sub(rb"!\[.+?\]\(4", b"![](4", markdown) == before["a.md"]
    assert tellapart(*request)[2].splitlines()[-1] == f"2 pages; 0 {to_write}"


FOUNDER = (
    "Our founder, Maria Schmidt, who opened the first shop in Bremen in 1952 with two friends and a loan from her aunt"
)


@pytest.mark.parametrize(
    ("text", "after", "said"),
    [
        ("Acme", None, "one-word"),
        ("Berlin", None, "one-word"),
        (f"{FOUNDER} in the old town of Hamburg", None, "long"),
        ("Photo of the 1953 flood by D. Lange &amp; others", "The 1953 flood by D. Lange &amp; others", ""),
        ("image of a bus", "a bus", ""),
        ("Aerial photo of the town", None, "opening"),
        ("Photo 1953", None, ""),
        ("very very very old", None, "repeated-word"),
        (" ", None, "empty"),
        ("a red bus", None, ""),
        ("", None, ""),
    ],
)
def test_what_a_person_wrote_stays(tellapart, site, text, after, said):
    for page in ("index.html", "a.md"):
        (site / page).unlink()
    page, notes = site / "page.html", site / "page.md"
    page.write_text(f'<p><img src="0.webp" alt="{text}"></p>\n')
    notes.write_text(
        f'---\nimage: 0.webp\nimage_alt: "{text}"\n---\n![{text or "a b"}](0.webp)\n' if text.strip() else ""
    )
    before = [page.read_text(), notes.read_text()]
    code, out, err = tellapart("alt", site, "--write")
    assert code == 0
    assert [page.read_text(), notes.read_text()] == [one.replace(text, after) if after else one for one in before]
    notes_of_pages = [line for line in err.splitlines()[:-1] if str(site) in line]
    assert all(said in line for line in notes_of_pages)
    assert bool(notes_of_pages) == bool(said)
    assert bool(out) == bool(after)


def test_pictures_that_a_caption_does_not_fit_are_named(tellapart, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    photo = sorted((HERE / "photos").iterdir())[0]
    chart = Image.new("RGB", (640, 400), "white")
    for number in range(6):
        bar = (60 + 90 * number, 350 - 40 * number, 110 + 90 * number, 350)
        ImageDraw.Draw(chart).rectangle(bar, fill=(30, 90, 200))
    chart.save(site / "figures.png")
    chart.save(site / "figures.jpg", quality=85)
    Image.new("RGB", (1, 1)).save(site / "s.gif")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 900, 3), np.uint8)).save(site / "line.png")
    Image.new("RGB", (300, 200), (200, 30, 30)).save(site / "block.png")
    (site / "drawn.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    shutil.copy(photo, site / "acme-logo.webp")
    names = ["figures.png", "figures.jpg", "s.gif", "line.png", "block.png", "drawn.svg", "acme-logo.webp"]
    (site / "a.html").write_text("".join(f'<p><img src="{name}"></p>\n' for name in names))
    before = (site / "a.html").read_bytes()
    code, out, err = tellapart("alt", site, "--write")
    assert (code, out, (site / "a.html").read_bytes()) == (0, "", before)
    lines = [line for line in err.splitlines() if line.startswith((str(site), "1 page"))]
    assert [line.split(": ")[2] for line in lines[:-1]] == names
    assert [line.split(": line ")[1].split(":")[0] for line in lines[:-1]] == [str(n + 1) for n in range(len(names))]
    assert "7 left to you" in lines[-1]


def test_photos_are_not_taken_for_drawings():
    taken = [photo.name for photo in (HERE / "photos").iterdir() if alt.suspicion(str(photo))]
    assert taken == []


def test_pages_in_other_languages_and_what_generators_build_are_left(tellapart, site):
    (site / "index.html").write_text('<html lang="de"><body><img src="0.webp"></body></html>')
    (site / "a.md").write_text("---\nlang: fr\n---\n![](4.webp)\n")
    (site / "a.pl.md").write_text("![](4.webp)\n")
    (site / "_config.yml").write_text("title: A\n")
    (site / "_site").mkdir()
    (site / "_site" / "b.html").write_text('<img src="../0.webp">')
    code, out, err = tellapart("alt", site, "--write")
    assert (code, out) == (0, "")
    assert err.splitlines()[-1].startswith("3 pages; 0 alt texts written; 3 left to you")
    assert "_site: is what a generator builds (_config.yml is beside it)" in err
    by_name = tellapart("alt", site / "_site", "--write")[2]
    assert by_name.startswith(f"{site}/_site/b.html: line 1")


def test_only_what_cannot_be_read_is_a_fault(tellapart, site):
    for page in ("index.html", "a.md"):
        (site / page).unlink()
    (site / "0.webp").write_bytes((site / "0.webp").read_bytes()[:200])
    (site / "a.html").write_text('<img src="0.webp"><img src="gone.jpg"><img src="1.webp">')
    (site / "b.html").write_bytes(b"<\0i\0m\0g\0>")
    code, _, err = tellapart("alt", site, "--write")
    assert (code, err.splitlines()[-1]) == (1, "2 pages; 1 alt texts written; 0 left to you; 3 not read or written")
    (site / "b.html").unlink()
    (site / "a.html").write_text('<a href="/"><img src="1.webp"></a>')
    assert tellapart("alt", site)[0] == 0


@pytest.mark.parametrize("where", ["pages.of_html", "pages.PageText.holding"])
def test_an_error_of_the_program_with_one_page_is_that_pages(tellapart, site, monkeypatch, where):
    for page in ("index.html", "a.md"):
        (site / page).unlink()
    (site / "a.html").write_text('<p>planted</p><img src="0.webp" alt="photo of a bus">')
    (site / "b.html").write_text('<img src="0.webp" alt="photo of a bus">')
    name = f"tellapart.desk.{where}"
    right = pkgutil.resolve_name(name)

    def wrong(given, *rest):
        return right(given, *rest) if "planted" not in getattr(given, "text", given) else {}["\x1b"]

    monkeypatch.setattr(name, wrong)
    before = (site / "a.html").read_bytes()
    code, _, err = tellapart("alt", site, "--write")
    assert (code, "\x1b" in err, (site / "a.html").read_bytes()) == (1, False, before)
    assert f"{site}/a.html: tellapart has an error here, please report it (KeyError: " in err
    assert (site / "b.html").read_text() == '<img src="0.webp" alt="a bus">'
    assert err.endswith("2 pages; 1 alt texts written; 0 left to you; 1 not read or written\n")


def test_an_image_of_many_pages_is_read_once(site, monkeypatch):
    for page in ("index.html", "a.md"):
        (site / page).unlink()
    for number in range(30):
        (site / f"{number}.html").write_text('<img src="0.webp"><img src="1.webp">')
    opened = []
    upright, embed = photos.upright, alt.embed_photos
    monkeypatch.setattr(photos, "upright", lambda file: (opened.append(file), upright(file))[1])
    monkeypatch.setattr(alt, "embed_photos", lambda model, files: (opened.extend(files), embed(model, files))[1])
    from tellapart.captioning.captioner import load
    from tellapart.captioning.rerank import RerankConfig
    from tellapart.models import retrievers

    pages = list(alt.read_pages(site))
    alt.describe(pages, load(), retrievers.load(), RerankConfig(samples=0))
    assert sorted(opened) == sorted(2 * [str((site / name).resolve()) for name in ("0.webp", "1.webp")])
    assert len({page.after for page in pages}) == 1
    assert all(len(page.changes) == 2 for page in pages)
