"""Alt texts for the images of a site: those that have none are captioned, told apart within their page.

A text that a person wrote stays: what `lint` flags in it is said, and "Photo of" before it is cut.  Pictures that a
caption does not fit, and whatever is not sure to be an image in a page's own text, are named and left.  Images by URL
or outside of the folder are left too; nothing is fetched.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection as Names
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path, PurePath
from urllib.parse import unquote, urlsplit

import numpy as np

from capscore import files
from capscore.errors import UserError
from tellapart.captioning.captioner import PhotoCaptioner
from tellapart.captioning.pipeline import RerankConfig
from tellapart.captioning.rerank import Collection, part_of, rerank
from tellapart.data.media import photos
from tellapart.decoding.rules import Search
from tellapart.desk import site_templates
from tellapart.desk.chatter import caption_in
from tellapart.desk.lint import caption_words, faults, shared_captions
from tellapart.desk.pages import HTML_SUFFIXES, MARKDOWN_SUFFIXES, Change, PageImage, PageText, language_problem
from tellapart.errors import BadPhoto, unexpected
from tellapart.retrievers.retriever import Retriever, embed_photos

MOST_BYTES = 4 << 20  # of a page
_ROOTS = ("", "static", "public", "assets", "content")  # where site generators have what a page calls /images/a.jpg
_BUILT = {  # what generators write, and the files beside it that say which generator it is
    "_site": ("_config.yml", "_config.yaml", "_config.toml", ".eleventy.js", "eleventy.config.*"),
    "public": ("hugo.toml", "hugo.yaml", "hugo.json", "config.toml", "gatsby-config.*"),
    "site": ("mkdocs.yml",),
    "build": ("docusaurus.config.*",),
    "dist": ("astro.config.*", "vite.config.*"),
    "out": ("next.config.*",),
    "_build": ("conf.py", "_toc.yml"),
    "book": ("book.toml",),
}


@dataclass
class Page:
    path: Path
    data: bytes
    images: list[tuple[PageImage, str]] = field(default_factory=list)  # with their files
    wanted: list[tuple[PageImage, str]] = field(default_factory=list)  # those that need an alt text
    left: list[str] = field(default_factory=list)  # what is for a person to decide
    unseen: str = ""  # what seems to be an image, but is in code and the like
    problems: list[str] = field(default_factory=list)  # what could not be read or written
    changes: list[Change] = field(default_factory=list)

    @cached_property
    def text(self) -> PageText:
        return PageText(self.data.decode("utf-8", "surrogateescape"), self.path.suffix.lower())

    @property
    def after(self) -> bytes:
        return self.text.after(self.changes).encode("utf-8", "surrogateescape")

    def sentence(self, place: int, what: str, reason: str) -> str:
        return f"{self.path}: line {self.text.line_of(place)}: {what}: {reason}"

    def leave(self, image: PageImage, reason: str) -> None:
        self.left.append(self.sentence(image.start, image.source or "an image", reason))

    def describe(self, image: PageImage, alt: str) -> None:
        self.changes.append(Change.of(image, alt, self.text.text))

    def check(self) -> None:
        """Only changes that change their alt texts and nothing else are kept."""
        try:
            held = self.text.holding(self.changes) if self.changes else []
        except Exception as error:
            self.give_up(error)
            return
        for change in self.changes:
            if change not in held:
                self.leave(change.image, "an alt text put here would change more of the page")
        self.changes = held

    def give_up(self, error: Exception) -> None:
        """After an error of the program with this page; the others go on."""
        self.problems.append(str(unexpected(self.path, error)))
        self.images, self.wanted, self.changes = [], [], []


class _Site:
    """The files of a site's images, and whether a caption may fit them: each is looked at once."""

    def __init__(self, root: Path):
        self.root = root
        self.suspicion = cache(_suspicion_or_fault)

    def file(self, source: str, page: Path) -> tuple[str, str, str]:
        """An image's file, absolute; or why a person has to decide, or why it cannot be read."""
        try:
            parts = urlsplit(source)
            name = unquote(parts.path)
            if parts.scheme or parts.netloc or not name:
                return "", "is not a file of the site, and nothing is fetched", ""
            starts = [self.root / folder for folder in _ROOTS] if name.startswith("/") else [files.real(page).parent]
            places = [files.real(start / name.lstrip("/")) for start in starts]
        except ValueError:
            return "", "is not the name of a file", ""
        inside = [place for place in places if place.is_relative_to(self.root)]
        if not inside:
            return "", "is outside the folder", ""
        place = next((str(place) for place in inside if files.is_file(place)), "")
        return place, "", "" if place else "there is no such file"


