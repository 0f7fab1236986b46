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
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from xml.sax.saxutils import escape

from tellapart.desk.edits import Edit, apply
from tellapart.desk.packet import RDF, XML, BadPacket, Element, decoded, parse
from tellapart.version import __version__

OURS = "urn:tellapart:xmp/1.0/"
DEFAULT = "x-default"  # the language of the text that is shown where no other is asked for
FIELDS = {  # prefix -> namespace and name of a property
    "dc": ("http://purl.org/dc/elements/1.1/", "description"),
    "tiff": ("http://ns.adobe.com/tiff/1.0/", "ImageDescription"),
    "Iptc4xmpCore": ("http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/", "AltTextAccessibility"),
}
_THEIRS = {"Iptc4xmpCore": (FIELDS["Iptc4xmpCore"][0], "ExtDescrAccessibility")}  # people's, which we never write
_MARK = (OURS, "Caption")
_NO_TEXT = ((XML, "lang"), (RDF, "parseType"))  # attributes
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
    replaced: bool = False  # a person's text


@dataclass(frozen=True)
class How:
    """What is known beside the packet.

    replace  a person's text, too
    withdraw put nothing there, but take away what we wrote, also for a person
    ours     fingerprints of texts that we wrote of this photo, into whichever file
    kept     where else a person's text of the photo is: then ours goes nowhere
    summed   the packet is in a file with a check sum, which is renewed: that is why the packet itself forbids changes
    """

    replace: bool = False
    withdraw: bool = False
    ours: frozenset[str] = frozenset()
    kept: tuple[str, ...] = ()
    summed: bool = False

    def is_ours(self, text: str) -> bool:
        """Of a text in another form of metadata, which programs copy from one into the other."""
        return _hash(text) in {one.rpartition("/")[2] for one in self.ours}


_ALONE = How()


@dataclass(frozen=True)
class _Mark:
    """What we noted of the text that we wrote."""

    source: str = ""
    texts: frozenset[str] = frozenset()

    def replaceable(self, by_hand: bool) -> frozenset[str]:
        """Our own texts, but what a person wrote by way of us only by a person's."""
        return self.texts if self.source == "model" or by_hand else frozenset()


def merge(before: bytes, text: Text, how: How = _ALONE) -> Merged:
    """The packet with the caption in it.  Raises BadPacket.

    Where a person wrote a text of the photo, none of ours is put beside it, and ours is taken away again.
    """
    data, encoding, mark = decoded(before)
    root = parse(data)
    home = _description(root)
    if home is None and not how.kept and not how.withdraw:  # rdf:RDF without any: one is put there first
        filled = apply(data, [_first_description(root)])
        merged = merge(filled, text, how)
        if not merged.edits:
            return Merged(before, [], merged.kept)
        whole = _whole(before, mark + merged.data.decode("utf-8").encode(encoding), merged.kept)
        return replace(whole, replaced=merged.replaced)
    edits, kept, replaced = _Merge(root, home, text, how).edits() if home else ([], list(how.kept), False)
    if not edits:
        return Merged(before, [], kept)
    if root.is_read_only and not how.summed:
        raise BadPacket('the XMP says that it must not be changed (end="r")')
    after = apply(data, edits)
    if encoding != "utf-8":
        return replace(_whole(before, mark + after.decode("utf-8").encode(encoding), kept), replaced=replaced)
    moved = [Edit(edit.start + len(mark), edit.end + len(mark), edit.data) for edit in edits]
    return Merged(mark + after, moved, kept, replaced)


def noted(packet: bytes, *, by_hand: bool) -> frozenset[str]:
    """Fingerprints of the texts that we wrote of its photo and may replace."""
    return _read_mark(_marks(_read(packet))).replaceable(by_hand)


def of_people(packet: bytes, ours: frozenset[str]) -> list[str]:
    """In which fields a person's text stands."""
    return _of_people(_read(packet), ours)


def _read(packet: bytes) -> list[Element]:
    """All descriptions; a packet of no RDF has none."""
    rdf = [one for one in parse(decoded(packet)[0]).walk() if one.name == (RDF, "RDF")]
    return [child for one in rdf for child in one.children]


def _whole(before: bytes, after: bytes, kept: list[str] | None = None) -> Merged:
    return Merged(after, [Edit(0, len(before), after)], kept or [])


def _rdf(root: Element) -> Element:
    found = [element for element in root.walk() if element.name == (RDF, "RDF")]
    if len(found) != 1:
        raise BadPacket(f"this is no XMP: it has {len(found) or 'no'} rdf:RDF, and not one")
    return found[0]


def _descriptions(root: Element) -> list[Element]:
    """They may have another name, which is then the type of what they describe."""
    return _rdf(root).children


def _description(root: Element) -> Element | None:
    return next((one for one in _descriptions(root) if one.name == (RDF, "Description")), None)


def _marks(descriptions: list[Element]) -> list[Element]:
    return [child for one in descriptions for child in one.children if child.name == _MARK]


class _Standing(NamedTuple):
    """A text in a field, in whatever form it is written."""

    field: str
    language: str
    text: str
    span: tuple[int, int]  # of the attribute or the element that holds it
    within: Element | None  # the property, if this is one of its texts

    @property
    def fingerprint(self) -> str:
        return _fingerprint(self.text, self.field.partition(":")[0], self.language)


