"""Pages before and after `alt`, as others read them: YAML and TOML by their parsers, HTML and Markdown by a browser.

Every image that may get an alt text gets one.  Nothing else may be another page then: not for Chromium, nor for
Python-Markdown, which is not what `alt` reads Markdown with, and takes much for code that CommonMark does not.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from campaigns.report import Row, is_wanted

_BATCH = 100
_NEW = 'NEW <&" *x*'
_PLAIN = "a red bus, at 5 o'clock"  # Python-Markdown has fewer escapes
Pair = tuple[bytes, bytes]


def _changed(data: bytes, suffix: str, new: str) -> bytes:
    from tellapart.desk.pages import Change, PageText

    text = data.decode("utf-8", "surrogateescape")
    page = PageText(text, suffix)
    wanted = [image for image in page.images if not image.fixed and not image.left and image.alt != ""]
    after = page.after(page.holding([Change.of(image, new, text) for image in wanted]))
    return after.encode("utf-8", "surrogateescape")


# Front matter


def _front_matter(draw: random.Random) -> tuple[bytes, str]:
    yaml_lines = [
        "image: a.webp", "image_alt:", "image_alt: IMG_1", "alt: 'a ''b'''", 'alt: "x\\ty"',
        "alt: ~", "alt: # ask Ann",
        "alt: IMG_1 # ask Ann", "alt: |", "  image: b.webp", "  alt:", "  alt: pic", "alt:",
        "  A cat", "title: 'a: b'",
        "cover: {image: c.webp, alt: pic}", "- image: d.webp", "  alt: photo", "pictures:",
        "alt: &x pic", "other: *x",
        "alt: !!str pic", "alt: >-", "    more", "", "# image_alt: x", "alt: [a]",
        "image: 'a.webp'", "example: |", "\talt: x",
        "alt: a: b", "alt: 'two", "  lines'", "? image", ": a.webp", '"alt": "q"', "alt : pic",
        "<<: {alt: x}", "é: ü.jpg",
    ]  # fmt: skip
    toml_lines = [
        'image = "a.webp"', 'image_alt = "IMG_1"', "alt = 'pic'", 'alt = """', "a cat", '"""',
        "alt = '''", "'''", "[cover]",
        '[[pictures]]', 'cover = {image = "a.webp", alt = "pic"}', 'alt = "x" # ask Ann',
        "# alt = 'x'", 'alt = "a\\"b"', "",
        'title = "alt = \\"pic\\""',
        'imageAlt = ""', 'a.image = "b.webp"', 'a.alt = "pic"', 'n = 1', '"alt" = "q"', "alt = 1",
    ]  # fmt: skip
    mark, lines = draw.choice((("---", yaml_lines), ("+++", toml_lines)))
    chosen = draw.sample(lines, draw.randint(1, 7))
    end = draw.choice(("\n", "\n", "\r\n"))
    return end.join([mark, *chosen, mark, "", "![](a.webp)", ""]).encode(), ".md"


def _meaning(data: bytes) -> Any:
    text = data.decode()
    mark, _, rest = text.partition("\n")
    front = re.split(rf"(?m)^{re.escape(mark.strip())}", rest, maxsplit=1)[0]
    try:
        return tomllib.loads(front) if mark.startswith("+++") else yaml.safe_load(front)
    except (ValueError, yaml.YAMLError) as error:
        return f"is not read: {type(error).__name__}", front


def _different_front(pair: Pair) -> str:
    before, after = map(_meaning, pair)

    def same(one: Any, two: Any, key: str = "") -> bool:
        if isinstance(one, dict) and isinstance(two, dict):
            return list(one) == list(two) and all(same(one[name], two[name], str(name)) for name in one)
        if isinstance(one, list) and isinstance(two, list):
            return len(one) == len(two) and all(same(*parts) for parts in zip(one, two, strict=True))
        is_filled = two == _NEW and "alt" in key.lower() and (one is None or isinstance(one, str))
        return is_filled or (type(one), one) == (type(two), two)

    return "" if same(before, after) else "another front matter"


# Markdown


def _markdown(draw: random.Random) -> tuple[bytes, str]:
    pieces = [
        "![](a.webp)", "![IMG_1](b.webp)", "![photo][r]", "\n[r]: c.webp\n", "`![](a.webp)`",
        "``` \n![](a.webp)\n```\n",
        "\n\n    ![](b.webp)\n", "\n- a\n\n    ![](b.webp)\n", "\n1. a\n\n       ![](b.webp)\n", "\n> ![](c.webp)\n",
        "<img src=a.webp>", '<img src="b.webp" alt="photo">', "\n<pre>\n![](a.webp)\n</pre>\n",
        "\n<div>\n![](a.webp)\n</div>\n",
        "<!-- ![](a.webp) -->", "\n\n", "\n", " ", "text ", "*", "**", "_", "[", "(", ")",
        "\\", "`", "~~~\n", "    ", "\n\t",
        "[![](a.webp)](x)", "\n| a | b |\n|---|---|\n| ![](a.webp) | x |\n", "# ![](a.webp)\n",
        "<code>", "</code>", "<a href=x>",
        "</a>", "\n```html\n<img src=a.webp>\n```\n", "- ", "1. ", "> ", "![a](b.webp 't')",
        "![](<a b.webp>)", "&amp;", "<b>", "é",
        "{% raw %}", "{% endraw %}", "{{ x }}", "{: alt='x'}", "!", "![",
        "\n<script>\nvar a='![](a.webp)'\n</script>\n", "\n***\n",
    ]  # fmt: skip
    chosen = [draw.choice(pieces) + draw.choice(("", "\n\n", "\n\n")) for _ in range(draw.randint(2, 12))]
    return "".join(chosen).encode(), ".md"


def _rendered(pair: Pair) -> Pair:
    import markdown

    one, two = (
        markdown.markdown(data.decode(), extensions=["fenced_code", "tables", "attr_list"]).encode() for data in pair
    )
    return one, two


def _html(draw: random.Random) -> tuple[bytes, str]:
    from support import random_pages

    return random_pages.page(draw), ".html"


# The campaign


def _unchecked() -> Callable[[], None]:
    """A fault that is planted: alt texts are put before the tag, and nothing is checked."""
    from tellapart.desk import front_matter, pages

    held, place, entry = pages.PageText.holding, pages._place_of_alt, front_matter.Entry
    pages.PageText.holding = lambda self, changes: list(changes)  # type: ignore[method-assign]
    pages._place_of_alt = lambda text, at: ((at - 4, at - 4), place(text, at)[1])

    def too_early(path: Any, source: str, alt: str | None, first: int, last: int, fixed: str = "") -> Any:
        return entry(path, source, alt, first - 3, last, "")

    front_matter.Entry = too_early  # type: ignore[assignment,misc]

    def back() -> None:
        pages.PageText.holding = held  # type: ignore[method-assign]
        pages._place_of_alt, front_matter.Entry = place, entry  # type: ignore[misc]

    return back


_KINDS: dict[str, tuple[Callable[[random.Random], tuple[bytes, str]], Callable[[Pair], Pair] | None]] = {
    "front matter": (_front_matter, None),
    "HTML": (_html, lambda pair: pair),
    "Markdown": (_markdown, _rendered),
}


def run(folder: Path, count: int, seed: int, only: str = "") -> Iterator[Row]:
    """count  pages of each kind"""
    from support import browser, random_pages

    if browser.CHROMIUM is None:
        raise RuntimeError("what pages mean is asked of Chromium, which is not installed")
    with browser.tab() as tab:

        def differences(pairs: Sequence[Pair]) -> list[str]:
            return random_pages.differences(tab, list(pairs), may_fill=name == "Markdown")

        for name in filter(lambda one: is_wanted(one, only), _KINDS):
            back = _unchecked()
            try:
                yield _tried(name, min(count, _BATCH), seed, differences, folder, planted=True)
            finally:
                back()
            yield _tried(name, count, seed, differences, folder)


def _tried(
    name: str,
    count: int,
    seed: int,
    differences: Callable[[Sequence[Pair]], list[str]],
    folder: Path,
    *,
    planted: bool = False,
) -> Row:
    make, view = _KINDS[name]
    draw = random.Random(f"{seed}/{name}")
    row, changed = Row("pages", "an alt text put in unchecked" if planted else name, count, planted=planted), 0
    for start in range(0, count, _BATCH):
        made = [make(draw) for _ in range(min(_BATCH, count - start))]
        pairs = [(data, _changed(data, suffix, _PLAIN if view is _rendered else _NEW)) for data, suffix in made]
        changed += sum(before != after for before, after in pairs)
        wrong = (
            [_different_front(pair) for pair in pairs] if view is None else differences([view(pair) for pair in pairs])
        )
        row.failed += [
            f"{name}: {what}: {pair[0]!r} -> {pair[1]!r}" for pair, what in zip(pairs, wrong, strict=True) if what
        ]
    row.note = f"{name}: {changed:,} were changed"
    return row