def _suspicion_or_fault(file: str) -> tuple[str, str]:
    """A reason for a person to decide, or why it cannot be read."""
    try:
        return suspicion(file), ""
    except (BadPhoto, UserError) as error:
        return "", str(error).removeprefix(f"{file}: ")


def read_pages(folder: Path, ignore: Names[str] = (), skipped: list[str] | None = None) -> Iterator[Page]:
    """The pages of a site, with what of their images needs an alt text.

    ignore   rules of lint
    skipped  gets the folders that are left out, and why
    """
    if not files.is_folder(folder):
        raise UserError(f"{folder}: this is not a folder.")
    site = _Site(files.real(folder))
    for path in sorted(_pages(folder, [] if skipped is None else skipped)):
        if not files.real(path).is_relative_to(site.root):
            continue  # a link to a page outside
        page = Page(path, b"")
        try:
            page.data = files.read_bytes(path, most=MOST_BYTES)
        except UserError as error:
            page.problems.append(str(error))
        if b"\0" in page.data or re.search(rb"\x1b[$(]", page.data):
            page.problems.append(f"{path}: the page is not text in UTF-8 or another encoding of single bytes.")
        else:
            try:
                _judge(page, site, ignore)
            except Exception as error:
                page.give_up(error)
        yield page


def _pages(site: Path, skipped: list[str]) -> Iterator[Path]:
    for folder, folders, names in os.walk(site):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "node_modules"]
        for name in sorted(folders):
            marks = [mark for mark in _BUILT.get(name, ()) if any(True for _ in Path(folder).glob(mark))]
            if marks and (name != "public" or marks != ["config.toml"] or files.is_folder(Path(folder, "content"))):
                folders.remove(name)
                skipped.append(
                    f"{Path(folder, name)}: is what a generator builds ({marks[0]} is beside it), and left out"
                )
        yield from (Path(folder, n) for n in names if Path(n).suffix.lower() in HTML_SUFFIXES + MARKDOWN_SUFFIXES)


def _judge(page: Page, site: _Site, ignore: Names[str]) -> None:
    located = [(image, *site.file(image.source, page.path)) for image in page.text.images]
    page.images = [(image, file) for image, file, _, _ in located if file]
    texts = {f"{file} {number}": [image.alt] for number, (image, file) in enumerate(page.images) if image.alt}
    contents = {name: name.rpartition(" ")[0] for name in texts}
    shared = {alt for group in shared_captions(texts, contents=contents) for alt in group.captions.values()}
    language = language_problem(page.text, page.path.name)
    for image, file, elsewhere, failed in located:
        if image.alt == "{}" or image.alt == "" or (image.left == "decorative" and not image.alt):
            continue
        if image.alt is not None and not is_filler(image.alt, image.source):
            _judge_text(page, image, shared, ignore, language)
        elif image.alt is not None and (rules := faults(image.alt, image.source)) and set(rules) <= set(ignore):
            continue
        elif reason := image.fixed or image.left or language or elsewhere:
            page.leave(image, reason)
        else:
            doubt, failed = ("", failed) if failed else site.suspicion(file)
            if failed:
                page.problems.append(page.sentence(image.start, image.source, failed))
            elif doubt:
                page.leave(image, doubt)
            else:
                page.wanted.append((image, file))
    page.left += [page.sentence(*note) for note in page.text.notes]
    if page.text.unseen:
        lines = sorted({page.text.line_of(place) for place in page.text.unseen})
        some = ", ".join(map(str, lines[:8])) + (", ..." if len(lines) > 8 else "")
        page.unseen = (
            f"{page.path}: line {some}: what looks like images in code, comments, scripts or templates is left"
        )


