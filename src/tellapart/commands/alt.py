"""tellapart alt: alt texts for the images of a site's pages."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from capscore.errors import UserError
from capscore.printable import print_message
from tellapart.commands.arguments import Parser
from tellapart.commands.lint import rules
from tellapart.retrievers import DEFAULT as RETRIEVER

if TYPE_CHECKING:
    from tellapart.desk.alt import Page


def parser() -> Parser:
    return Parser(
        "alt",
        'Find the images of HTML and Markdown pages that have no alt text, a file\'s name or "image",\n'
        "and describe them: told apart from the other images of the page, in at most 125 characters.\n"
        "Prints a diff.  With --write the pages are changed, in nothing but the alt texts.\n"
        'A text that a person wrote stays; only "Photo of" before it is cut.  Images in links and buttons, logos,\n'
        "charts, dividers, pages in other languages, templates and what else is not sure are named and left to you.\n"
        "Exit 1: a page or an image could not be read.",
        "tellapart alt site/ --write",
        f"""
        SITE           a folder with pages, images and further folders
        --write        change the pages
        --model MODEL  from `tellapart models`, a run folder or a hub id (default: the embedded one)
        --retriever R={RETRIEVER}  finds an image by its alt text
        --ignore A,B   rules of `tellapart lint` to ignore
        """,
        site=Path,
        ignore={"type": rules, "default": []},
    )


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)

    from tellapart.desk.alt import describe, read_pages

    skipped: list[str] = []
    pages = list(read_pages(request.site, request.ignore, skipped))
    if any(page.wanted for page in pages):
        from tellapart.captioning.captioner import load
        from tellapart.captioning.pipeline import RerankConfig
        from tellapart.models import retrievers

        captioner = load(request.model)
        describe(pages, captioner, retrievers.load(request.retriever), RerankConfig())
    changed = 0
    for page in pages:
        page.check()
        if page.changes:
            _show(page)
            if not request.write or _write(page):
                changed += len(page.changes)
    left = [line for page in pages for line in page.left]
    problems = [line for page in pages for line in page.problems]
    for line in [*skipped, *(page.unseen for page in pages if page.unseen), *left, *problems]:
        print_message(line)
    done = "written" if request.write else "to write (--write changes the pages)"
    failed = f"; {len(problems)} not read or written" if problems else ""
    print_message(f"{len(pages)} pages; {changed} alt texts {done}; {len(left)} left to you{failed}")
    return 1 if problems else 0


def _show(page: Page) -> None:
    before, after = (data.decode("utf-8", "surrogateescape").splitlines() for data in (page.data, page.after))
    for line in difflib.unified_diff(before, after, str(page.path), str(page.path), lineterm="", n=1):
        print(line)


def _write(page: Page) -> bool:
    """A page that cannot be written is a problem of its own; the others are written."""
    from capscore import files

    try:
        if files.read_bytes(page.path) != page.data:
            raise UserError(f"{page.path}: the page was changed meanwhile; run the command again.")
        files.refuse_shared(page.path)
        files.replace(page.path, page.after)
    except UserError as error:
        page.problems.append(str(error))
        return False
    return True
