"""Alt texts in pages: which images need one, and that nothing else changes."""

import pytest

from tellapart.writing.pages import images


def after(text, suffix, new='NEW <&" *x*'):
    for image in reversed(images(text, suffix)):
        if not image.fixed and not image.is_template:
            text = text[: image.start] + image.written(new) + text[image.end :]
    return text


ESCAPED = "NEW &lt;&amp;&quot; *x*"


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ('<img src="a.jpg">', f'<img alt="{ESCAPED}" src="a.jpg">'),
        ("<IMG\n src=a.jpg />", f'<IMG alt="{ESCAPED}"\n src=a.jpg />'),
        ("<img src=a.jpg alt='x > y' id=b>", f'<img src=a.jpg alt="{ESCAPED}" id=b>'),
        (
            "<img data-alt='no' title='alt=\"q\"' alt=word src=a.jpg>",
            f"<img data-alt='no' title='alt=\"q\"' alt=\"{ESCAPED}\" src=a.jpg>",
        ),
        ('é\r\n<p>\n<img src="a.jpg">\r\n', f'é\r\n<p>\n<img alt="{ESCAPED}" src="a.jpg">\r\n'),
    ],
)
def test_an_alt_attribute_is_put_in_or_its_value_replaced(before, expected):
    assert after(before, ".html") == expected


@pytest.mark.parametrize(
    "page",
    [
        '<img src="a.jpg" alt="">',
        "<img src=a.jpg alt>",
        '<img src="a.jpg" role="presentation">',
        '<img src="a.jpg" role=none>',
        '<img src="a.jpg" aria-hidden="true">',
        "<!-- <img src=a.jpg> -->",
        "<script>'<img src=a.jpg>'</script>",
        "<textarea><img src=a.jpg></textarea>",
        '<img src="{{ page.image }}">',
        "<img>",
    ],
)
def test_decorative_images_comments_and_templates_are_left(page):
    assert after(page, ".html") == page
    assert after(page, ".md") == page


MARKDOWN = r"NEW \<\&" + '" ' + r"\*x\*"


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("a ![](b.jpg) c", f"a ![{MARKDOWN}](b.jpg) c"),
        ('![old](<a b.jpg> "title")', f'![{MARKDOWN}](<a b.jpg> "title")'),
        ("[![](b(1).jpg)](https://x)", f"[![{MARKDOWN}](b(1).jpg)](https://x)"),
        ("![old][r]\n\n[R]: b.jpg", f"![{MARKDOWN}][r]\n\n[R]: b.jpg"),
        ("![r]\n\n[r]: b.jpg", "![r]\n\n[r]: b.jpg"),  # the alt text is the name of the link
        ("`![](b.jpg)` \\![](b.jpg)", "`![](b.jpg)` \\![](b.jpg)"),
        ("```\n![](b.jpg)\n```\n", "```\n![](b.jpg)\n```\n"),
        ("x\n\n    ![](b.jpg)\n", "x\n\n    ![](b.jpg)\n"),
        ("- x\n\n    ![](b.jpg)\n", f"- x\n\n    ![{MARKDOWN}](b.jpg)\n"),
        ("<img src='b.jpg'>", f"<img alt=\"{ESCAPED}\" src='b.jpg'>"),
        ("---\nimage: a.jpg\nimage_alt: old\n---\n", '---\nimage: a.jpg\nimage_alt: "NEW <&\\" *x*"\n---\n'),
        (
            "---\ncover:\n  image: a.jpg\n  alt: 'old'\n---\n",
            '---\ncover:\n  image: a.jpg\n  alt: "NEW <&\\" *x*"\n---\n',
        ),
        ('+++\nimage = "a.jpg"\nimageAlt = "old"\n+++\n', '+++\nimage = "a.jpg"\nimageAlt = "NEW <&\\" *x*"\n+++\n'),
        ("---\nimage: a.jpg\nalt: ''\n---\n", "---\nimage: a.jpg\nalt: ''\n---\n"),
        ("---\ntitle: a.jpg\nsalt: much\n---\n", "---\ntitle: a.jpg\nsalt: much\n---\n"),
    ],
)
def test_markdown_and_front_matter(before, expected):
    assert after(before, ".md") == expected
