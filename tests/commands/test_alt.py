"""tellapart alt: a diff, then alt texts that lint passes, told apart, and every other byte as it was."""

import re
import shutil

import pytest

from tellapart.album import HERE
from tellapart.lint import faults


@pytest.fixture
def site(tmp_path):
    """Pages with photos of the album, for captions of random weights would all be refused."""
    photo_folder = tmp_path / "site"
    photo_folder.mkdir()
    for number, photo in enumerate(sorted((HERE / "photos").iterdir())[:24:4]):
        shutil.copy(photo, photo_folder / f"{number}.webp")
    (photo_folder / "index.html").write_bytes(
        b'<p>caf\xe9</p>\r\n<img src="0.webp"><img src="1.webp" alt="image of a bus">\r\n'
        b'<img src="2.webp" alt="Two red buses on a street"><img src="3.webp" alt=""><img src="0.webp">'
    )
    (photo_folder / "a.md").write_text("![](4.webp)\n\n![Two red buses](5.webp)\n")
    return photo_folder


def test_a_diff_first_and_then_only_alt_texts_change(tellapart, site):
    before = {path.name: path.read_bytes() for path in site.iterdir()}
    request = ("alt", site)
    code, out, err = tellapart(*request)
    assert (code, err) == (0, "2 pages; 4 alt texts to write (--write changes the pages); 0 left without\n")
    assert {path.name: path.read_bytes() for path in site.iterdir()} == before
    assert tellapart(*request, "--write") == (0, out, "2 pages; 4 alt texts written; 0 left without\n")
    html, markdown = (site / "index.html").read_bytes(), (site / "a.md").read_bytes()
    first, second, third, again = re.findall(rb'alt="([^"]+)"', html)
    assert third == b"Two red buses on a street"
    assert first == again != second
    assert [faults(text.decode()) for text in (first, second)] == [[], []]
    for text in (first, second):
        assert f"+{text.decode()}" in out or text.decode() in out
    assert re.sub(rb' alt="[^"]+"', b"", html) == re.sub(rb' alt="[^"]+"', b"", before["index.html"])
    assert re.sub(rb"!\[.+?\]\(4", b"![](4", markdown) == before["a.md"]
    assert tellapart(*request)[2] == "2 pages; 0 alt texts to write (--write changes the pages); 0 left without\n"
