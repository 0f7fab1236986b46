"""An XMP packet as a tree with the place of everything in its bytes, so that it can be changed by splicing.

A packet is untrusted: one with a DTD is refused, so no entity is ever defined, fetched or expanded, and bytes,
elements and levels are bounded.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
XML = "http://www.w3.org/XML/1998/namespace"
MOST_BYTES = 16 << 20
_MOST_ELEMENTS, _MOST_LEVELS = 200_000, 200

_ATTRIBUTE = re.compile(rb"""\s+([^\s=/>]+)\s*=\s*("[^"]*"|'[^']*')""")
_DECLARED = re.compile(rb"""<\?xml\s[^>]*?encoding\s*=\s*["']([A-Za-z0-9._-]+)["']""")
_MARKS = (  # that of UTF-32 begins with that of UTF-16
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_ENCODINGS = (b"utf-8", b"utf8", b"utf-16", b"utf-16le", b"utf-16be", b"utf-32", b"utf-32le", b"utf-32be")


_NOT_UNICODE = "the XMP is neither UTF-8 nor UTF-16 nor UTF-32"


class BadPacket(Exception):
    """Says what is wrong, to go after the file's name."""


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
    def is_one_tag(self) -> bool:
        return self.close == self.end

    def walk(self) -> Iterator[Element]:
        """Itself and all below; levels are bounded."""
        yield self
        for child in self.children:
            yield from child.walk()


def decoded(data: bytes) -> tuple[bytes, str, bytes]:
    """The packet as UTF-8, how it was written, and its byte order mark."""
    if len(data) > MOST_BYTES:
        raise BadPacket(f"the XMP has more than {MOST_BYTES >> 20} MB, the most that is read")
    mark, encoding = next((known for known in _MARKS if data.startswith(known[0])), (b"", _by_zeros(data)))
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
        while found := _ATTRIBUTE.match(self.data, place):
            written[found[1].decode("utf-8")] = found.span()
            place = found.end()
        scope = self._open[-1].scope if self._open else {"xml": XML}
        declared = {name: uri for name, uri in attributes.items() if name == "xmlns" or name.startswith("xmlns:")}
        if declared:
            scope = scope | {name.partition(":")[2]: uri for name, uri in declared.items()}
        element = Element(_resolved(tag, scope, scope.get("", "")), tag, start, self.data.index(b">", place) + 1)
        element.scope = scope
        for name, value in attributes.items():
            if name not in declared:
                own = _resolved(name, scope, "")
                element.attributes[own], element.spans[own] = value, written[name]
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