def _standing(descriptions: list[Element]) -> Iterator[_Standing]:
    names = {name: f"{prefix}:{name[1]}" for prefix, name in [*FIELDS.items(), *_THEIRS.items()]}
    for one in descriptions:
        for name in one.attributes.keys() & names.keys():
            yield _Standing(names[name], DEFAULT, one.attributes[name], one.spans[name], None)
        for element in one.children:
            if element.name not in names:
                continue
            alternatives = _alternatives(element)
            for item in alternatives.children if alternatives else ():
                yield _Standing(names[element.name], _language(item), _said(item), (item.start, item.end), element)
            if not alternatives:
                yield _Standing(names[element.name], DEFAULT, _said(element), (element.start, element.end), None)


def _alternatives(element: Element) -> Element | None:
    """The rdf:Alt of a property that has nothing else."""
    alone = len(element.children) == 1 and element.children[0].name == (RDF, "Alt")
    return element.children[0] if alone and not _said_itself(element) else None


def _said(element: Element) -> str:
    """All text of an element, also what stands in qualifiers, structures and attributes."""
    return "".join(part for one in element.walk() for part in (*one.parts, _said_itself(one)))


def _said_itself(element: Element) -> str:
    return "".join(value for name, value in element.attributes.items() if name not in _NO_TEXT)


def _of_people(descriptions: list[Element], ours: frozenset[str]) -> list[str]:
    standing = (one for one in _standing(descriptions) if one.text.strip() and one.fingerprint not in ours)
    return list(dict.fromkeys(one.field for one in standing))


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
    def __init__(self, root: Element, home: Element, text: Text, how: How):
        self._descriptions = _descriptions(root)
        self._home, self._text, self._how = home, text, how
        self._mark_elements = _marks(self._descriptions)
        self._mark = _read_mark(self._mark_elements)
        self._ours = set[str]()  # fingerprints of our texts that will be in the packet

    def edits(self) -> tuple[list[Edit], list[str], bool]:
        """Changes, where a person's text stays, and whether one is replaced."""
        if self._how.withdraw:
            return _withdrawn(self._descriptions, self._mark.texts), [], False
        ours = self._how.ours | self._mark.replaceable(self._text.by_hand)
        people = list(dict.fromkeys([*_of_people(self._descriptions, ours), *self._how.kept]))
        if people and not self._how.replace:
            return _withdrawn(self._descriptions, self._mark.replaceable(by_hand=False)), people, False
        edits, new = list[Edit](), list[str]()
        for prefix in FIELDS:
            changed, added = self._field(prefix)
            edits += changed
            new += [added] if added else []
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
        return edits, [], bool(people)

    def _field(self, prefix: str) -> tuple[list[Edit], str]:
        """Changes of a property, and the property if it is new."""
        name = FIELDS[prefix]
        elements = [child for one in self._descriptions for child in one.children if child.name == name]
        attributes = [one for one in self._descriptions if name in one.attributes]
        if len(elements) + len(attributes) > 1:
            raise BadPacket(f"the XMP has {prefix}:{name[1]} twice")
        if attributes:
            return [Edit(*attributes[0].spans[name], b"")], self._property(prefix, self._home)
        if not elements:
            return [], self._property(prefix, self._home)
        (element,) = elements
        if (alternatives := _alternatives(element)) is not None:
            return self._languages(prefix, alternatives), ""
        new = self._property(prefix, self._parent(element))
        return [Edit(element.start, element.end, new.encode("utf-8"))], ""

    def _parent(self, element: Element) -> Element:
        return next(one for one in self._descriptions if element in one.children)

    def _languages(self, prefix: str, alternatives: Element) -> list[Edit]:
        """Changes of an rdf:Alt: our texts in, those in other languages left."""
        rest = {_language(item): item for item in alternatives.children if item.name == (RDF, "li")}
        if len(rest) < len(alternatives.children):
            raise BadPacket("the XMP has two texts of one language, or something that is no text among them")
        edits, first, last = list[Edit](), "", ""
        for language, text in self._text.wanted.items():
            item = rest.pop(language.casefold(), None)
            if item is None and language == DEFAULT:  # which is the first
                first = self._item(prefix, language, text, alternatives)
            elif item is None:
                last += self._item(prefix, language, text, alternatives)
            elif _said(item) != text:
                new = self._item(prefix, _written_language(item), text, alternatives)
                edits.append(Edit(item.start, item.end, new.encode("utf-8")))
            else:
                self._ours.add(_fingerprint(text, prefix, language))
        self._ours |= {_fingerprint(_said(item), prefix, language) for language, item in rest.items()} & (
            self._mark.texts
        )
        if alternatives.is_one_tag:
            edits += [_inside(alternatives, (first + last).encode("utf-8"))]
        else:
            edits += [Edit(alternatives.inside, alternatives.inside, first.encode("utf-8"))] if first else []
            edits += [Edit(alternatives.close, alternatives.close, last.encode("utf-8"))] if last else []
        return edits

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


def _withdrawn(descriptions: list[Element], texts: frozenset[str]) -> list[Edit]:
    """Take away these texts of ours, where they still stand as we wrote them, and with them our mark."""
    standing = [one for one in _standing(descriptions) if one.text.strip()]
    gone = [one for one in standing if one.fingerprint in texts]
    if not gone:
        return []
    spans = {(one.start, one.end) for one in _marks(descriptions)}
    for one in gone:
        whole = one.within is not None and all(other in gone for other in standing if other.within is one.within)
        spans.add((one.within.start, one.within.end) if whole and one.within is not None else one.span)
    return [Edit(start, end, b"") for start, end in sorted(spans)]


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
    return f"{prefix}/{language.casefold()}/{_hash(text)}"


def _hash(text: str) -> str:
    plain = " ".join(unicodedata.normalize("NFC", text).split())
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()[:16]
