"""Captions in XMP: everything of others stays, a person's text too, and our own is known again."""

import os
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tellapart.desk import xmp
from tellapart.desk.xmp import BadPacket

RDF = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"
LANG = "{http://www.w3.org/XML/1998/namespace}lang"
FIELDS = {
    "{http://purl.org/dc/elements/1.1/}description",
    "{http://ns.adobe.com/tiff/1.0/}ImageDescription",
    "{http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/}AltTextAccessibility",
}
OURS = "{urn:tellapart:xmp/1.0/}"
EXAMPLES = int(os.environ.get("TELLAPART_XMP_EXAMPLES", "30"))


def text(caption="a dog on a sofa", by_hand=False, date="2026-01-02T03:04:05Z", **languages):
    return xmp.Text({"x-default": caption, **languages}, by_hand, date)


def read(data):
    """Property -> language -> text, by a parser that knows nothing of ours."""
    found = {}
    for description in ElementTree.fromstring(data.rstrip(b"\0")).iter(f"{RDF}Description"):
        for element in description:
            if element.tag in FIELDS:
                items = element.iter(f"{RDF}li")
                found[element.tag] = {item.get(LANG): item.text or "" for item in items} or element.text
    return found


def everything_else(data):
    """All elements, attributes and texts in order, without what is ours to write."""

    def walk(element):
        if element.tag in FIELDS or element.tag.startswith(OURS):
            return
        kept = sorted((name, value) for name, value in element.attrib.items() if name not in FIELDS)
        yield element.tag, kept, (element.text or "").strip()
        for child in element:
            yield from walk(child)

    return list(walk(ElementTree.fromstring(data)))


SIDECARS = {file.stem: file.read_bytes() for file in sorted((Path(__file__).parent / "sidecars").iterdir())}
DIGIKAM, LIGHTROOM = SIDECARS["digikam"], SIDECARS["lightroom"]


@pytest.mark.parametrize("program", [*SIDECARS, "ours"])
def test_sidecars_of_other_programs_keep_everything(program):
    before = SIDECARS.get(program, xmp.EMPTY)
    merged = xmp.merge(before, text("a dog & a <cat>"))
    assert read(merged.data) == {key: {"x-default": "a dog & a <cat>"} for key in FIELDS}
    assert everything_else(merged.data) == everything_else(before)
    # Not only what it means: all bytes are there, in order, around what was put in.
    assert all(edit.start == edit.end or before[edit.start : edit.end] == b"/>" for edit in merged.edits)
    assert xmp.apply(before, merged.edits) == merged.data
    assert xmp.apply(merged.data, xmp.inverse(before, merged.edits)) == before
    again = xmp.merge(merged.data, text("a dog & a <cat>", date="2030-01-01T00:00:00Z"))
    assert (again.data, again.edits) == (merged.data, [])


def test_our_own_text_is_replaced_and_one_that_somebody_changed_is_not():
    first = xmp.merge(DIGIKAM, text("a dog")).data
    second = xmp.merge(first, text("a brown dog"))
    assert read(second.data) == {key: {"x-default": "a brown dog"} for key in FIELDS}
    assert second.kept == []
    changed = second.data.replace(b"a brown dog</rdf:li></rdf:Alt></dc:", b"Rex at home</rdf:li></rdf:Alt></dc:")
    third = xmp.merge(changed, text("a cat"))
    assert third.kept == ["dc:description"]
    # What we said of it beside that would contradict it, so it is gone.
    assert read(third.data) == {"{http://purl.org/dc/elements/1.1/}description": {"x-default": "Rex at home"}}
    assert b"tellapart:" not in third.data.replace(b"xmlns:tellapart", b"")
    assert everything_else(third.data) == everything_else(DIGIKAM)
    assert xmp.apply(third.data, xmp.inverse(changed, third.edits)) == changed
    assert xmp.merge(third.data, text("a cat")).edits == []
    replaced = xmp.merge(third.data, text("a cat"), xmp.MergeOptions(replace=True))
    assert read(replaced.data) == {key: {"x-default": "a cat"} for key in FIELDS}


def test_what_a_person_wrote_in_the_captions_is_replaced_only_by_a_person():
    by_hand = xmp.merge(xmp.EMPTY, text("Rex at home", by_hand=True)).data
    model = xmp.merge(by_hand, text("a dog"))
    assert (model.data, len(model.kept)) == (by_hand, 3)
    again = xmp.merge(by_hand, text("Rex!", by_hand=True)).data
    assert read(again) == {key: {"x-default": "Rex!"} for key in FIELDS}


def test_a_text_that_a_person_approves_becomes_that_persons():
    approved = xmp.merge(xmp.merge(xmp.EMPTY, text("a dog")).data, text("a dog", by_hand=True))
    assert len(xmp.merge(approved.data, text("a cat")).kept) == 3


