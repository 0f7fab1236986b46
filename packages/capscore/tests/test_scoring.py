"""`capscore.score` on what people hand over: dicts, lists, files of several kinds, and files that are wrong."""

import gzip
import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import capscore
from capscore import scoring, system
from capscore.caption_files import photos_meant
from capscore.errors import UserError
from capscore.sentences import numbered
from scored import loo1000

CAPTIONS = {"1": "A dog runs on the grass.", "2": "Two cats sleep on a red sofa"}
PEOPLE = {"1": ["A brown dog runs over grass", "a dog running"], "2": ["Two cats on a couch", "cats asleep on a sofa"]}
FAST = [
    name
    for name, measure in scoring.MEASURES.items()
    if not {"Java", "training captions", "several captions"} & {*measure.needs} and name not in ("METEOR", "SGF")
]
OVERLAP = "BLEU,ROUGE-L,CIDEr-D,CIDEr"
ROWS = [{"image_id": int(id), "caption": text} for id, text in CAPTIONS.items()]
ANNOTATIONS = {
    "images": [{"id": int(id), "file_name": f"{id}.jpg"} for id in PEOPLE],
    "annotations": [{"image_id": int(i), "id": 9, "caption": text} for i, texts in PEOPLE.items() for text in texts],
}


def overlap(captions=CAPTIONS, references=PEOPLE, **options):
    return capscore.score(captions, references, metrics=OVERLAP, **options)


def test_a_thousand_photos_from_raw_text():
    images = loo1000()["images"]
    captions = {image["id"]: image["caption"] for image in images}
    references = {image["id"]: image["references"] for image in images}
    scores = scoring.measure(captions, references, metrics=OVERLAP)
    expected = {name: value for name, value in loo1000()["corpus"].items() if name in scores.corpus}
    assert len(expected) == 7
    assert scores.corpus == pytest.approx(expected, abs=1e-9)
    each = scores.per_photo()
    assert all(each[i["id"]][name] == pytest.approx(i["scores"][name], abs=1e-9) for i in images for name in expected)


def test_a_fraction_is_two_words_where_n_grams_are_counted_and_one_to_rouge():
    """As in the COCO evaluation: the tokeniser joins "1 1/2" by a no-break space, and only some scorers split there."""
    scores = capscore.score(["1 1/2 cats"], [["1 1/2 dogs"]], metrics="BLEU-1,ROUGE-L")
    assert scores == pytest.approx({"BLEU-1": 2 / 3, "ROUGE-L": 1 / 2}, abs=1e-8)


class Series:
    """What pandas.Series has."""

    ndim = 1

    def __init__(self, index, values):
        self.index, self._values = index, values

    def items(self):
        return zip(self.index, self._values, strict=True)

    def __iter__(self):
        return iter(self._values)


def test_captions_in_memory_may_have_many_forms():
    expected = overlap()
    texts, people = list(CAPTIONS.values()), list(PEOPLE.values())
    for captions, references in [
        (texts, people),
        ((text for text in texts), iter(people)),
        ({1: texts[0], 2: [texts[1]]}, PEOPLE),
        ({np.int64(1): texts[0], np.int64(2): texts[1]}, PEOPLE),
        (ROWS, PEOPLE),
        (ROWS + ROWS[:1], PEOPLE),  # the same row twice counts once
        (CAPTIONS, {"images": [], "annotations": ANNOTATIONS["annotations"]}),
        (Series(np.array([2, 1]), texts[::-1]), PEOPLE),
        (Series(np.array([2, 1]), texts[::-1]), Series(["1", "2"], people)),
    ]:
        assert overlap(captions, references) == expected
    with pytest.raises(UserError, match="twice"):
        overlap(Series([1, 1], ["a", "b"]))


