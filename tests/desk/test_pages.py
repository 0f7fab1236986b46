"""Alt texts in pages: which images there are, and that a change is one of an alt text and of nothing else."""

import random
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from support import browser, random_pages
from tellapart.desk.pages import Change, PageText

HERE = Path(__file__).parent / "pages_of_attacks"


def changed(text, suffix, new='NEW <&" *x*'):
    """Every image gets another alt text, unless it was said that it cannot, or that a person decides."""
    page = PageText(text, suffix)
    wanted = [one for one in page.images if not one.fixed and not one.left and one.alt != ""]
    return page, page.after(page.holding([Change.of(one, new, text) for one in wanted]))


def after(text, suffix):
    return changed(text, suffix)[1]


ESCAPED = "NEW &lt;&amp;&quot; *x*"


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ('<img src="a.jpg">', f'<img alt="{ESCAPED}" src="a.jpg">'),
        ("<IMG\n src=a.jpg />", f'<IMG alt="{ESCAPED}"\n src=a.jpg />'),
        ("<img src=a.jpg alt='x > y' id=b>", f'<img src=a.jpg alt="{ESCAPED}" id=b>'),
        ("<img onload='alt=\"q\"' alt=word src=a.jpg>", f'<img onload=\'alt="q"\' alt="{ESCAPED}" src=a.jpg>'),
        ('é\r\n<p>\n<img src="a.jpg">\r\n', f'é\r\n<p>\n<img alt="{ESCAPED}" src="a.jpg">\r\n'),
        ('<div lang="en-GB"><img src="a.jpg"></div>', f'<div lang="en-GB"><img alt="{ESCAPED}" src="a.jpg"></div>'),
        ('{% if x %}<img src="a.jpg">{% endif %}', f'{{% if x %}}<img alt="{ESCAPED}" src="a.jpg">{{% endif %}}'),
        ('---\nx: "<img>"\n---\n<img src=a.jpg>', f'---\nx: "<img>"\n---\n<img alt="{ESCAPED}" src=a.jpg>'),
    ],
)
def test_an_alt_attribute_is_put_in_or_its_value_replaced(before, expected):
    assert after(before, ".html") == expected


@pytest.mark.parametrize(
    "page",
    [
        *('<img src="a.jpg" alt="">', "<img src=a.jpg alt>", '<img src="a.jpg" role="presentation">'),
        *('<img src="a.jpg" aria-hidden="true">', "<!-- <img src=a.jpg> -->", "<script>'<img src=a.jpg>'</script>"),
        "<script/>\n<img src=a.jpg>",  # browsers: a script that is not closed
        *("<textarea><img src=a.jpg></textarea>", "<plaintext><img src=a.jpg>", '<img src="{{ page.image }}">'),
        *("<img>", '<a href="/"><img src="a.jpg"></a>', "<button type=submit>Go <img src=a.jpg></button>"),
        *("<template><img src=a.jpg></template>", '<p aria-hidden="true"><img src=a.jpg></p>'),
        *("<pre><img src=a.jpg></pre>", "<code><img src=a.jpg></code>", '<p lang="de">Text <img src=a.jpg></p>'),
        *('<img src="a.jpg" title="Our founder">', '<img src="a.jpg" width="1" height="1">'),
        *('<img src="a.jpg" {% if x %}alt="{{ x }}"{% endif %}>', '<img src="a.jpg" {{ attrs }}>'),
        *('<img src="a.jpg" :alt="photo.text">', '<img src="a.jpg" <?php echo $alt ?>>'),
        *("{% raw %}<img src=a.jpg>{% endraw %}", '{{< highlight html >}}<img src="a.jpg">{{< /highlight >}}'),
        *("{% set x %}<img src=a.jpg>{% endset %}", "<?php if ($a > 1) echo '<img src=a.jpg>'; ?>"),
        "![r]\n\n[r]: b.jpg",  # the alt text is the name of the link
        *(
            "[![](b.jpg)](https://x)",
            "![](b.jpg){: alt='mine'}",
            '![](b.jpg "Our founder")',
            "`![](b.jpg)` \\![](b.jpg)",
        ),
        *(
            "```\n![](b.jpg)\n```\n",
            "x\n\n    ![](b.jpg)\n",
            "- x\n\n      ![](b.jpg)\n",
            "<pre>\n![](b.jpg)\n</pre>\n",
        ),
        *("---\nimage: a.jpg\nalt: ''\n---\n", "---\ntitle: a.jpg\nsalt: much\n---\n"),
        "---\nimage: a.jpg\nalt: old\nalt: older\n---\n",
    ],
)
def test_what_is_not_an_image_in_the_pages_own_text_or_is_for_a_person_is_left(page):
    assert after(page, ".html") == page
    assert after(page, ".md") == page