def _judge_text(page: Page, image: PageImage, shared: Names[str], ignore: Names[str], language: str) -> None:
    """A person's text: "Photo of" is cut, the rest is said."""
    assert image.alt is not None
    rules = faults(image.alt, image.source) if image.alt.strip() else ["empty"]
    rules += ["shared"] if " ".join(image.alt.split()) in shared else []
    rules = [rule for rule in rules if rule not in ignore]
    if "opening" in rules and not image.fixed and not language and (change := _cut(page.text.text, image)):
        page.changes.append(change)
        rules = [rule for rule in rules if rule != "opening"]
    if rules:
        page.leave(image, f'"{" ".join(image.alt.split())[:60]}": {", ".join(rules)}')


def _cut(text: str, image: PageImage) -> Change | None:
    """The change that takes "Photo of" off, and leaves the rest as it is written."""
    assert image.alt is not None
    start = image.start + (text[image.start : image.start + 1] in "\"'")
    length, rest = opening(text[start : image.end]), image.alt[opening(image.alt) :]
    if not length or len(rest) == len(image.alt) or not caption_words(rest) or is_filler(rest, image.source):
        return None
    first = text[start + length]
    if first != rest[0]:
        return None
    if first.isascii() and image.alt.lstrip()[0].isupper():
        first = first.upper()
    return Change(image, start, start + length + 1, first, first + rest[1:])


# Texts, and what nobody can have meant as one: a file's name, or "image"


_PLACEHOLDERS = {
    *("image", "images", "img", "photo", "photos", "photograph", "picture", "pictures", "pic", "graphic", "thumbnail"),
    *("alt", "alt text", "alttext", "alternative text", "image description", "description", "placeholder", "untitled"),
    *("image placeholder", "placeholder image", "default", "todo", "tbd", "foto", "bild", "imagen", "immagine"),
    *("null", "undefined"),
}
_NAME_OF_FILE = re.compile(
    r"\S+\.(?:jpe?g|jfif|mpo|png|webp|gif|bmp|tiff?|heic|heif|avif|svg|dng|cr2|nef|arw)"
    r"|(?:img|imag|image|_?dsc[fn]?|pict|pxl|mvimg|gopr|dji|screenshot|photo|whatsapp)[-_]?\d+(?:[-_]\S*)?",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[ _-]*(?<!\d)(?!1[5-9]\d\d|20\d\d)\d{1,4}\Z")  # but a year says something
# Only what is about the picture as a whole: "Aerial photo of" says more than that.
_CUT = re.compile(
    r"\s*(?:(?:this|it|here)(?:\s+is|['\u2019]s)\s+)?(?:(?:an?|the|this)\s+)?(?:photo(?:graph)?|image|picture|pic)\s+of\s+(?=\S)",
    re.IGNORECASE,
)


def is_filler(alt: str, source: str) -> bool:
    """True for a text that is only a file's name or a word that stands for one."""
    words = " ".join(caption_words(alt))
    if _NUMBER.sub("", words) in _PLACEHOLDERS:
        return True
    text, name = alt.strip(" \"'"), PurePath(unquote(source.partition("?")[0]))
    if text.casefold() == name.name.casefold() and name.suffix:
        return True
    is_stem = text.casefold() == name.stem.casefold() and re.search(r"_|\d{3}", text) is not None
    return " " not in text and (is_stem or _NAME_OF_FILE.fullmatch(text) is not None)


def opening(written: str) -> int:
    """Length of "Photo of " or the like at the start of a text, before what is to stay."""
    match = _CUT.match(written)
    return match.end() if match else 0


# Pictures that captions of photos do not fit: logos, charts, dividers, screenshots, drawings.  Names, sizes and colours
# only raise a suspicion.  It is enough to leave a picture to a person, who sees what it is.

_TINY = 40  # pixels of the longer side, below which a picture is no photo
_LONGEST = 4.0  # times as long as wide
_FLAT = 6.0  # standard deviation of the brightness
_ONE_COLOUR, _SAME_AS_BESIDE = 0.5, 0.6  # shares of pixels; 3 in 1,000 photos have both
_NAMES = re.compile(
    r"(?<![a-z])(?:logos?|logotype|wordmark|brand|icons?|favicon|sprites?|spacer|divider|separator|rule|bullet|arrows?|"
    r"buttons?|btn|badges?|banner|background|bg|pattern|texture|pixel|blank|transparent|charts?|graphs?|plots?|histogram|"
    r"diagrams?|flowchart|infographic|timeline|schematic|wireframe|mockup|screenshots?|screengrab|screencast|"
    r"screen|qr|qrcode|barcode|captcha|signature|placeholder|loading|spinner|maps?|table|formula|equation|drawing|illustration)"
    r"(?![a-z])"
)


def suspicion(file: str) -> str:
    """A reason why a caption may not fit a picture; empty if it seems to be a photo.  BadPhoto: it cannot be read."""
    name = PurePath(file)
    if name.suffix.lower() == ".svg":
        return "is a drawing (SVG)"
    stem = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.stem).lower()
    if named := _NAMES.search(stem):
        return f"seems to be no photo (its name has {named[0]!r})"
    image, _ = photos.upright(file)
    width, height = image.size
    if max(width, height) < _TINY:
        return f"is tiny ({width} x {height})"
    if max(width, height) > _LONGEST * min(width, height):
        return f"has the shape of a divider or banner ({width} x {height})"
    pixels = np.asarray(image.convert("RGB"))[:4096, :4096]  # (H, W, 3)
    if float(pixels.mean(2).std()) < _FLAT and float(pixels.reshape(-1, 3).std(0).max()) < _FLAT:
        return "is of one colour"
    some = pixels[::2, ::2].astype(np.int64) >> 4
    counts = np.unique(some[..., 0] << 8 | some[..., 1] << 4 | some[..., 2], return_counts=True)[1]
    same = float((pixels[:, 1:] == pixels[:, :-1]).all(2).mean())
    if counts.max() / counts.sum() > _ONE_COLOUR and same > _SAME_AS_BESIDE:
        return "seems to be a chart, a logo, a drawing or a screenshot (large areas of one colour)"
    return ""


