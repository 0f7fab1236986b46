"""Captions into an XMP packet: what is there stays byte for byte, and a person's text stays too.

A caption goes into three properties, each with a text per language (rdf:Alt): dc:description, which every photo program
shows, tiff:ImageDescription, and Iptc4xmpCore:AltTextAccessibility, which is the alt text.  A property of our own
namespace says who wrote it, with which version and when, and has fingerprints of the texts: so we know our own again
and replace it, and one that was changed by hand stays.  Fields that mark a *picture* as made by AI are
never written: the picture is not.

A packet is untrusted: one with a DTD is refused, so no entity is ever defined, fetched or expanded, and bytes,
elements and levels are bounded.  It is changed by splices, which can be taken back exactly.
"""

from __future__ import annotations

import codecs
import hashlib
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from xml.parsers import expat
from xml.sax.saxutils import escape

from tellapart.version import __version__

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
OURS = "urn:tellapart:xmp/1.0/"
DEFAULT = "x-default"  # the language of the text that is shown where no other is asked for
FIELDS = {  # prefix -> namespace and name of a property
    "dc": ("http://purl.org/dc/elements/1.1/", "description"),
    "tiff": ("http://ns.adobe.com/tiff/1.0/", "ImageDescription"),
    "Iptc4xmpCore": ("http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/", "AltTextAccessibility"),
}
MOST_BYTES = 16 << 20
_MOST_ELEMENTS, _MOST_LEVELS = 200_000, 200
_XML = "http://www.w3.org/XML/1998/namespace"
_NAMES = {  # namespace and name of each property that may hold a text of the photo -> as it is called
    **{name: f"{prefix}:{name[1]}" for prefix, name in FIELDS.items()},
    (FIELDS["Iptc4xmpCore"][0], "ExtDescrAccessibility"): "Iptc4xmpCore:ExtDescrAccessibility",  # we never write it
}
_MARK = (OURS, "Caption")
_NO_TEXT = ((_XML, "lang"), (RDF, "parseType"))  # attributes

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


class BadPacket(Exception):
    """Says what is wrong, to go after the file's name."""


# Splices


class Edit(NamedTuple):
    start: int
    end: int  # of the bytes that are replaced; `start` where nothing is
    data: bytes


def apply(data: bytes, edits: Sequence[Edit]) -> bytes:
    """The edits must not overlap; of several at one place, the first comes first."""
    parts, place = [], 0
    for edit in sorted(edits, key=lambda edit: edit.start):  # stable
        parts += [data[place : edit.start], edit.data]
        place = edit.end
    return b"".join([*parts, data[place:]])


def inverse(data: bytes, edits: Sequence[Edit]) -> list[Edit]:
    """The edits that make `data` again of `apply(data, edits)`."""
    back, shift = [], 0
    for edit in sorted(edits, key=lambda edit: edit.start):
        start = edit.start + shift
        back.append(Edit(start, start + len(edit.data), data[edit.start : edit.end]))
        shift += len(edit.data) - (edit.end - edit.start)
    return back


# A packet as a tree, with the place of everything in its bytes

_ATTRIBUTE = re.compile(rb"""\s+([^\s=/>]+)\s*=\s*("[^"]*"|'[^']*')""")
_DECLARED = re.compile(rb"""<\?xml\s[^>]*?encoding\s*=\s*["']([A-Za-z0-9._-]+)["']""")
_BYTE_ORDER_MARKS = (  # that of UTF-32 begins with that of UTF-16
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_ENCODINGS = (b"utf-8", b"utf8", b"utf-16", b"utf-16le", b"utf-16be", b"utf-32", b"utf-32le", b"utf-32be")
_NOT_UNICODE = "the XMP is neither UTF-8 nor UTF-16 nor UTF-32"


@dataclass(eq=False)
class Element:
    name: tuple[str, str]  # namespace and local name
    tag: str  # as written, with its prefix
    start: int  # of the start tag ...
    inside: int  # ... its end ...
    close: int = 0  # ... the end tag, at the same place if the element is one tag ...
    end: int = 0  # ... and its end
    attributes: dict[tuple[str, str], str] = field(default_factory=dict)
    spans: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)  # with the space before
    scope: dict[str, str] = field(default_factory=dict)  # prefixes
    children: list[Element] = field(default_factory=list)
    is_read_only: bool = False  # of the root: the packet says so
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts)

    @property
    def attribute_text(self) -> str:
        return "".join(value for name, value in self.attributes.items() if name not in _NO_TEXT)

    @property
    def all_text(self) -> str:
        """Also what stands in qualifiers, structures and attributes."""
        return "".join(part for inner in self.walk() for part in (*inner.parts, inner.attribute_text))

    @property
    def language(self) -> str:
        return self.attributes.get((_XML, "lang"), DEFAULT)

    @property
    def alternatives(self) -> Element | None:
        """The rdf:Alt of a property that has nothing else."""
        alone = len(self.children) == 1 and self.children[0].name == (RDF, "Alt")
        return self.children[0] if alone and not self.attribute_text else None

    def walk(self) -> Iterator[Element]:
        """Itself and all below; levels are bounded."""
        yield self
        for child in self.children:
            yield from child.walk()

    def insertion(self, content: bytes) -> Edit:
        """New content at the element's end."""
        if self.close != self.end:
            return Edit(self.close, self.close, content)
        return Edit(self.inside - 2, self.inside, b">" + content + f"</{self.tag}>".encode())


