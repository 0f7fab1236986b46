"""Captions into an XMP packet: what is there stays byte for byte, and a person's text stays too.

A caption goes into three properties, each with a text per language (rdf:Alt): dc:description, which every photo program
shows, tiff:ImageDescription, and Iptc4xmpCore:AltTextAccessibility, which is the alt text.  A property of our own
namespace says who wrote it, with which version and when, and has fingerprints of the texts: so we know our own again
and replace it, and one that was changed by hand stays.  Fields that mark a *picture* as made by AI are
never written: the picture is not.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from tellapart.version import __version__
from tellapart.writing.edits import Edit, apply
from tellapart.writing.packet import RDF, XML, BadPacket, Element, decoded, parse

OURS = "urn:tellapart:xmp/1.0/"
DEFAULT = "x-default"  # the language of the text that is shown where no other is asked for
FIELDS = {  # prefix -> namespace and name of a property
    "dc": ("http://purl.org/dc/elements/1.1/", "description"),
    "tiff": ("http://ns.adobe.com/tiff/1.0/", "ImageDescription"),
    "Iptc4xmpCore": ("http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/", "AltTextAccessibility"),
}
_MARK = (OURS, "Caption")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

EMPTY = (
    '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n'
    f'<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="tellapart {__version__}">\n'
    f' <rdf:RDF xmlns:rdf="{RDF}">\n'
    '  <rdf:Description rdf:about=""\n'
    + "\n".join(f'    xmlns:{prefix}="{uri}"' for prefix, (uri, _) in FIELDS.items())
    + f'\n    xmlns:tellapart="{OURS}"></rdf:Description>\n'
    " </rdf:RDF>\n"
    "</x:xmpmeta>\n"
    '<?xpacket end="w"?>'
).encode()


@dataclass(frozen=True)
class Text:
    """A caption to be written."""

    captions: Mapping[str, str]  # by language; the first is also what is shown by default
    by_hand: bool  # a person wrote or changed it
    date: str  # ISO 8601

    @property
    def wanted(self) -> dict[str, str]:
        cleaned = {language: _NOT_XML.sub("", text).strip() for language, text in self.captions.items()}
        return {DEFAULT: next(iter(cleaned.values())), **cleaned}


@dataclass
class Merged:
    data: bytes
    edits: list[Edit] = field(default_factory=list)  # that make `data` of what was there; none: it stays as it is
    kept: list[str] = field(default_factory=list)  # properties with a person's text


@dataclass(frozen=True)
class _Mark:
    """What we noted of the text that we wrote."""

    source: str = ""
    texts: frozenset[str] = frozenset()

    def is_ours(self, fingerprint: str, by_hand: bool) -> bool:
        """Whether it may be replaced: our own text, but what a person wrote by way of us only by a person's."""
        return fingerprint in self.texts and (self.source == "model" or by_hand)


def merge(before: bytes, text: Text, *, replace: bool = False) -> Merged:
    """The packet with the caption in it; `replace`: also where a person wrote another.  Raises BadPacket."""
    data, encoding, mark = decoded(before)
    root = parse(data)
    home = _description(root)
    if home is None:  # rdf:RDF without any: one is put there first
        filled = apply(data, [_first_description(root)])
        merged = merge(filled, text, replace=replace)
        return _whole(before, mark + merged.data.decode("utf-8").encode(encoding)) if merged.edits else merged
    edits, kept = _Merge(root, home, text, replace).edits()
    after = apply(data, edits)
    if not edits:
        return Merged(before, [], kept)
    if encoding != "utf-8":
        return _whole(before, mark + after.decode("utf-8").encode(encoding), kept)
    moved = [Edit(edit.start + len(mark), edit.end + len(mark), edit.data) for edit in edits]
    return Merged(mark + after, moved, kept)


def _whole(before: bytes, after: bytes, kept: list[str] | None = None) -> Merged:
    return Merged(after, [Edit(0, len(before), after)], kept or [])


def _rdf(root: Element) -> Element:
    found = [element for element in root.walk() if element.name == (RDF, "RDF")]
    if len(found) != 1:
        raise BadPacket(f"this is no XMP: it has {len(found) or 'no'} rdf:RDF, and not one")
    return found[0]


