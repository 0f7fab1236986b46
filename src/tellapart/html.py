"""HTML from templates (Jinja2): each page is one file that needs no network and holds no metadata of the photos.

Captions and file names are untrusted, so every text is escaped, and a page forbids itself to load anything and
to run anything but the one script of ours that it may have.  Photos are redrawn as thumbnails: what else is in a
photo's file, such as where it was taken, does not get here.

Templates, styles and scripts are files of this package, named from its folder: "evaluation/pages/cards.html".
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capscore.printable import printable_lines

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_PACKAGE = Path(__file__).parent
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def render_page(
    template: str,
    *,
    title: str,
    subtitle: str = "",
    footer: str = "",
    styles: Sequence[str] = (),
    more_style: str = "",
    scripts: Sequence[str] = (),
    **values: Any,
) -> bytes:
    """A whole page from a template that extends "page/page.html" and fills its block `main` from `values`.

    styles, scripts   files of this package; what the scripts do (sorting, search) the page must be readable without
    more_style        CSS that is made for this page, such as pictures that are used more than once
    """
    from markupsafe import Markup

    script = "".join(map(read, scripts))
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    page = render(
        template,
        title=title,
        subtitle=subtitle,
        footer=footer,
        policy=Markup(_POLICY + (f"; script-src 'sha256-{digest}'" if script else "")),
        style=Markup("".join(map(read, ("page/page.css", *styles))) + more_style),
        script=Markup(script),
        **values,
    )
    return page.encode("utf-8")


def render(template: str, **values: Any) -> Markup:
    """A template as HTML: every text in `values` is escaped, Markup stays as it is."""
    from markupsafe import Markup

    return Markup(_environment().get_template(template).render(values))


def read(name: str) -> str:
    """A file of this package as text, such as a style or a script."""
    return (_PACKAGE / name).read_text(encoding="utf-8")


def escaped(text: str) -> str:
    """Safe between tags and in quotes.  A file name need not be UTF-8; a page is, and shows a mark for the odd byte."""
    return html.escape(_shown(text))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _finalized(value: Any) -> Any:
    return value if not isinstance(value, str) or hasattr(value, "__html__") else _shown(value)


def _shown(text: str) -> str:
    return printable_lines(text).encode("utf-8", "replace").decode("utf-8")