DC, LI = 'xmlns:d="http://purl.org/dc/elements/1.1/"', '<rdf:li xml:lang="x-default"'
ITEMS = [  # of an rdf:Alt
    *(f"{LI}>by Anna</rdf:li>", "<rdf:li>by Anna</rdf:li><rdf:li>by Anna</rdf:li>", '<rdf:li rdf:resource="by Anna"/>'),
    f'{LI} rdf:parseType="Resource"><rdf:value>by Anna</rdf:value><u:mood xmlns:u="urn:x">glad</u:mood></rdf:li>',
    f'{LI}><rdf:Description rdf:value="by Anna"/></rdf:li>',
]
INNER = ["by Anna", "<rdf:Bag><rdf:li>by Anna</rdf:li></rdf:Bag>", *(f"<rdf:Alt>{item}</rdf:Alt>" for item in ITEMS)]
FORMS = [
    f'<rdf:Description rdf:about="" {DC} d:description="by Anna"/>',
    *(
        f"<rdf:Description/><rdf:Description><d:description {DC}>{inner}</d:description></rdf:Description>"
        for inner in INNER
    ),
    f'<f:Image xmlns:f="urn:x"><d:description {DC}>by Anna</d:description></f:Image>',
    f'<rdf:Description><d:description {DC} rdf:resource="by Anna"/></rdf:Description>',
]
START, READ_ONLY = f'<rdf:RDF xmlns:rdf="{RDF[1:-1]}">', b'<?xpacket end="r"?>'


def test_a_packet_that_says_that_it_must_not_be_changed_is_left():
    before = DIGIKAM.replace(b'<?xpacket end="w"?>', READ_ONLY)
    with pytest.raises(BadPacket, match="must not be changed"):
        xmp.merge(before, text())
    assert xmp.merge(before, text(), xmp.MergeOptions(kept=("elsewhere",))).data == before


def test_what_a_person_wrote_for_blind_people_at_length_is_a_persons_text():
    by_anna = b'<i:ExtDescrAccessibility xmlns:i="http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/"><rdf:Alt><rdf:li>By Anna'
    before = DIGIKAM.replace(b"<dc:subject>", by_anna + b"</rdf:li></rdf:Alt></i:ExtDescrAccessibility><dc:subject>")
    assert xmp.merge(before, text()).kept == ["Iptc4xmpCore:ExtDescrAccessibility"]
    assert xmp.merge(before, text()).data == before


def test_a_text_that_another_program_copied_from_ours_is_ours():
    copied = re.sub(rb"<tellapart:Caption.*</tellapart:Caption>", b"", xmp.merge(xmp.EMPTY, text("a dog")).data)
    ours = xmp.noted(xmp.merge(xmp.EMPTY, text("a dog")).data, by_hand=False)
    assert len(xmp.merge(copied, text("a cat")).kept) == 3
    merged = xmp.merge(copied, text("a cat"), xmp.MergeOptions(ours=ours))
    assert read(merged.data) == {key: {"x-default": "a cat"} for key in FIELDS}


@pytest.mark.parametrize("form", FORMS)
def test_a_persons_text_stays_in_whatever_form_it_is_written(form):
    before = f"{START}{form}</rdf:RDF>".encode()
    merged = xmp.merge(before, text())
    assert (merged.kept, merged.data) == (["dc:description"], before)
    if before.count(b"by Anna") > 1 or b"f:Image" in before:
        return  # which of them to replace is not for us to say; and `read` knows no other nodes
    replaced = xmp.merge(before, text(), xmp.MergeOptions(replace=True))
    assert b"by Anna" not in replaced.data
    assert read(replaced.data) == {key: {"x-default": "a dog on a sofa"} for key in FIELDS}


def test_languages_stand_side_by_side_and_a_person_keeps_theirs():
    merged = xmp.merge(xmp.EMPTY, text("a dog", en="a dog", de="ein Hund"))
    assert read(merged.data) == {key: {"x-default": "a dog", "en": "a dog", "de": "ein Hund"} for key in FIELDS}
    german = b'<dc:description><rdf:Alt><rdf:li xml:lang="de-DE">Rex</rdf:li></rdf:Alt></dc:description>'
    before = DIGIKAM.replace(b"<dc:subject>", german + b"<dc:subject>")
    assert xmp.merge(before, text("a dog", fr="un chien")).data == before


ENCODINGS = ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("start", ["", " ", "\ufeff"], ids=["", "space", "mark"])
def test_other_encodings_and_byte_order_marks_stay(encoding, start):
    if not (start == "\ufeff" and encoding in ("utf-8-sig", "utf-16", "utf-32")):  # these write one themselves
        before = (start + LIGHTROOM.decode()).encode(encoding)
        merged = xmp.merge(before, text("ein Bär"))
        assert merged.data.startswith(before[:4])
        after = merged.data.decode(encoding).lstrip("\ufeff ").encode()
        assert read(after) == {key: {"x-default": "ein Bär"} for key in FIELDS}
        assert xmp.apply(before, merged.edits) == merged.data