MARKDOWN = r"NEW \<\&" + '" ' + r"\*x\*"


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("a ![](b.jpg) c", f"a ![{MARKDOWN}](b.jpg) c"),
        ("![old](<a b.jpg>)", f"![{MARKDOWN}](<a b.jpg>)"),
        ("![old](b(1).jpg)", f"![{MARKDOWN}](b(1).jpg)"),
        ("![old][r]\n\n[R]: b.jpg", f"![{MARKDOWN}][r]\n\n[R]: b.jpg"),
        ("| a |\n|---|\n| ![](b.jpg) |\n", f"| a |\n|---|\n| ![{MARKDOWN}](b.jpg) |\n"),
        ("- x\n\n    ![](b.jpg)\n", f"- x\n\n    ![{MARKDOWN}](b.jpg)\n"),
        ("<img src='b.jpg'>", f"<img alt=\"{ESCAPED}\" src='b.jpg'>"),
        ('{\n"html": "<img src=b.jpg>"}\n\ntext', '{\n"html": "<img src=b.jpg>"}\n\ntext'),
        ("---\nimage: a.jpg\nimage_alt: old\n---\n", '---\nimage: a.jpg\nimage_alt: "NEW <&\\" *x*"\n---\n'),
        ("---\nimage: a.jpg\nimage_alt:\n---\n", '---\nimage: a.jpg\nimage_alt: "NEW <&\\" *x*"\n---\n'),
        ("---\nb:\n  image: a.jpg\n  alt: 'old'\n---\n", '---\nb:\n  image: a.jpg\n  alt: "NEW <&\\" *x*"\n---\n'),
        ("---\ncover: {image: a.jpg, alt: old}\n---\n", '---\ncover: {image: a.jpg, alt: "NEW <&\\" *x*"}\n---\n'),
        ('+++\nimage = "a.jpg"\nimageAlt = "old"\n+++\n', '+++\nimage = "a.jpg"\nimageAlt = "NEW <&\\" *x*"\n+++\n'),
    ],
)
def test_markdown_and_front_matter(before, expected):
    assert after(before, ".md") == expected


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("<iframe src='x' />\n\n![](b.jpg)\n", f"<iframe src='x' />\n\n![{MARKDOWN}](b.jpg)\n"),
        ("<Title/>\n\n![](b.jpg)\n", f"<Title/>\n\n![{MARKDOWN}](b.jpg)\n"),
        ("export const a = {\n\n  b: '<img src=\"b.jpg\"/>'\n}\n\ntext", None),
        ("import a from 'b'\n\n<img src='b.jpg'/>\n", f"import a from 'b'\n\n<img alt=\"{ESCAPED}\" src='b.jpg'/>\n"),
        ("{'don\\'t' /* ' */ + `<img src=\"b.jpg\"/>`}", None),
        ("{a && <p>don't</p>}\n\n<img src='b.jpg' {...more} />", None),
        ("<img src={photo} />", None),
    ],
)  # fmt: skip
def test_mdx(before, expected):
    assert after(before, ".mdx") == (expected or before)


def test_xhtml_is_xml():
    before = (
        '<html xmlns="http://www.w3.org/1999/xhtml"><body><title/><iframe src="x"/><img src="b.jpg"/></body></html>'
    )
    assert after(before, ".xhtml") == before.replace("<img", f'<img alt="{ESCAPED}"')
    page, same = changed("<html><img src='a.jpg'></html>", ".xhtml")
    assert (same, page.images) == (page.text, [])
    assert "XML" in page.notes[0][2]


@pytest.mark.parametrize(
    "text",
    [
        *('<img data-src="a.jpg">', '<img srcset="a.jpg 2x">', '<input type="image" src="a.jpg">'),
        *('<map><area href="x" coords="1,2,3,4"></map>', '{{< figure src="a.jpg" >}}', '<Image src="a.jpg" />'),
        *("![[a.jpg]]", '<a href="/"><img src="a.jpg" alt=""></a>', "```html\n<img src=a.jpg>\n```"),
        *("![r]\n\n[r]: a.jpg", "---\nimage: a.jpg\nalt: [\n---\n", '{{ "<img src=a.jpg>" }}'),
    ],
)
def test_nothing_is_missed_without_a_word(text):
    page, same = changed(text, ".mdx" if "Image" in text else ".md")
    assert same == text
    assert page.notes or page.unseen or any(one.left or one.fixed for one in page.images)


UNTOUCHED = {
    *("code.mdx", "erb.html", "fence_in_list.md", "indented_in_list.md", "jinja.html", "jsx.mdx"),
    *("liquid.md", "math.md", "misc.html", "myst.md", "nested.md", "php.html"),
    *("plaintext.html", "pre.md", "script.md", "tab.md", "tmplattr.html", "fm_anchor.md"),
    *("fm_block.md", "fm_comment.md", "fm_languages.md", "fm_next_line.md", "fm_quoted_two_lines.md", "fm_tag.md"),
    *("fm_toml_multi.md", "fm_toml_multi2.md"),
}  # fmt: skip


def front(text):
    text = text.removeprefix("\ufeff")
    if text.startswith("+++"):
        return tomllib.loads(text.split("+++")[1])
    return yaml.safe_load(text.split("---")[1]) if text.startswith("---") else {}


def without_alt(value):
    if isinstance(value, dict):
        return {key: without_alt(part) for key, part in value.items() if "alt" not in key}
    return value


@pytest.mark.parametrize("file", sorted(HERE.iterdir()), ids=lambda file: file.name)
def test_pages_that_were_corrupted(file):
    """Front matter stays what it is but for alt, and of code, programs and templates nothing changes."""
    text = file.read_bytes().decode("utf-8", "surrogateescape")
    new = after(text, file.suffix)
    assert without_alt(front(new)) == without_alt(front(text))
    back = re.sub(r' alt="NEW &lt;&amp;&quot; \*x\*"', "", new.replace(f"![{MARKDOWN}]", "![]"))
    if "image_alt" not in text and "alt:" not in text and file.name != "table.md":
        assert back == text
    assert (new == text) >= (file.name in UNTOUCHED)


@pytest.mark.skipif(browser.CHROMIUM is None, reason="needs Chromium")
def test_a_browser_sees_other_alt_texts_and_nothing_else():
    draw = random.Random(1)
    before = [random_pages.page(draw) for _ in range(150)]
    pairs = [(one, after(one.decode("utf-8", "surrogateescape"), ".html")) for one in before]
    pairs = [(one, other.encode("utf-8", "surrogateescape")) for one, other in pairs]
    assert sum(one != other for one, other in pairs) > 50
    with browser.tab() as tab:
        assert [pair for pair, wrong in zip(pairs, random_pages.differences(tab, pairs), strict=True) if wrong] == []