def decoded(data: bytes) -> tuple[bytes, str, bytes]:
    """The packet as UTF-8, its encoding, and its byte order mark."""
    if len(data) > MOST_BYTES:
        raise BadPacket(f"the XMP has more than {MOST_BYTES >> 20} MB, the most that is read")
    mark, encoding = next(
        ((mark, name) for mark, name in _BYTE_ORDER_MARKS if data.startswith(mark)), (b"", _by_zeros(data))
    )
    try:
        text = data.removeprefix(mark).decode(encoding).encode("utf-8")
    except (UnicodeDecodeError, UnicodeEncodeError):
        raise BadPacket(_NOT_UNICODE) from None
    declared = _DECLARED.match(text)
    if b"\0" in text.rstrip(b"\0") or (declared and declared[1].lower() not in _ENCODINGS):
        raise BadPacket(_NOT_UNICODE)
    return text, encoding, mark


def _by_zeros(data: bytes) -> str:
    """The encoding of a text without a mark: XML begins with a character of ASCII, so its zeros tell."""
    first, second, third = (byte != 0 for byte in data[:3].ljust(3))
    if first and second:
        return "utf-8"
    return f"utf-{16 if second or third else 32}-{'le' if first else 'be'}"


def parse(data: bytes) -> Element:
    """The root element of a packet in UTF-8."""
    builder = _Builder(data)
    try:
        builder.parser.Parse(data.rstrip(b"\0"), True)
    except expat.ExpatError as error:
        reason = expat.errors.messages[error.code]
        raise BadPacket(f"the XMP is not well-formed XML (line {error.lineno}: {reason})") from None
    assert builder.root is not None  # or expat would not be content
    builder.root.is_read_only = builder.is_read_only
    return builder.root


class _Builder:
    def __init__(self, data: bytes):
        self.data, self._open, self._count = data, list[Element](), 0
        self.root: Element | None = None
        self.is_read_only = False
        self.parser = expat.ParserCreate(encoding="UTF-8")
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self._refuse
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.ProcessingInstructionHandler = self._instruction

    def _refuse(self, *_: object) -> None:
        raise BadPacket("the XMP has a DTD, which is not read (it could define entities)")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if self._count > _MOST_ELEMENTS or len(self._open) >= _MOST_LEVELS:
            raise BadPacket(f"the XMP has more than {_MOST_ELEMENTS:,} elements or {_MOST_LEVELS} levels")
        start = self.parser.CurrentByteIndex
        place = start + 1 + len(tag.encode("utf-8"))
        written: dict[str, tuple[int, int]] = {}
        while match := _ATTRIBUTE.match(self.data, place):
            written[match[1].decode("utf-8")] = match.span()
            place = match.end()
        scope = self._open[-1].scope if self._open else {"xml": _XML}
        declared = {name: uri for name, uri in attributes.items() if name == "xmlns" or name.startswith("xmlns:")}
        if declared:
            scope = scope | {name.partition(":")[2]: uri for name, uri in declared.items()}
        element = Element(_resolved(tag, scope, scope.get("", "")), tag, start, self.data.index(b">", place) + 1)
        element.scope = scope
        for name, value in attributes.items():
            if name not in declared:
                resolved = _resolved(name, scope, "")
                element.attributes[resolved], element.spans[resolved] = value, written[name]
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def _end(self, tag: str) -> None:
        element = self._open.pop()
        if self.data[element.inside - 2 : element.inside] == b"/>":
            element.close = element.end = element.inside
        else:
            element.close = self.parser.CurrentByteIndex
            element.end = self.data.index(b">", element.close) + 1

    def _instruction(self, target: str, content: str) -> None:
        if target == "xpacket" and content.strip() in ('end="r"', "end='r'"):
            self.is_read_only = True

    def _text(self, text: str) -> None:
        if self._open:
            self._open[-1].parts.append(text)