# New texts


def describe(pages: Sequence[Page], captioner: PhotoCaptioner, retriever: Retriever, config: RerankConfig) -> None:
    """Captions for all that need one, each chosen among those of its page's photos; photos are seen once."""
    if retriever.sees != "photos":
        raise UserError(f"the retriever {retriever.name!r} knows photos by their references and sees none.")
    every = list(dict.fromkeys(file for page in pages for _, file in page.wanted))
    search = Search(beam=config.beam)
    candidates = captioner.propose(every, search, samples=config.samples, temperature=config.temperature)
    proposed = {item.file: item for item in candidates}
    shown = dict.fromkeys(file for page in pages if page.wanted for _, file in page.images)
    embedded = embed_photos(retriever, [file for file in shown if file not in proposed or not proposed[file].error])
    place_of = {file: place for place, file in enumerate(embedded.files)}

    @cache
    def chosen(file: str, group: frozenset[str], taken: frozenset[str]) -> str:
        """The best caption by itself and among the page's photos, as an alt text; nothing if none will do."""
        texts = [(candidate, _alt_text(candidate.text)) for candidate in proposed[file].candidates]
        fitting = [
            replace(candidate, text=alt)
            for candidate, alt in texts
            if not faults(alt) and _plain(alt) not in taken and not site_templates.IN_SOURCE.search(alt)
        ]
        if not fitting or file not in place_of:
            return ""
        places = sorted(place_of[other] for other in group if other in place_of)
        scene = Collection(retriever, part_of(embedded, places)).scene([file])
        (caption,) = rerank([replace(proposed[file], candidates=fitting)], scene, config)
        return caption.text

    for page in pages:
        wanted = {id(image) for image, _ in page.wanted}
        taken = {_plain(image.alt) for image, _ in page.images if image.alt and id(image) not in wanted}
        alt_of: dict[str, str] = defaultdict(str)
        group = frozenset(file for _, file in page.images)
        for image, file in page.wanted:
            if why := proposed[file].error:
                page.problems.append(page.sentence(image.start, image.source, why))
                continue
            alt = alt_of[file] = alt_of[file] or chosen(file, group, frozenset(taken))
            is_text = image.form in ("markdown", "value") and not alt.isascii()
            if not alt:
                page.leave(image, "no caption tells it apart from the other images of the page and passes lint")
            elif is_text and re.search("[\udc80-\udcff]", page.text.text):
                page.leave(image, "its alt text would need letters that the page's encoding may not have")
            else:
                taken.add(_plain(alt))
                page.describe(image, alt)


def _alt_text(caption: str) -> str:
    text = caption_in(caption)
    return text[:1].upper() + text[1:]


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).strip(".")