@pytest.mark.parametrize("wrong", [3, None, {"a", "b"}, np.array([["a"], ["b"]])], ids=["number", "none", "set", "2d"])
def test_what_holds_no_captions_in_order_is_refused(wrong):
    for arguments in ((wrong, PEOPLE), (CAPTIONS, wrong)):
        with pytest.raises(UserError, match="must be a mapping by id, a list"):
            capscore.score(*arguments)


def test_what_the_command_says_is_a_warning_in_python(recwarn):
    """gts and res in pycocoevalcap's order, the plain CIDEr, a photo that is left out, a single photo."""
    capscore.score(CAPTIONS, PEOPLE, metrics="BLEU,CIDEr-D")
    assert not recwarn.list
    with pytest.warns(UserWarning, match="swapped") as warned:
        capscore.score(PEOPLE, CAPTIONS, metrics="BLEU")
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match="CIDEr-D"):
        scoring.measure(CAPTIONS, PEOPLE, metrics="CIDER")
    with pytest.warns(UserWarning, match="no caption in the captions: '3'"):
        capscore.score(CAPTIONS, PEOPLE | {"3": ["a dog"]}, metrics="BLEU", allow_missing=True)
    with pytest.warns(UserWarning, match='df="coco"'):
        capscore.score({"1": "a"}, {"1": ["a"]}, metrics="CIDEr-D")


def test_scores_are_shown_as_a_table_and_can_be_pickled():
    captions, references = {"1": "a red bus", "2": "a cat"}, {"1": ["a red bus"], "2": ["dogs"]}
    scores = scoring.measure(captions, references, metrics="BLEU-1,AvgLen")
    assert [line.split() for line in repr(scores).splitlines()[1:]] == [["BLEU-1", "60.0"], ["AvgLen", "2.5"]]
    assert "2 photos" in repr(scores)
    page = scores._repr_html_()
    assert "<td>60.0</td>" in page
    assert "[" not in page, "no raw arrays"
    scores = scoring.measure(CAPTIONS, PEOPLE)
    assert pickle.loads(pickle.dumps(scores)).corpus == scores.corpus


def test_files_of_every_kind_say_the_same(tmp_path):
    captions = {"captions.json": CAPTIONS, "results.json": ROWS}
    references = {
        "references.json": PEOPLE,
        "annotations.json": ANNOTATIONS,
        "data.json": {"dataset": "d", "images": [{"id": int(i), "captions": texts} for i, texts in PEOPLE.items()]},
        "clips.json": {"dataset": "d", "videos": [{"id": i, "captions": texts} for i, texts in PEOPLE.items()]},
    }
    for name, content in (captions | references).items():
        (tmp_path / name).write_text(json.dumps(content))
        with gzip.open(tmp_path / f"{name}.gz", "wt") as file:
            json.dump(content, file)
    for one in captions:
        for other in references:
            for end in ("", ".gz"):
                assert overlap(tmp_path / (one + end), tmp_path / (other + end)) == overlap()