def _description(root: Element) -> Element | None:
    return next((one for one in _rdf(root).children if one.name == (RDF, "Description")), None)


def _first_description(root: Element) -> Edit:
    rdf = _rdf(root)
    empty = f'<r:Description xmlns:r="{RDF}" r:about=""></r:Description>'.encode()
    return _inside(rdf, empty)


def _inside(element: Element, content: bytes) -> Edit:
    """New content at an element's end."""
    if not element.is_one_tag:
        return Edit(element.close, element.close, content)
    return Edit(element.inside - 2, element.inside, b">" + content + f"</{element.tag}>".encode())


def _at_end(element: Element, lines: str) -> Edit:
    """New children after the last one, so that the end tag keeps its own line."""
    if element.children:
        place = element.children[-1].end
        return Edit(place, place, lines.encode("utf-8"))
    return _inside(element, f"{lines}\n  ".encode())


class _Merge:
    def __init__(self, root: Element, home: Element, text: Text, replace: bool):
        self._descriptions = [one for one in _rdf(root).children if one.name == (RDF, "Description")]
        self._home, self._text, self._replace = home, text, replace
        marks = [child for one in self._descriptions for child in one.children if child.name == _MARK]
        self._mark_elements, self._mark = marks, _read_mark(marks)
        self._ours = set[str]()  # fingerprints of our texts that will be in the packet

    def edits(self) -> tuple[list[Edit], list[str]]:
        edits, kept, new = list[Edit](), list[str](), list[str]()
        for prefix in FIELDS:
            changed, is_kept, added = self._field(prefix)
            edits += changed
            new += [added] if added else []
            kept += [f"{prefix}:{FIELDS[prefix][1]}"] if is_kept else []
        source = "person" if self._text.by_hand else "model"
        if edits or new or (self._ours and (source, self._ours) != (self._mark.source, set(self._mark.texts))):
            written = self._written_mark(source)
            if self._mark_elements:
                first, *others = self._mark_elements
                edits += [Edit(first.start, first.end, written.encode())]
                edits += [Edit(one.start, one.end, b"") for one in others]
            else:
                new.append(written)
        if new:
            edits.append(_at_end(self._home, "".join(f"\n   {one}" for one in new)))
        return edits, kept

    def _field(self, prefix: str) -> tuple[list[Edit], bool, str]:
        """Changes of a property, whether a person's text in it stays, and the property if it is new."""
        name = FIELDS[prefix]
        found = [child for one in self._descriptions for child in one.children if child.name == name]
        attributes = [one for one in self._descriptions if name in one.attributes]
        if len(found) + len(attributes) > 1:
            raise BadPacket(f"the XMP has {prefix}:{name[1]} twice")
        if attributes:
            (home,) = attributes
            if not self._may_replace(home.attributes[name], prefix):
                return [], True, ""
            return [Edit(*home.spans[name], b"")], False, self._property(prefix, self._home)
        if not found:
            return [], False, self._property(prefix, self._home)
        (element,) = found
        alternatives = [child for child in element.children if child.name == (RDF, "Alt")]
        if len(element.children) == 1 and alternatives:
            return (*self._languages(prefix, alternatives[0]), "")
        if not self._may_replace("".join(one.text for one in element.walk()), prefix):
            return [], True, ""
        new = self._property(prefix, self._parent(element))
        return [Edit(element.start, element.end, new.encode("utf-8"))], False, ""

    def _parent(self, element: Element) -> Element:
        return next(one for one in self._descriptions if element in one.children)

    def _languages(self, prefix: str, alternatives: Element) -> tuple[list[Edit], bool]:
        """Changes of an rdf:Alt: our texts in, those of others left."""
        items = {_language(item): item for item in alternatives.children if item.name == (RDF, "li")}
        if len(items) < len(alternatives.children):
            raise BadPacket("the XMP has two texts of one language, or something that is no text among them")
        theirs = [item for language, item in items.items() if not self._may_replace(item.text, prefix, language)]
        edits, first, last = list[Edit](), "", ""
        rest = dict(items)
        for language, text in self._text.wanted.items():
            item = rest.pop(language.casefold(), None)
            if item is not None and item in theirs:
                continue
            if item is None:
                # A new default would hide what a person wrote in a language of theirs.
                if language != DEFAULT:
                    last += self._item(prefix, language, text, alternatives)
                elif not theirs:
                    first += self._item(prefix, language, text, alternatives)
                continue
            self._ours.add(_fingerprint(text, prefix, language))
            if item.text != text or item.children:
                new = self._item(prefix, _written_language(item), text, alternatives)
                edits.append(Edit(item.start, item.end, new.encode("utf-8")))
        left = {_fingerprint(item.text, prefix, language) for language, item in rest.items()}
        self._ours |= left & self._mark.texts
        if alternatives.is_one_tag:
            edits += [_inside(alternatives, (first + last).encode("utf-8"))]
        else:  # the default is the first
            edits += [Edit(alternatives.inside, alternatives.inside, first.encode("utf-8"))] if first else []
            edits += [Edit(alternatives.close, alternatives.close, last.encode("utf-8"))] if last else []
        return edits, bool(theirs)

    def _may_replace(self, text: str, prefix: str, language: str = DEFAULT) -> bool:
        own = _fingerprint(text, prefix, language)
        return self._replace or not text.strip() or self._mark.is_ours(own, self._text.by_hand)

    # As XML

    def _property(self, prefix: str, near: Element) -> str:
        uri, local = FIELDS[prefix]
        texts = "".join(self._item(prefix, language, text, near) for language, text in self._text.wanted.items())
        rdf = f"<rdf:Alt{_declared('rdf', RDF, near)}>{texts}</rdf:Alt>"
        return f"<{prefix}:{local}{_declared(prefix, uri, near)}>{rdf}</{prefix}:{local}>"

    def _item(self, prefix: str, language: str, text: str, near: Element) -> str:
        self._ours.add(_fingerprint(text, prefix, language))
        return f'<rdf:li{_declared("rdf", RDF, near)} xml:lang="{_quoted(language)}">{escape(text)}</rdf:li>'

    def _written_mark(self, source: str) -> str:
        near = self._parent(self._mark_elements[0]) if self._mark_elements else self._home
        values = {
            "Source": source,
            "Version": f"tellapart {__version__}",
            "Date": self._text.date,
            "Texts": " ".join(sorted(self._ours)),
        }
        parts = "".join(f"<tellapart:{name}>{escape(value)}</tellapart:{name}>" for name, value in values.items())
        named = _declared("tellapart", OURS, near) + _declared("rdf", RDF, near)
        return f'<tellapart:Caption{named} rdf:parseType="Resource">{parts}</tellapart:Caption>'