def _resolved(name: str, scope: dict[str, str], without_prefix: str) -> tuple[str, str]:
    prefix, colon, local = name.rpartition(":")
    if not colon:
        return without_prefix, name
    if prefix not in scope:
        raise BadPacket(f"the XMP uses the prefix {prefix[:40]!r} and does not say what it is")
    return scope[prefix], local


# Captions

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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
class MergeOptions:
    """
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
        """True for our text in another form of metadata, which programs copy from one into the other."""
        return _hash(text) in {fingerprint.rpartition("/")[2] for fingerprint in self.ours}


def merge(before: bytes, text: Text, options: MergeOptions | None = None) -> Merged:
    """The packet with the caption in it.  Raises BadPacket.

    Where a person wrote a text of the photo, none of ours is put beside it, and ours is taken away again.
    """
    options = options or MergeOptions()
    data, encoding, mark = decoded(before)
    root = parse(data)
    rdf = _rdf(root)
    if len(rdf) != 1:
        raise BadPacket(f"this is no XMP: it has {len(rdf) or 'no'} rdf:RDF, and not one")
    descriptions = rdf[0].children  # they may have another name, which is then the type of what they describe
    home = next((element for element in descriptions if element.name == (RDF, "Description")), None)

    def whole(after: bytes, kept: list[str], replaced: bool) -> Merged:
        recoded = mark + after.decode("utf-8").encode(encoding)
        return Merged(recoded, [Edit(0, len(before), recoded)], kept, replaced)

    if home is None and not options.kept and not options.withdraw:  # rdf:RDF without any: one is put there first
        empty = f'<r:Description xmlns:r="{RDF}" r:about=""></r:Description>'.encode()
        merged = merge(apply(data, [rdf[0].insertion(empty)]), text, options)
        return whole(merged.data, merged.kept, merged.replaced) if merged.edits else Merged(before, [], merged.kept)
    edits, kept, replaced = list[Edit](), list(options.kept), False
    if home is not None:
        edits, kept, replaced = _Merge(descriptions, home, text, options).edits()
    if not edits:
        return Merged(before, [], kept)
    if root.is_read_only and not options.summed:
        raise BadPacket('the XMP says that it must not be changed (end="r")')
    after = apply(data, edits)
    if encoding != "utf-8":
        return whole(after, kept, replaced)
    moved = [Edit(edit.start + len(mark), edit.end + len(mark), edit.data) for edit in edits]
    return Merged(mark + after, moved, kept, replaced)


def noted(packet: bytes, *, by_hand: bool) -> frozenset[str]:
    """Fingerprints of the texts that we wrote of its photo and may replace."""
    return _Mark.of(_descriptions(packet)).replaceable(by_hand)


def of_people(packet: bytes, ours: frozenset[str]) -> list[str]:
    """The fields in which a person's text stands."""
    return _of_people(_descriptions(packet), ours)


def _rdf(root: Element) -> list[Element]:
    return [element for element in root.walk() if element.name == (RDF, "RDF")]


def _descriptions(packet: bytes) -> list[Element]:
    """A packet of no RDF has none."""
    return [child for rdf in _rdf(parse(decoded(packet)[0])) for child in rdf.children]