def test_what_caption_wrote_is_matched_by_id_or_by_file(tmp_path):
    (tmp_path / "photos").mkdir()
    data = [{"id": i, "file": f"photos/{i}.jpg", "split": "test", "captions": texts} for i, texts in PEOPLE.items()]
    other = {"id": "3", "file": "photos/3.jpg", "split": "train", "captions": ["a train"]}
    (tmp_path / "data.json").write_text(json.dumps({"dataset": "d", "images": [other, *data]}))
    by_file = [{"file": str(tmp_path / "photos" / f"{i}.jpg"), "caption": text} for i, text in CAPTIONS.items()]
    by_id = [{"file": "elsewhere.jpg", "id": i, "caption": text, "logprob": -3.0} for i, text in CAPTIONS.items()]
    by_name = [{"file": f"copy/of/{i}.jpg", "caption": text} for i, text in CAPTIONS.items()]
    for rows in (by_file, by_id, by_name):
        (tmp_path / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert overlap(tmp_path / "captions.jsonl", tmp_path / "data.json", split="test") == overlap()


@pytest.mark.parametrize(
    ("names", "files", "meant"),
    [
        (["c/1.jpg", "c/2.jpg"], {"/a/1.jpg": "x", "/b/2.jpg": "y"}, {"c/1.jpg": "x", "c/2.jpg": "y"}),
        (["c/1.jpg"], {"/a/1.jpg": "x", "/b/1.jpg": "y"}, {}),  # two photos
        (["c/1.jpg", "d/1.jpg"], {"/a/1.jpg": "x"}, {}),  # two captions
        (["c/1.jpg", "/b/2.jpg"], {"/a/1.jpg": "x", "/b/2.jpg": "y"}, {"/b/2.jpg": "y"}),  # the files are there
        (["x", "c/1.jpg", "c/2.jpg"], {"/a/1.jpg": "x", "/b/2.jpg": "y"}, {"x": "x", "c/2.jpg": "y"}),
        (["a\0/2.jpg"], {"/b/2.jpg": "y"}, {"a\0/2.jpg": "y"}),
    ],
)
def test_names_of_files_count_where_only_one_photo_and_one_caption_have_them(names, files, meant):
    assert photos_meant(names, ["x", "y"], files) == meant


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c.csv", "image_id,caption\r\n1,A dog runs on the grass.\r\n2,Two cats sleep on a red sofa"),
        ("c.csv", "\ufefffile,caption,logprob,error,id,key\nx,A dog runs on the grass.,-3,,1,k\ny,"
                  "Two cats sleep on a red sofa,-3,,2,k\n"),
        ("c.jsonl", '{"image_id": 1, "caption": "A dog runs\u2028on the grass."}\r\n\n'
                    '{"image_id": 2, "caption": "Two cats sleep on a red sofa"}'),
    ],
)  # fmt: skip
def test_tables_and_lines_of_others_are_read(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    assert overlap(tmp_path / name) == overlap(tmp_path / f"{name}.gz") == overlap()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.csv", None, "there is no such file"),
        ("c.csv", "caption\na dog\n", 'entry 1 has no "image_id"'),
        ("c.csv", "image_id,text\n1,a dog\n", '"caption" is missing'),
        ("c.jsonl", '{"image_id": 1, "caption": "a"}\n{"image_id": 2, "cap', "line 2"),
        ("c.jsonl", '{"image_id": 1, "caption": "a", "caption": "b"}\n', "occurs twice"),
        ("c.json", '{"1": "a", "2": "b', "the JSON breaks off"),
        ("c.json", '{"1": "a", "1": "b"}', "'1' occurs twice, with different captions"),
        ("c.json", "[1, 2]", "entry 1 must be an object"),
        ("c.json", "7", "must be an object of ids and captions, not a number"),
        ("c.json", "", "the file is empty"),
        ("c.json", '{"dataset": "d", "images": [{"id": 1, "captions": ["a"]}]}', "holds references, not captions"),
        ("r.json", '[{"image_id": 1, "caption": "a"}]', "is it the first file"),
        ("r.json", '{"images": [{"id": 1, "captions": ["a"]}, {"id": 1}]}', "given to an earlier record"),
        ("r.json", '{"images": [{"captions": ["a"]}]}', '"id" must be'),
        ("r.json", '{"images": [{"id": true, "captions": ["a"]}]}', '"id" must be'),
        ("r.json", '{"images": [{"id": 1, "split": ["test"]}]}', '"split" must be a string, not a list'),
        ("r.json", '{"images": [{"imgid": 1, "filename": "a", "sentences": []}]}', "tellapart prepare karpathy"),
        ("r.json", '{"annotations": [{"image_id": null, "caption": "a"}]}', "an id must be a whole number or a string"),
        ("r.json", '{"images": [{"id": 3, "captions": [4]}]}', "'3': a caption must be a string, not a number"),
        ("r.json", '{"annotations": [{"image_id": 3, "caption": null}]}', "'3': a caption must be a string, not null"),
    ],
)
def test_wrong_files_are_named(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError) as error:
        capscore.score(*((CAPTIONS, path) if name == "r.json" else (path, PEOPLE)), metrics="BLEU")
    assert str(path) in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("captions", "references", "message"),
    [
        ({"1": 5}, PEOPLE, "the captions: '1': must be a caption or a list of captions, not a number"),
        ({"1": [None]}, PEOPLE, "the captions: '1': a caption must be a string, not null"),
        (CAPTIONS, {"1": ["a", {"x": 1}]}, "the references: '1': \"caption\" is missing"),
        (CAPTIONS, {"1": [{"caption": {"x": 1}}]}, "the references: '1': a caption must be a string, not an object"),
        ({1: "a", "1": "b"}, PEOPLE, "'1' occurs twice, as a number and as a string"),
        ([ROWS[0], {"image_id": 1, "caption": "b"}], PEOPLE, "'1' occurs twice, with different"),
        ({"1": [{"image_id": 2, "caption": "a"}]}, PEOPLE, "'1': one of its captions has the image_id '2'"),
        (CAPTIONS, {"1": [{"image_id": [2], "caption": "a"}]}, "an id must be a whole number or a string"),
        (CAPTIONS, {"1": [["a dog"]]}, "the references: '1': a caption must be a string"),
        ([{"image_id": 1}], PEOPLE, "'1': \"caption\" is missing"),
        ([{"caption": "a"}], PEOPLE, 'entry 1 has no "image_id"'),
        ([{"image_id": 1.5, "caption": "a"}], PEOPLE, "an id must be a whole number or a string, not 1.5"),
        ([{"image_id": 1, "caption": "a"}, 7], PEOPLE, "must be a caption or a list of captions, not"),
    ],
)
def test_wrong_content_is_named(captions, references, message):
    with pytest.raises(UserError) as error:
        capscore.score(captions, references, metrics="BLEU")
    assert message in str(error.value)


