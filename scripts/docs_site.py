"""What mkdocs does not do by itself, as its hooks (mkdocs.yml names this file).

- Reference pages are made from the program (build_reference.py).
- A link out of docs/, to a file of the repository, becomes a link to a page of the site that shows the file.
- Equations (```math blocks, as GitHub shows them too) become MathML, which browsers draw without a script.
- The notebook becomes a page.
"""

from __future__ import annotations

import json
import os
import re
import runpy
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

OUTSIDE = "repository"  # where files from outside of docs/ are in the site
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=(?:#[^)\s]*)?\))")
EQUATION = re.compile(r"^```math\n(.*?)\n```$", re.M | re.S)
NOTEBOOK = "album.ipynb"


def anchor(heading: str, separator: str = "-") -> str:
    """A heading's address within its page, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def on_config(config: Any) -> Any:
    config["mdx_configs"]["toc"]["slugify"] = anchor
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    pages = runpy.run_path(str(ROOT / "scripts" / "build_reference.py"))["pages"]
    for place, text in pages().items():
        files.append(File.generated(config, place, content=text))
    notebook = json.loads((ROOT / "docs" / NOTEBOOK).read_text(encoding="utf-8"))
    files.append(File.generated(config, place_of(f"docs/{NOTEBOOK}"), content=as_page(notebook)))
    for place, path in sorted(linked().items()):
        content = shown(path)
        if isinstance(content, str):
            content = rewritten(content, path.relative_to(ROOT).as_posix())
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    place = page.file.src_uri
    if not place.startswith((f"{OUTSIDE}/", "reference/")):
        markdown = rewritten(markdown, f"docs/{place}")
    return EQUATION.sub(lambda found: equation(found[1]), markdown)


def place_of(path: str) -> str:
    """Where a file of the repository is in the site."""
    if path == f"docs/{NOTEBOOK}":
        return NOTEBOOK.replace(".ipynb", ".md")
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    is_page = PurePosixPath(path).suffix in (".md", ".webp", ".svg", ".png")
    return f"{OUTSIDE}/{path}" + ("" if is_page else ".md")


def targets(text: str, path: str) -> list[str]:
    """The files of the repository that a page links to."""
    found = [os.path.normpath(PurePosixPath(path).parent / link) for link in LINK.findall(without_code(text))]
    return [link for link in found if (ROOT / link).exists()]


def rewritten(text: str, path: str) -> str:
    """A page with links that hold within the site."""
    here = PurePosixPath(place_of(path)).parent

    def moved(found: re.Match[str]) -> str:
        target = os.path.normpath(PurePosixPath(path).parent / found[1])
        if re.match(r"[a-z]+:", found[1]) or not (ROOT / target).exists():
            return found[1]
        return os.path.relpath(place_of(target), here)

    return LINK.sub(moved, text)


def linked() -> dict[str, Path]:
    """What is linked to from docs/, by its place in the site, and what is linked to from there."""
    waiting = sorted((ROOT / "docs").rglob("*.md"))
    found: dict[str, Path] = {}
    while waiting:
        page = waiting.pop()
        path = page.relative_to(ROOT).as_posix()
        for target in targets(page.read_text(encoding="utf-8"), path):
            place = place_of(target)
            if not target.startswith("docs/") and place not in found:
                found[place] = ROOT / target
                if target.endswith(".md"):
                    waiting.append(ROOT / target)
    return found


def shown(path: Path) -> str | bytes:
    """A file of the repository as a page: Markdown as it is, pictures as they are, other text as a block of code."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        return f"# {name}\n\n" + "\n".join(f"- `{entry.name}`" for entry in sorted(path.iterdir()))
    if place_of(name).endswith((".webp", ".svg", ".png")):
        return path.read_bytes()
    text = path.read_text(encoding="utf-8")
    if name.endswith(".md"):
        return re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.S)  # the card of a model has a head for programs
    language = {".py": "python", ".yaml": "yaml", ".json": "json"}.get(path.suffix, "text")
    return f"# {name}\n\n````{language}\n{text}\n````"


def without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.S)


def equation(latex: str) -> str:
    from latex2mathml.converter import convert

    return f"<div>{convert(latex, display='block')}</div>"


def as_page(notebook: dict[str, Any]) -> str:
    """Cells one after another; results are not kept in the notebook."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    return "\n\n".join(text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in cells)