class _Mark(NamedTuple):
    """Our note of the text that we wrote."""

    elements: list[Element]
    source: str
    texts: frozenset[str]

    @classmethod
    def of(cls, descriptions: list[Element]) -> _Mark:
        """Our property, which other programs may have written anew: as elements or as attributes."""
        elements = [child for description in descriptions for child in description.children if child.name == _MARK]
        values = dict[str, str]()
        for element in (inner for mark in elements for inner in mark.walk()):
            values |= {local: value for (uri, local), value in element.attributes.items() if uri == OURS}
            if element.name[0] == OURS and element.name != _MARK:
                values[element.name[1]] = element.text.strip()
        return cls(elements, values.get("Source", ""), frozenset(values.get("Texts", "").split()))

    def replaceable(self, by_hand: bool) -> frozenset[str]:
        """Our own texts, but what a person wrote by way of us only by a person's."""
        return self.texts if self.source == "model" or by_hand else frozenset()


class _FieldText(NamedTuple):
    """A text in a field, in whatever form it is written."""

    field: str
    language: str
    text: str
    span: tuple[int, int]  # of the attribute or the element that holds it
    within: Element | None  # the property, if this is one of its texts

    @property
    def fingerprint(self) -> str:
        return _fingerprint(self.text, self.field.partition(":")[0], self.language)


def _field_texts(descriptions: list[Element]) -> Iterator[_FieldText]:
    """Texts that are not empty."""
    for description in descriptions:
        texts = [
            _FieldText(_NAMES[name], DEFAULT, value, description.spans[name], None)
            for name, value in description.attributes.items()
            if name in _NAMES
        ]
        for element in description.children:
            if element.name not in _NAMES:
                continue
            name, alternatives = _NAMES[element.name], element.alternatives
            for item in alternatives.children if alternatives else ():
                texts.append(_FieldText(name, item.language, item.all_text, (item.start, item.end), element))
            if not alternatives:
                texts.append(_FieldText(name, DEFAULT, element.all_text, (element.start, element.end), None))
        yield from (text for text in texts if text.text.strip())


def _of_people(descriptions: list[Element], ours: frozenset[str]) -> list[str]:
    return list(dict.fromkeys(text.field for text in _field_texts(descriptions) if text.fingerprint not in ours))