def test_a_split_that_is_not_there_is_named_with_those_that_are(tmp_path):
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"images": [{"id": 1, "split": "test", "captions": ["a"]}]}))
    with pytest.raises(UserError, match="has no split 'val'; it has 'test'"):
        scoring.measure(CAPTIONS, path, split="val")
    path.write_text(json.dumps(PEOPLE))
    with pytest.raises(UserError, match="only a data file has splits"):
        scoring.measure(CAPTIONS, path, split="val")


def test_missing_and_extra_ids_are_listed(tmp_path):
    many = {str(i): ["a"] for i in range(100, 125)}
    failed = tmp_path / "failed.jsonl"
    failed.write_text(json.dumps(ROWS[0]) + '\n{"id": "2", "file": "2.jpg", "error": "broken"}\n')
    for captions, references, message in [
        (CAPTIONS, PEOPLE | many, r"25 photos have no caption in the captions: '100', .* and 15 more"),
        (CAPTIONS | {"9": "a"}, PEOPLE, "1 photo has no reference in the references: '9'"),
        (CAPTIONS, PEOPLE | {"2": []}, "1 photo has no reference in the references: '2'"),
        (failed, PEOPLE, r"1 photo has no caption in .*failed.jsonl: '2'\. To score the others"),
    ]:
        with pytest.raises(UserError, match=message):
            capscore.score(captions, references)
    scores = scoring.measure(CAPTIONS | {"9": "a"}, PEOPLE | many, metrics="BLEU", allow_missing=True)
    assert scores.ids == ["1", "2"]
    assert len(scores.problems) == 2
    with pytest.raises(UserError, match="no photo in common"):
        scoring.measure({"9": "a"}, PEOPLE, allow_missing=True)
    # what is left out has no part in document frequencies
    assert overlap(CAPTIONS, PEOPLE | {"3": ["a dog"]}, allow_missing=True) == overlap()