def _declared(prefix: str, uri: str, near: Element) -> str:
    """What an element must declare to use the prefix there."""
    return "" if near.scope.get(prefix) == uri else f' xmlns:{prefix}="{uri}"'


def _language(item: Element) -> str:
    return _written_language(item).casefold()


def _written_language(item: Element) -> str:
    return item.attributes.get((XML, "lang"), DEFAULT)


def _quoted(text: str) -> str:
    return escape(text, {'"': "&quot;"})


def _read_mark(elements: list[Element]) -> _Mark:
    """However another program wrote our property: as elements or as attributes."""
    found = dict(_values(elements))
    return _Mark(found.get("Source", ""), frozenset(found.get("Texts", "").split()))


def _values(elements: list[Element]) -> Iterator[tuple[str, str]]:
    for element in elements:
        for one in element.walk():
            yield from ((local, value) for (uri, local), value in one.attributes.items() if uri == OURS)
            if one.name[0] == OURS and one.name != _MARK:
                yield one.name[1], one.text.strip()


def _fingerprint(text: str, prefix: str, language: str) -> str:
    """Of a text in its field: a person may have written the same into another.

    How characters are put together and spaced is no matter: programs change that.
    """
    plain = " ".join(unicodedata.normalize("NFC", text).split())
    sha256 = hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{prefix}/{language.casefold()}/{sha256[:16]}"