class _Merge:
    def __init__(self, descriptions: list[Element], home: Element, text: Text, options: MergeOptions):
        self._descriptions, self._home, self._text, self._options = descriptions, home, text, options
        self._mark = _Mark.of(descriptions)
        self._ours = set[str]()  # fingerprints of our texts that will be in the packet

    def edits(self) -> tuple[list[Edit], list[str], bool]:
        """Changes, where a person's text stays, and whether one is replaced."""
        if self._options.withdraw:
            return self._withdrawn(self._mark.texts), [], False
        ours = self._options.ours | self._mark.replaceable(self._text.by_hand)
        people = list(dict.fromkeys([*_of_people(self._descriptions, ours), *self._options.kept]))
        if people and not self._options.replace:
            return self._withdrawn(self._mark.replaceable(by_hand=False)), people, False
        edits, new = list[Edit](), list[str]()
        for prefix in FIELDS:
            changed, added = self._field(prefix)
            edits += changed
            new += [added] if added else []
        source = "person" if self._text.by_hand else "model"
        if edits or new or (self._ours and (source, self._ours) != (self._mark.source, set(self._mark.texts))):
            written = self._written_mark(source)
            if self._mark.elements:
                first, *others = self._mark.elements
                edits += [Edit(first.start, first.end, written.encode())]
                edits += [Edit(other.start, other.end, b"") for other in others]
            else:
                new.append(written)
        if new:
            lines = "".join(f"\n   {element}" for element in new)
            if self._home.children:  # after the last one, so that the end tag keeps its own line
                place = self._home.children[-1].end
                edits.append(Edit(place, place, lines.encode("utf-8")))
            else:
                edits.append(self._home.insertion(f"{lines}\n  ".encode()))
        return edits, [], bool(people)

    def _withdrawn(self, texts: frozenset[str]) -> list[Edit]:
        """Take away these texts of ours, where they still stand as we wrote them, and with them our mark."""
        standing = list(_field_texts(self._descriptions))
        gone = [text for text in standing if text.fingerprint in texts]
        if not gone:
            return []
        spans = {(element.start, element.end) for element in self._mark.elements}
        for text in gone:
            whole = text.within is not None and all(other in gone for other in standing if other.within is text.within)
            spans.add((text.within.start, text.within.end) if whole and text.within is not None else text.span)
        return [Edit(start, end, b"") for start, end in sorted(spans)]

    def _field(self, prefix: str) -> tuple[list[Edit], str]:
        """Changes of a property, and the property if it is new."""
        name = FIELDS[prefix]
        elements = [child for parent in self._descriptions for child in parent.children if child.name == name]
        attributes = [description for description in self._descriptions if name in description.attributes]
        if len(elements) + len(attributes) > 1:
            raise BadPacket(f"the XMP has {prefix}:{name[1]} twice")
        if attributes:
            return [Edit(*attributes[0].spans[name], b"")], self._property(prefix, self._home)
        if not elements:
            return [], self._property(prefix, self._home)
        (element,) = elements
        if (alternatives := element.alternatives) is not None:
            return self._languages(prefix, alternatives), ""
        new = self._property(prefix, self._parent(element))
        return [Edit(element.start, element.end, new.encode("utf-8"))], ""

    def _parent(self, element: Element) -> Element:
        return next(description for description in self._descriptions if element in description.children)

    def _languages(self, prefix: str, alternatives: Element) -> list[Edit]:
        """Changes of an rdf:Alt: our texts in, those in other languages left."""
        rest = {item.language.casefold(): item for item in alternatives.children if item.name == (RDF, "li")}
        if len(rest) < len(alternatives.children):
            raise BadPacket("the XMP has two texts of one language, or something that is no text among them")
        edits, first, last = list[Edit](), "", ""
        for language, text in self._text.wanted.items():
            item = rest.pop(language.casefold(), None)
            if item is None and language == DEFAULT:  # which is the first
                first = self._item(prefix, language, text, alternatives)
            elif item is None:
                last += self._item(prefix, language, text, alternatives)
            elif item.all_text != text:
                new = self._item(prefix, item.language, text, alternatives)
                edits.append(Edit(item.start, item.end, new.encode("utf-8")))
            else:
                self._ours.add(_fingerprint(text, prefix, language))
        left = {_fingerprint(item.all_text, prefix, language) for language, item in rest.items()}
        self._ours |= left & self._mark.texts
        if alternatives.close == alternatives.end:
            return [*edits, alternatives.insertion((first + last).encode("utf-8"))]
        if first:
            edits.append(Edit(alternatives.inside, alternatives.inside, first.encode("utf-8")))
        return [*edits, alternatives.insertion(last.encode("utf-8"))] if last else edits

    # As XML

    def _property(self, prefix: str, near: Element) -> str:
        uri, local = FIELDS[prefix]
        texts = "".join(self._item(prefix, language, text, near) for language, text in self._text.wanted.items())
        rdf = f"<rdf:Alt{_declared('rdf', RDF, near)}>{texts}</rdf:Alt>"
        return f"<{prefix}:{local}{_declared(prefix, uri, near)}>{rdf}</{prefix}:{local}>"

    def _item(self, prefix: str, language: str, text: str, near: Element) -> str:
        self._ours.add(_fingerprint(text, prefix, language))
        quoted = escape(language, {'"': "&quot;"})
        return f'<rdf:li{_declared("rdf", RDF, near)} xml:lang="{quoted}">{escape(text)}</rdf:li>'

    def _written_mark(self, source: str) -> str:
        near = self._parent(self._mark.elements[0]) if self._mark.elements else self._home
        values = {
            "Source": source,
            "Version": f"tellapart {__version__}",
            "Date": self._text.date,
            "Texts": " ".join(sorted(self._ours)),
        }
        parts = "".join(f"<tellapart:{name}>{escape(value)}</tellapart:{name}>" for name, value in values.items())
        declared = _declared("tellapart", OURS, near) + _declared("rdf", RDF, near)
        return f'<tellapart:Caption{declared} rdf:parseType="Resource">{parts}</tellapart:Caption>'


def _declared(prefix: str, uri: str, near: Element) -> str:
    """The declaration that an element needs to use the prefix there."""
    return "" if near.scope.get(prefix) == uri else f' xmlns:{prefix}="{uri}"'


def _fingerprint(text: str, prefix: str, language: str) -> str:
    """The field is part of it: a person may have written the same into another.

    How characters are put together and spaced is no matter: programs change that.
    """
    return f"{prefix}/{language.casefold()}/{_hash(text)}"


def _hash(text: str) -> str:
    plain = " ".join(unicodedata.normalize("NFC", text).split())
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()[:16]