def test_several_captions_of_a_photo_are_judged_by_the_first_and_for_diversity_together():
    several = {"1": [CAPTIONS["1"], "a dog", "grass"], "2": [CAPTIONS["2"], "cats"]}
    scores = capscore.score(several, PEOPLE, metrics=f"{OVERLAP},mBLEU,self-CIDEr")
    assert {name: scores[name] for name in overlap()} == overlap()
    assert 0 < scores["mBLEU-1"] < 1
    assert 0 < scores["self-CIDEr"] <= 1
    # nor do its words depend on its siblings, as those of a caption in a file do on the next
    people = {"1": ["the letter p"], "2": ["a dog"]}
    alone = capscore.score({"1": "the letter P.", "2": "A dog"}, people, metrics="BLEU-1")
    assert capscore.score({"1": ["the letter P.", "dogs"], "2": ["A dog"]}, people, metrics="BLEU-1") == alone


HOSTILE = ["", "   ", "\x00\x07\x1b[31m", "🐕🐈", "…", '"', "\ud800", "a\r\nb\u2028c", "word " * 10_000, "x" * 100_000]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_was_said_has_a_defined_score(text):
    for captions, references in (
        ({"1": text, "2": "a dog"}, PEOPLE),
        (CAPTIONS, {"1": [text], "2": PEOPLE["2"]}),
        ({"1": text, "2": text}, {"1": [text], "2": [text, ""]}),
    ):
        scores = scoring.measure(captions, references, metrics=FAST)
        assert all(math.isfinite(value) for value in scores.corpus.values())
        assert all(math.isfinite(value) for each in scores.per_photo().values() for value in each.values())


def test_metrics_are_chosen_by_name_in_any_case():
    assert list(capscore.score(CAPTIONS, PEOPLE, metrics="cider-d, bleu-4")) == ["CIDEr-D", "BLEU-4"]
    assert list(capscore.score(CAPTIONS, PEOPLE, metrics=["BLEU"])) == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4"]
    with pytest.raises(UserError, match="there is no metric 'BLUE'; there are BLEU, METEOR"):
        capscore.score(CAPTIONS, PEOPLE, metrics="BLUE")


def test_what_cannot_run_is_passed_over_by_default_said_of_all_and_an_error_by_name(monkeypatch):
    scores = scoring.measure(CAPTIONS, PEOPLE)
    assert not {"mBLEU", "self-CIDEr", "SPICE"} & set(scores.skipped)
    assert {"BLEU-4", "Prec", "CIDErBtw"} <= set(scores.corpus)
    scores = scoring.measure(CAPTIONS, PEOPLE, metrics="all")
    assert "several captions of one photo" in scores.skipped["mBLEU"]
    assert {"BLEU-1", "CIDEr-D", "ROUGE-L", "SGF", "Prec"} <= set(scores.corpus) == set(scores.signature)
    with pytest.raises(UserError, match="mBLEU cannot be computed: it compares several captions"):
        capscore.score(CAPTIONS, PEOPLE, metrics="mBLEU")
    monkeypatch.setattr(system, "package", lambda name: None)
    assert "pip install 'capscore[meteor]'" in scoring.measure(CAPTIONS, PEOPLE).skipped["METEOR"]
    with pytest.raises(UserError, match="METEOR cannot be computed: METEOR needs"):
        capscore.score(CAPTIONS, PEOPLE, metrics="METEOR")


def test_signatures_say_what_a_figure_depends_on():
    version = capscore.__version__
    references = {**PEOPLE, "1": PEOPLE["1"][:1]}
    assert scoring.measure(CAPTIONS, references, metrics="CIDEr-D,BLEU-4,CIDErBtw", df="coco").signature == {
        "CIDEr-D": f"CIDEr-D|df:coco|tok:ptb|refs:1-2|v:{version}",
        "BLEU-4": f"BLEU-4|tok:ptb|refs:1-2|v:{version}",
        "CIDErBtw": f"CIDErBtw|look-alikes:references-5|df:coco|tok:ptb|refs:1-2|v:{version}",
    }


