"""Data, captions, recipes and what captions are written into, to be fuzzed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Data


def _write(folder: Path, **contents: Any) -> None:
    for name, content in contents.items():
        stem, _, suffix = name.rpartition("_")
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{stem}.{suffix}").write_text(text)


_CAPTIONS = ["a dog in the snow", "a white dog, \u00e9t\u00e9"]


def data(folder: Path) -> None:
    images = [{"id": n, "file": f"{n}.jpg", "split": "train", "captions": _CAPTIONS, "more": [n]} for n in range(3)]
    _write(folder, data_json={"dataset": "toy", "images": images}, clips_json={"videos": images})


def read_data(path: Path) -> None:
    from tellapart.data import examples

    examples.read(path)
    examples.read(path, needs_files=False)


def bare_json() -> None:
    from capscore import files

    files.parse_json = lambda text, path, *, line=1, pairs=None: json.loads(text, object_pairs_hook=pairs)


def captions(folder: Path) -> None:
    rows = [{"file": f"{n}.jpg", "caption": "a dog", "logprob": -1.5, "key": f"{n:016x}"} for n in range(3)]
    results = [{"image_id": n, "caption": "a dog"} for n in range(3)]
    annotated = {
        "images": [{"id": n, "file_name": f"{n}.jpg"} for n in range(3)],
        "annotations": [{"id": 9 + n, "image_id": n, "caption": "a cat"} for n in range(3)],
    }
    _write(
        folder,
        one_json={str(n): "a dog" for n in range(3)},
        several_json={str(n): [*_CAPTIONS] for n in range(3)},
        objects_json={"1": [{"caption": "a dog"}]},
        results_json=results,
        annotations_json=annotated,
        rows_jsonl="\n".join(map(json.dumps, [*rows, {"file": "x.jpg", "error": "is damaged"}])) + "\n",
        candidates_jsonl='{"file": "0.jpg", "captions": ["a", {"caption": "b", "logprob": -1}]}\n',
    )


def read_captions(path: Path) -> None:
    from capscore import caption_files
    from tellapart.desk.candidates_file import CandidatesFile
    from tellapart.desk.captions_file import CaptionsFile

    _all_of(
        lambda: caption_files.read(path),
        lambda: caption_files.read_references(path),
        lambda: CandidatesFile(path) if path.suffix == ".jsonl" else None,
        lambda: CaptionsFile(path).rows if path.suffix in (".jsonl", ".csv") else None,
    )


def _all_of(*reads: Callable[[], object]) -> None:
    """Each may refuse the file; the others are asked nevertheless."""
    from capscore.errors import UserError

    refused: UserError | None = None
    for read in reads:
        try:
            read()
        except UserError as error:
            refused = error
    if refused is not None:
        raise refused


def tables(folder: Path) -> None:
    rows = 'file,caption,logprob,error,key\n0.jpg,a dog,-1.5,,0000000000000001\n\'=1.jpg,"a, b",,,\n'
    _write(
        folder,
        rows_csv=rows,
        flickr_csv="image,caption\n1.jpg,a dog\n1.jpg,a cat\n",
        flickr_txt="1.jpg#0\ta dog\n1.jpg#1\ta cat\n2.jpg#0\ta red bus\n",
        msvd_csv="VideoID,Start,End,WorkerID,Source,AnnotationTime,Language,Description\n"
        "v,1,9,7,clean,3,English,a dog\n",
        conceptual_tsv="a dog\thttp://a.example/1.jpg\na cat\thttp://a.example/2.jpg\n",
    )


def read_table(path: Path) -> None:
    stem = path.stem
    if stem == "rows":
        read_captions(path)
    else:
        from tellapart.data.readers import READERS

        READERS[stem].load()(path, path.parent)


def any_text() -> None:
    """Whatever the bytes are, without a sentence about those that are no text."""
    from capscore import files

    files.read_text = lambda path, **_: path.read_bytes().decode()


def readers(folder: Path) -> None:
    sentences = [{"raw": "a dog", "tokens": ["a", "dog"], "sentid": 1, "imgid": 0}]
    image = {"filepath": "", "filename": "1.jpg", "imgid": 0, "cocoid": 5, "split": "train", "sentences": sentences}
    coco = {
        "images": [{"id": n, "file_name": f"{n}.jpg", "domain": "in-domain"} for n in range(3)],
        "annotations": [{"id": 9 + n, "image_id": n, "caption": "a cat"} for n in range(3)],
    }
    wiki = {"split": "train", "filename": "1.jpg", "caption": {"raw": "a dog"}, "description": {"raw": "a white dog"}}
    video = {
        "videos": [{"video_id": "video0", "id": 0, "split": "train", "category": 1}],
        "sentences": [{"caption": "a dog", "video_id": "video0", "sen_id": 0}],
    }
    _write(
        folder,
        karpathy_json={"dataset": "coco", "images": [image]},
        coco_json=coco,
        nocaps_json=coco,
        concadia_json={"images": [wiki]},
        msrvtt_json=video,
    )


def read_reader(path: Path) -> None:
    from tellapart.data.readers import READERS

    READERS[path.stem].load()(path, path.parent)


def groups(folder: Path) -> None:
    from tellapart.neighbours.groups import Groups, Photo, Rule, save

    rule = Rule(by="image", metric="cosine", k=2, duplicates_above=0.9, retriever="word", retriever_sha256="0" * 64)
    photos = [Photo(file=str(folder / f"{n}.jpg"), id=n, split="", sha256=f"{n:064x}") for n in range(4)]
    save(Groups.empty(rule, photos), folder / "groups.json")


def read_groups(path: Path) -> None:
    from tellapart.neighbours.groups import load

    for group in load(path):
        assert group is not None


def studies(folder: Path) -> None:
    from tellapart.study.design import Item, sessions
    from tellapart.study.folder import Study, save

    sets = [[Item(f"p{n}", ("a",), ("a dog",), tuple(f"p{o}" for o in range(3) if o != n))] for n in range(3)]
    asked = sessions("choose", sets, per_person=3, answers=1, catch=1, seed=0)
    study = Study("choose", "Photos", "yes?", "ABC", ["a"], asked, {f"p{n}": str(n) for n in range(3)}, {"seed": 0})
    save(study, folder, ())


def read_study(path: Path) -> None:
    from tellapart.study.folder import load

    for trial in load(path.parent).trials().values():
        assert {*trial.photos} <= {"p0", "p1", "p2"}


# Recipes


def recipes(folder: Path) -> None:
    from tellapart.recipe_files import shipped

    others = ("base:", "stages:", "grid:")  # which lie elsewhere
    alone = [
        (name, place.path)
        for name, place in sorted(shipped().items())
        if not any(one in place.path.read_text() for one in others)
    ]
    for name, path in alone[::2]:
        (folder / f"{name.replace('/', '_')}.yaml").write_bytes(path.read_bytes())
    text = "model: {width: 32}\ndata:\n  files: [a.json]\n  min_count: 1\nobjective: {name: cross_entropy}\n"
    (folder / "own.yaml").write_text(text + "optim:\n  lr: 1e-3\n")


def read_recipe(path: Path) -> None:
    from tellapart.commands.train import asked

    asked([str(path)])


def bare_yaml() -> None:
    from tellapart import recipe_files

    recipe_files.yaml = without(recipe_files.yaml, "YAMLError")


def without(module: Any, error: str) -> Any:
    """A module whose error is another one, so that nobody catches it."""

    class Bare:
        def __getattr__(self, name: str) -> Any:
            return type(name, (Exception,), {}) if name == error else getattr(module, name)

    return Bare()


# Written into


def sidecars(folder: Path) -> None:
    from tellapart.desk import xmp

    text = xmp.Text({"x-default": "a dog", "de": "ein Hund"}, False, "2026-01-01T00:00:00Z")
    (folder / "ours.xmp").write_bytes(xmp.merge(xmp.EMPTY, text).data)
    (folder / "empty.xmp").write_bytes(xmp.EMPTY)
    (folder / "short.xmp").write_text(
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        '<rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:xmp="http://ns.adobe.com/xap/1.0/"'
        ' xmp:Rating="4"><dc:description><rdf:Alt><rdf:li xml:lang="x-default">mine &amp; yours</rdf:li></rdf:Alt>'
        "</dc:description><dc:subject><rdf:Bag><rdf:li>dog</rdf:li></rdf:Bag></dc:subject></rdf:Description></rdf:RDF></x:xmpmeta>"
    )
    ours, theirs = ((folder / name).read_bytes().decode() for name in ("ours.xmp", "short.xmp"))
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"):
        (folder / f"{encoding}.xmp").write_bytes(ours.encode(encoding))
    (folder / "theirs in 16.xmp").write_bytes(theirs.encode("utf-16-le"))


def read_sidecar(path: Path) -> None:
    """What comes out is XML, and to write once more changes nothing."""
    from capscore.errors import UserError
    from tellapart.desk import xmp

    text, data = xmp.Text({"x-default": "a red bus"}, False, "2026-01-01T00:00:00Z"), path.read_bytes()
    try:
        merged = xmp.merge(data, text).data
    except xmp.BadPacket as error:
        raise UserError(str(error)) from None
    xmp.parse(xmp.decoded(merged)[0])
    assert xmp.merge(merged, text).data == merged, "a second time changes it"


def bare_sidecars() -> None:
    from tellapart.desk import xmp

    xmp.expat = without(xmp.expat, "ExpatError")


def pages(folder: Path) -> None:
    text = '---\ntitle: A\nimage: a.jpg\nalt: photo\n---\n# A\n\n![](a.jpg) ![old][r] <img src="b.jpg">'
    text += "\n\n`![](c.jpg)`\n\n"
    html = "<!doctype html><title>A</title><img src=a.jpg><img alt='' src='b.jpg'>{% if x %}<p>{% endif %}"
    html += '<img alt="photo" src="c.jpg"><!-- <img> -->'
    mdx = "import a from 'b'\n\n# A\n\n<Title/> ![](a.jpg)\n\n{a ? <img src='b.jpg' /> : `c`}\n"
    toml = '+++\nimage = "a.jpg"\nalt = "photo"\n[b]\nimage = "b.jpg"\n+++\n'
    xml = '<html xmlns="http://www.w3.org/1999/xhtml"><body><title/><img src="b.jpg"/></body></html>'
    _write(folder, a_md=text + '[r]: c.jpg "t"\n', b_html=html, c_mdx=mdx, d_md=toml, e_xhtml=xml)


def read_page(path: Path) -> None:
    """Alt texts are put in, and what was said to hold changes nothing else."""
    from tellapart.desk import alt
    from tellapart.desk.pages import PageText

    for page in alt.read_pages(path.parent):
        for image in page.text.images:
            if not image.fixed and image.alt != "":
                page.describe(image, "a dog")
        page.check()
        again = PageText(page.after.decode("utf-8", "surrogateescape"), path.suffix)
        texts = [image.alt for image in again.images]
        assert len(texts) == len(page.text.images), "other images"
        assert texts.count("a dog") >= len(page.changes), "a text is missing"


def journals(folder: Path) -> None:
    row = {
        "file": "/photos/a.jpg.xmp",
        "before": None,
        "after": "0" * 64,
        "back": [[0, 3, "YWJj"]],
        "time": 1,
        "replaced": False,
    }
    _write(folder, c_journal="\n".join([json.dumps(row), json.dumps(row | {"before": "1" * 64})]) + "\n")


def read_journal(path: Path) -> None:
    from tellapart.desk.write import Journal

    Journal(path.with_suffix("")).read()
