"""Alt texts for the images of a site: those that have none, or one that lint flags, told apart within their page.

Images by URL, outside of the folder or missing are named and left; nothing is fetched.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection as Names
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tellapart import files
from tellapart.captioning.captioner import PhotoCaptioner, see
from tellapart.captioning.chatter import caption_in
from tellapart.captioning.rerank import Collection, RerankConfig, rerank
from tellapart.data.captions import Proposed
from tellapart.decoding.search import Search
from tellapart.errors import UserError
from tellapart.lint import faults, shared_captions
from tellapart.retrievers.retriever import Retriever
from tellapart.writing import edits
from tellapart.writing.edits import Edit
from tellapart.writing.pages import HTML_SUFFIXES, MARKDOWN_SUFFIXES, PageImage, images, line_of

MOST_BYTES = 8 << 20  # of a page
_ROOTS = ("", "static", "public", "assets", "content")  # where site generators have what a page calls /images/a.jpg


@dataclass
class Page:
    path: Path
    data: bytes
    images: list[tuple[PageImage, str]] = field(default_factory=list)  # with their files
    wanted: list[tuple[PageImage, str]] = field(default_factory=list)  # those that need an alt text
    problems: list[str] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)

    @property
    def text(self) -> str:
        return _text(self.data)

    @property
    def after(self) -> bytes:
        return edits.apply(self.data, self.edits)

    def note(self, image: PageImage, reason: str) -> None:
        self.problems.append(f"{self.path}: line {line_of(self.text, image.start)}: {image.source}: {reason}")

    def describe(self, image: PageImage, alt: str) -> None:
        start, end = (len(_bytes(self.text[:place])) for place in (image.start, image.end))
        written = image.written(alt)
        if image.form == "value" and start == end and self.data[start - 1 : start] in b":=":
            written = f" {written}"
        self.edits.append(Edit(start, end, written.encode("utf-8")))


def read_pages(site: Path, ignore: Names[str] = ()) -> Iterator[Page]:
    """The pages of a site, with what of their images needs an alt text.  ignore: rules of lint"""
    if not files.is_folder(site):
        raise UserError(f"{site}: this is not a folder.")
    root = files.real(site)
    for path in sorted(_pages(site)):
        if not files.real(path).is_relative_to(root):
            continue  # a link to a page outside
        page = Page(path, files.read_bytes(path, most=MOST_BYTES))
        if b"\0" in page.data:
            page.problems.append(f"{path}: the page is not text in UTF-8 or another encoding of single bytes.")
        else:
            _find_faults(page, root, ignore)
        yield page


def _pages(site: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(site):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "node_modules"]
        yield from (Path(folder, n) for n in names if Path(n).suffix.lower() in HTML_SUFFIXES + MARKDOWN_SUFFIXES)


def _find_faults(page: Page, root: Path, ignore: Names[str]) -> None:
    found = [one for one in images(page.text, page.path.suffix.lower()) if not one.is_template]
    located = {id(one): _file(one.source, page.path, root) for one in found}
    page.images = [(one, place) for one in found if os.path.isabs(place := located[id(one)])]  # noqa: PTH117
    texts = {f"{place} {number}": [one.alt] for number, (one, place) in enumerate(page.images) if one.alt}
    contents = {name: name.rpartition(" ")[0] for name in texts}
    shared = {alt for group in shared_captions(texts, contents=contents) for alt in group.captions.values()}
    for one in found:
        place = located[id(one)]
        broken = [] if one.alt is None else faults(one.alt, one.source)
        broken += ["shared"] if one.alt is not None and " ".join(one.alt.split()) in shared else []
        if one.alt is not None and not set(broken) - set(ignore):
            continue
        if not os.path.isabs(place):  # noqa: PTH117
            page.note(one, place)
        elif one.fixed:
            page.note(one, one.fixed)
        else:
            page.wanted.append((one, place))


def _file(source: str, page: Path, root: Path) -> str:
    """An image's file, absolute, or why there is none."""
    try:
        parts = urlsplit(source)
        name = unquote(parts.path)
        if parts.scheme or parts.netloc or not name:
            return "is not a file of the site, and nothing is fetched"
        starts = [root / one for one in _ROOTS] if name.startswith("/") else [files.real(page).parent]
        places = [files.real(start / name.lstrip("/")) for start in starts]
    except ValueError:
        return "is not the name of a file"
    inside = [place for place in places if place.is_relative_to(root)]
    if not inside:
        return "is outside the folder"
    return next((str(place) for place in inside if files.is_file(place)), "there is no such file")


def describe(pages: Sequence[Page], captioner: PhotoCaptioner, retriever: Retriever, how: RerankConfig) -> None:
    """Captions for all that need one, each chosen among those of its page's photos."""
    every = list(dict.fromkeys(place for page in pages for _, place in page.wanted))
    search = Search(beam=how.beam)
    proposed = {
        one.file: one for one in captioner.propose(every, search, samples=how.samples, temperature=how.temperature)
    }
    for page in pages:
        good = [place for _, place in page.images if place not in proposed or not proposed[place].error]
        collection = Collection.of(retriever, list(dict.fromkeys(good))) if page.wanted and good else None
        keep = {id(image) for image, _ in page.wanted}
        taken: dict[str, str] = {_plain(one.alt): at for one, at in page.images if one.alt and id(one) not in keep}
        of_file: dict[str, str] = defaultdict(str)
        for image, place in page.wanted:
            alt, why = of_file[place], proposed[place].error
            if not alt and not why and collection is not None:
                alt = of_file[place] = _chosen(proposed[place], collection, retriever, how, set(taken))
                why = "no caption tells it apart from the other images of the page and passes lint"
            if alt:
                taken[_plain(alt)] = place
                page.describe(image, alt)
            else:
                page.note(image, why)


def _chosen(
    proposed: Proposed, collection: Collection, retriever: Retriever, how: RerankConfig, taken: set[str]
) -> str:
    """The best caption by itself and among the page's photos, as an alt text; nothing if none will do."""
    texts = [(one, _alt_text(one.text)) for one in proposed.candidates]
    fitting = [replace(one, text=alt) for one, alt in texts if not faults(alt) and _plain(alt) not in taken]
    if not fitting:
        return ""
    (caption,) = rerank([replace(proposed, candidates=fitting)], see(retriever, [proposed.file]), collection, how)
    return caption.text


def _alt_text(caption: str) -> str:
    text = caption_in(caption)
    return text[:1].upper() + text[1:]


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).strip(".")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")  # any bytes come back as they were


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