def test_frequencies_are_the_references_own_the_bundled_ones_or_those_of_a_file(tmp_path):
    one, people = {"1": "A dog runs on the grass."}, {"1": ["a dog runs on the grass"]}
    assert capscore.score(one, people, metrics="CIDEr-D") == {"CIDEr-D": 0.0}
    assert capscore.score(one, people, metrics="CIDEr-D", df="coco") == pytest.approx({"CIDEr-D": 10})
    path, more = tmp_path / "more.json", PEOPLE | {"3": ["a bus"], "4": ["a dog"]}
    path.write_text(json.dumps(more))
    two = scoring.measure(CAPTIONS, PEOPLE, metrics="CIDEr-D", df=path)
    four = scoring.measure(CAPTIONS | {"3": "x", "4": "x"}, more, metrics="CIDEr-D")
    assert two.per_photo()["1"] == pytest.approx(four.per_photo()["1"])
    assert two.signature["CIDEr-D"].startswith("CIDEr-D|df:more.json|")


def test_references_of_several_models_are_tokenised_once(monkeypatch):
    asked = []
    monkeypatch.setattr(scoring, "numbered", lambda texts, words: asked.append(texts) or numbered(texts, words))
    scoring.compare([CAPTIONS, CAPTIONS, CAPTIONS], PEOPLE, metrics=OVERLAP)
    assert asked.count([text for texts in PEOPLE.values() for text in texts]) == 1
    assert asked.count(list(CAPTIONS.values())) == 3


words = st.lists(st.sampled_from(["dog", "cat", "red", "runs", "sofa", "grass"]), min_size=1, max_size=8).map(" ".join)
worlds = st.lists(st.tuples(words, st.lists(words, min_size=1, max_size=3)), min_size=2, max_size=5)
# of photos equally alike, the earlier is the look-alike: these two may depend on the order of photos
ORDERLESS = [name for name in FAST if name not in ("CIDErBtw", "DisWordRate")] + ["SGF"]


@given(worlds, st.randoms(use_true_random=False))
def test_the_order_of_photos_and_references_changes_no_measure(world, chance):
    captions, references = ({i: photo[side] for i, photo in enumerate(world)} for side in (0, 1))
    before = scoring.measure(captions, references, metrics=ORDERLESS)
    order = chance.sample(range(len(world)), len(world))
    shuffled = {i: chance.sample(world[i][1], len(world[i][1])) for i in order}
    after = scoring.measure({i: world[i][0] for i in order}, shuffled, metrics=ORDERLESS)
    assert after.corpus == pytest.approx(before.corpus, abs=1e-9)
    each = before.per_photo()
    assert all(scores == pytest.approx(each[id], abs=1e-9) for id, scores in after.per_photo().items())


@given(st.lists(st.sampled_from("abcdefgh"), min_size=4, max_size=9))
def test_a_caption_that_equals_its_only_reference_scores_the_maximum(letters):
    text = " ".join(f"w{letter}" for letter in letters)
    scores = scoring.measure({1: text, 2: "zz"}, {1: [text], 2: ["yy"]}, metrics=OVERLAP).per_photo()["1"]
    most = {"ROUGE-L": 1, "CIDEr-D": 10, "CIDEr": 10, **{f"BLEU-{n}": 1 for n in range(1, 5)}}
    assert scores == pytest.approx(most, abs=1e-6)


@given(worlds)
def test_an_unrelated_photo_changes_nothing_but_cider_and_that_through_frequencies(world):
    captions, references = ({i: photo[side] for i, photo in enumerate(world)} for side in (0, 1))
    before = scoring.measure(captions, references, metrics="BLEU,ROUGE-L,Prec").per_photo()
    more = scoring.measure(captions | {"x": "qi za"}, references | {"x": ["qi xu"]}, metrics="BLEU,ROUGE-L,Prec")
    after = more.per_photo()
    assert all(after[id] == pytest.approx(scores) for id, scores in before.items())