def test_nothing_marks_the_picture_as_made_by_ai():
    data = xmp.merge(xmp.EMPTY, text()).data.lower()
    assert not any(word in data for word in (b"digitalsourcetype", b"trainedalgorithmic", b"aisystem", b"aiprompt"))


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (b"not XML", "not well-formed XML"),
        (b"<a>", "not well-formed XML"),
        (b"<html/>", "no rdf:RDF"),
        (b"\xff\xfe\x00", "neither UTF-8 nor UTF-16"),
        (b"<rdf>\0</rdf>", "neither UTF-8 nor UTF-16"),
        (" <a/>".encode("utf-16-le") + b"\0", "neither UTF-8 nor UTF-16"),
        (b'<?xml version="1.0" encoding="ISO-8859-1"?><a/>', "neither UTF-8 nor UTF-16"),
        (b"<a:b/>", "the prefix 'a'"),
        (b"<a>" * 500 + b"</a>" * 500, "levels"),
        (f"{START}{FORMS[0].replace('by Anna', '') * 2}</rdf:RDF>".encode(), "twice"),
    ],
)
def test_a_packet_that_cannot_be_merged_is_one_reason(packet, reason):
    with pytest.raises(BadPacket, match=reason):
        xmp.merge(packet, text())


# Random sidecars

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn"]), max_size=12)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,6}", fullmatch=True)
SPACE = st.sampled_from(["", " ", "\n", "\n   ", "<!-- > ' -->", "<?x y?>"])


def attribute(value):
    return '"' + value.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;") + '"'


def content(value):
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@st.composite
def fields(draw):
    """A property that we write too, in one of its forms, with a person's text, or none."""
    prefix = draw(st.sampled_from(list(xmp.FIELDS)))
    uri, local = xmp.FIELDS[prefix]
    languages = draw(st.lists(st.sampled_from(["x-default", "en", "de-DE"]), max_size=3, unique=True))
    items = "".join(f'<rdf:li xml:lang="{one}">{content(draw(WORDS))}</rdf:li>' for one in languages)
    inner = draw(st.sampled_from([f"<rdf:Alt>{items}</rdf:Alt>", content(draw(WORDS)), "<rdf:Alt/>"]))
    return prefix, f'<p:{local} xmlns:p="{uri}">{inner}</p:{local}>'


@st.composite
def sidecars(draw):
    def properties():
        parts = []
        for name in draw(st.lists(NAMES, max_size=3)):
            words, more = content(draw(WORDS)), content(draw(WORDS))
            inner = draw(st.sampled_from([words, f"<rdf:Seq><rdf:li>{more}</rdf:li></rdf:Seq>"]))
            parts.append(f'<u:{name} xmlns:u="urn:x">{inner}</u:{name}>{draw(SPACE)}')
        return "".join(parts)

    own = dict(draw(st.lists(fields(), max_size=2)))
    bodies = [properties() + "".join(own.values()), *([properties()] if draw(st.booleans()) else [])]
    parts = []
    for body in bodies:
        named = "".join(f" v:{name}={attribute(draw(WORDS))}" for name in draw(st.sets(NAMES, max_size=2)))
        tag = f'rdf:Description rdf:about="" xmlns:v="urn:y"{named}'
        one_tag = not body and draw(st.booleans())
        parts.append(f"<{tag}/>" if one_tag else f"<{tag}>{draw(SPACE)}{body}</rdf:Description>")
    rdf = f'<rdf:RDF xmlns:rdf="{RDF[1:-1]}">{draw(SPACE)}{draw(SPACE).join(parts)}</rdf:RDF>'
    return (draw(st.sampled_from(["", "<?xpacket begin='' id=''?>"])) + rdf + draw(SPACE)).encode()


@settings(max_examples=EXAMPLES)
@given(sidecars(), WORDS.filter(str.strip), st.booleans())
def test_random_sidecars_survive_merging_twice(before, caption, replace):
    merged = xmp.merge(before, text(caption), xmp.MergeOptions(replace=replace))
    assert everything_else(merged.data) == everything_else(before)
    assert xmp.apply(merged.data, xmp.inverse(before, merged.edits)) == before
    again = xmp.merge(merged.data, text(caption, date="2030-01-01T00:00:00Z"), xmp.MergeOptions(replace=replace))
    assert again.data == merged.data
    texts = [one for found in read(before).values() for one in (found.values() if isinstance(found, dict) else [found])]
    if not replace and any(one and one.strip() for one in texts):
        assert merged.data == before
    else:
        assert {found["x-default"] for found in read(merged.data).values()} == {caption.strip()}
