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
from capscore.errors import UserError
from capscore.sentences import numbered
from scored import loo1000

SAID = {"1": "A dog runs on the grass.", "2": "Two cats sleep on a red sofa"}
TOLD = {"1": ["A brown dog runs over grass", "a dog running"], "2": ["Two cats on a couch", "cats asleep on a sofa"]}
FAST = [
    name
    for name, measure in scoring.MEASURES.items()
    if not {"Java", "training captions"} & {*measure.needs} and name not in ("METEOR", "SGF")
]
OVERLAP = "BLEU,ROUGE-L,CIDEr-D,CIDEr"


def test_a_thousand_photos_from_raw_text():
    images = loo1000()["images"]
    captions = {image["id"]: image["caption"] for image in images}
    references = {image["id"]: image["references"] for image in images}
    found = scoring.measure(captions, references, metrics=OVERLAP)
    expected = {name: value for name, value in loo1000()["corpus"].items() if name in found.corpus}
    assert len(expected) == 7
    assert found.corpus == pytest.approx(expected, abs=1e-9)
    each = found.per_photo()
    assert all(each[i["id"]][name] == pytest.approx(i["scores"][name], abs=1e-9) for i in images for name in expected)


def test_a_fraction_is_two_words_where_n_grams_are_counted_and_one_to_rouge():
    """As in the COCO evaluation: the tokeniser joins "1 1/2" by a no-break space, and only some scorers split there."""
    found = capscore.score(["1 1/2 cats"], [["1 1/2 dogs"]], metrics="BLEU-1,ROUGE-L")
    assert found == pytest.approx({"BLEU-1": 2 / 3, "ROUGE-L": 1 / 2}, abs=1e-8)


def test_dicts_lists_and_rows_say_the_same():
    expected = capscore.score(SAID, TOLD, metrics=OVERLAP)
    assert capscore.score(list(SAID.values()), list(TOLD.values()), metrics=OVERLAP) == expected
    assert capscore.score({1: SAID["1"], 2: [SAID["2"]]}, TOLD, metrics=OVERLAP) == expected
    rows = [{"image_id": int(id), "caption": text} for id, text in SAID.items()]
    assert capscore.score(rows, TOLD, metrics=OVERLAP) == expected


def test_iterators_numpy_ids_and_annotations_in_memory_are_taken():
    expected = capscore.score(SAID, TOLD, metrics=OVERLAP)
    assert capscore.score((text for text in SAID.values()), iter(TOLD.values()), metrics=OVERLAP) == expected
    assert capscore.score({np.int64(1): SAID["1"], np.int64(2): SAID["2"]}, TOLD, metrics=OVERLAP) == expected
    annotations = [{"image_id": int(i), "id": 9, "caption": text} for i, texts in TOLD.items() for text in texts]
    assert capscore.score(SAID, {"images": [], "annotations": annotations}, metrics=OVERLAP) == expected


def test_what_the_command_says_is_a_warning_in_python():
    """gts and res in pycocoevalcap's order, the plain CIDEr, a photo that is left out, a single photo."""
    with pytest.warns(UserWarning, match="swapped") as seen:
        capscore.score(TOLD, SAID, metrics="BLEU")
    assert seen[0].filename == __file__
    with pytest.warns(UserWarning, match="CIDEr-D"):
        scoring.measure(SAID, TOLD, metrics="CIDER")
    with pytest.warns(UserWarning, match="no caption in the captions: '3'"):
        capscore.score(SAID, TOLD | {"3": ["a dog"]}, metrics="BLEU", allow_missing=True)
    with pytest.warns(UserWarning, match='df="coco"'):
        capscore.score({"1": "a"}, {"1": ["a"]}, metrics="CIDEr-D")


def test_usual_scores_warn_of_nothing(recwarn):
    capscore.score(SAID, TOLD, metrics="BLEU,CIDEr-D")
    assert not recwarn.list


def test_scores_are_shown_as_a_table():
    found = scoring.measure(
        {"1": "a red bus", "2": "a cat"}, {"1": ["a red bus"], "2": ["dogs"]}, metrics="BLEU-1,AvgLen"
    )
    assert [line.split() for line in repr(found).splitlines()[1:]] == [["BLEU-1", "60.0"], ["AvgLen", "2.5"]]
    assert "2 photos" in repr(found)
    page = found._repr_html_()
    assert "<td>60.0</td>" in page
    assert "[" not in page, "no raw arrays"


class Series:
    """What pandas.Series has."""

    ndim = 1

    def __init__(self, index, values):
        self.index, self._values = index, values

    def items(self):
        return zip(self.index, self._values, strict=True)

    def __iter__(self):
        return iter(self._values)


def test_a_series_keeps_its_index():
    expected = capscore.score(SAID, TOLD, metrics=OVERLAP)
    captions = Series(np.array([2, 1]), [SAID["2"], SAID["1"]])
    assert capscore.score(captions, TOLD, metrics=OVERLAP) == expected
    assert capscore.score(captions, Series(["1", "2"], TOLD.values()), metrics=OVERLAP) == expected
    with pytest.raises(UserError, match="twice"):
        capscore.score(Series([1, 1], ["a", "b"]), TOLD)


@pytest.mark.parametrize(
    "given", [3, None, {"a", "b"}, np.array([["a"], ["b"]])], ids=["number", "none", "set", "matrix"]
)
def test_what_holds_no_captions_in_order_is_refused(given):
    for arguments in ((given, TOLD), (SAID, given)):
        with pytest.raises(UserError, match="must be a mapping by id, a list"):
            capscore.score(*arguments)


def test_scores_can_be_pickled():
    found = scoring.measure(SAID, TOLD)
    assert pickle.loads(pickle.dumps(found)).corpus == found.corpus


def test_files_of_every_kind_say_the_same(tmp_path):
    expected = capscore.score(SAID, TOLD, metrics=OVERLAP)
    captions = {
        "captions.json": SAID,
        "results.json": [{"image_id": int(id), "caption": text} for id, text in SAID.items()],
    }
    references = {
        "references.json": TOLD,
        "annotations.json": {
            "images": [{"id": int(id), "file_name": f"{id}.jpg"} for id in TOLD],
            "annotations": [{"image_id": int(i), "id": 7, "caption": t} for i, texts in TOLD.items() for t in texts],
        },
        "data.json": {"dataset": "d", "images": [{"id": int(i), "captions": texts} for i, texts in TOLD.items()]},
        "clips.json": {"dataset": "d", "videos": [{"id": i, "captions": texts} for i, texts in TOLD.items()]},
    }
    for name, content in (captions | references).items():
        (tmp_path / name).write_text(json.dumps(content))
        with gzip.open(tmp_path / f"{name}.gz", "wt") as file:
            json.dump(content, file)
    for one in captions:
        for other in references:
            for end in ("", ".gz"):
                assert capscore.score(tmp_path / (one + end), tmp_path / (other + end), metrics=OVERLAP) == expected


def test_what_caption_wrote_is_matched_by_id_or_by_file(tmp_path):
    (tmp_path / "photos").mkdir()
    data = [{"id": i, "file": f"photos/{i}.jpg", "split": "test", "captions": texts} for i, texts in TOLD.items()]
    other = {"id": "3", "file": "photos/3.jpg", "split": "train", "captions": ["a train"]}
    (tmp_path / "data.json").write_text(json.dumps({"dataset": "d", "images": [other, *data]}))
    by_file = [{"file": str(tmp_path / "photos" / f"{i}.jpg"), "caption": text} for i, text in SAID.items()]
    by_id = [{"file": "elsewhere.jpg", "id": i, "caption": text, "logprob": -3.0} for i, text in SAID.items()]
    by_name = [{"file": f"copy/of/{i}.jpg", "caption": text} for i, text in SAID.items()]
    expected = capscore.score(SAID, TOLD, metrics=OVERLAP)
    for rows in (by_file, by_id, by_name):
        (tmp_path / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = scoring.measure(tmp_path / "captions.jsonl", tmp_path / "data.json", metrics=OVERLAP, split="test")
        assert found.corpus == expected


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
    expected = capscore.score(SAID, TOLD, metrics=OVERLAP)
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    assert capscore.score(tmp_path / name, TOLD, metrics=OVERLAP) == expected
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    assert capscore.score(tmp_path / f"{name}.gz", TOLD, metrics=OVERLAP) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.csv", None, "there is no such file"),
        ("c.csv", "caption\na dog\n", 'entry 1 has no "image_id"'),
        ("c.csv", "image_id,text\n1,a dog\n", '"caption" is missing'),
        ("c.jsonl", '{"image_id": 1, "caption": "a"}\n{"image_id": 2, "cap', "line 2"),
        ("c.jsonl", '{"image_id": 1, "caption": "a", "caption": "b"}\n', "occurs twice"),
    ],
)
def test_wrong_tables_and_lines_are_named(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError) as error:
        capscore.score(tmp_path / name, TOLD, metrics="BLEU")
    assert str(tmp_path / name) in str(error.value)
    assert message in str(error.value)


def test_the_caption_that_is_judged_does_not_depend_on_its_siblings():
    told = {"1": ["the letter p"], "2": ["a dog"]}
    alone = scoring.measure({"1": "the letter P.", "2": "A dog"}, told, metrics="BLEU-1")
    beside = scoring.measure({"1": ["the letter P.", "dogs"], "2": ["A dog"]}, told, metrics="BLEU-1")
    assert beside.corpus == alone.corpus


def test_a_photo_that_could_not_be_captioned_is_a_missing_one(tmp_path):
    rows = [{"id": "1", "file": "1.jpg", "caption": SAID["1"]}, {"id": "2", "file": "2.jpg", "error": "broken"}]
    (tmp_path / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=r"1 photo has no caption in .*captions.jsonl: '2'\. To score the others"):
        capscore.score(tmp_path / "captions.jsonl", TOLD, metrics="BLEU")


def test_missing_and_extra_ids_are_listed():
    many = {str(i): ["a"] for i in range(100, 125)}
    with pytest.raises(UserError, match=r"25 photos have no caption in the captions: '100', .* and 15 more"):
        capscore.score(SAID, TOLD | many)
    with pytest.raises(UserError, match="1 photo has no reference in the references: '9'"):
        capscore.score(SAID | {"9": "a"}, TOLD)
    with pytest.raises(UserError, match="1 photo has no reference in the references: '2'"):
        capscore.score(SAID, TOLD | {"2": []})
    found = scoring.measure(SAID | {"9": "a"}, TOLD | many, metrics="BLEU", allow_missing=True)
    assert found.ids == ["1", "2"]
    assert len(found.problems) == 2
    with pytest.raises(UserError, match="no photo in common"):
        scoring.measure({"9": "a"}, TOLD, allow_missing=True)


def test_what_is_left_out_has_no_part_in_document_frequencies():
    some = scoring.measure(SAID, TOLD | {"3": ["a dog"]}, metrics="CIDEr-D", allow_missing=True)
    assert some.corpus == capscore.score(SAID, TOLD, metrics="CIDEr-D")


@pytest.mark.parametrize(
    ("captions", "references", "message"),
    [
        ({"1": 5}, TOLD, "the captions: '1': must be a caption or a list of captions, not a number"),
        ({"1": [None]}, TOLD, "the captions: '1': a caption must be a string, not null"),
        (SAID, {"1": ["a", {"x": 1}]}, "the references: '1': \"caption\" is missing"),
        (SAID, {"1": [{"caption": {"x": 1}}]}, "the references: '1': a caption must be a string, not an object"),
        ({1: "a", "1": "b"}, TOLD, "'1' occurs twice, as a number and as a string"),
        (
            [{"image_id": 1, "caption": "a"}, {"image_id": 1, "caption": "b"}],
            TOLD,
            "'1' occurs twice, with different",
        ),
        ([{"image_id": 1}], TOLD, "'1': \"caption\" is missing"),
        ([{"caption": "a"}], TOLD, 'entry 1 has no "image_id"'),
        ([{"image_id": 1.5, "caption": "a"}], TOLD, "an id must be a whole number or a string, not 1.5"),
        ([{"image_id": 1, "caption": "a"}, 7], TOLD, "must be a caption or a list of captions, not"),
    ],
)
def test_wrong_content_is_named(captions, references, message):
    with pytest.raises(UserError) as error:
        capscore.score(captions, references, metrics="BLEU")
    assert message in str(error.value)


def test_the_same_row_twice_counts_once():
    rows = [{"image_id": id, "caption": text} for id, text in SAID.items()]
    assert capscore.score(rows + rows[:1], TOLD, metrics="BLEU") == capscore.score(SAID, TOLD, metrics="BLEU")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"1": "a", "2": "b', "the JSON breaks off"),
        ('{"1": "a", "1": "b"}', "'1' occurs twice, with different captions"),
        ("[1, 2]", "entry 1 must be an object"),
        ("7", "must be an object of ids and captions, not a number"),
        ("", "the file is empty"),
        ('{"dataset": "d", "images": [{"id": 1, "captions": ["a"]}]}', "holds references, not captions"),
    ],
)
def test_wrong_caption_files_are_named(tmp_path, content, message):
    path = tmp_path / "captions.json"
    path.write_text(content)
    with pytest.raises(UserError) as error:
        capscore.score(path, TOLD, metrics="BLEU")
    assert str(path) in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"image_id": 1, "caption": "a"}], "is it the first file"),
        ({"images": [{"id": 1, "captions": ["a"]}, {"id": 1, "captions": ["a"]}]}, "given to an earlier record"),
        ({"images": [{"captions": ["a"]}]}, '"id" must be'),
        ({"images": [{"id": True, "captions": ["a"]}]}, '"id" must be'),
        ({"images": [{"id": 1, "split": ["test"], "captions": ["a"]}]}, '"split" must be a string, not a list'),
        ({"images": [{"imgid": 1, "filename": "a.jpg", "sentences": []}]}, "tellapart prepare karpathy"),
        ({"annotations": [{"image_id": None, "id": 5, "caption": "a"}]}, "an id must be a whole number or a string"),
        ({"images": [{"id": 3, "captions": [4]}]}, "'3': a caption must be a string, not a number"),
        ({"annotations": [{"image_id": 3, "caption": None}]}, "'3': a caption must be a string, not null"),
    ],
)
def test_wrong_reference_files_are_named(tmp_path, content, message):
    path = tmp_path / "references.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError) as error:
        capscore.score(SAID, path, metrics="BLEU")
    assert str(path) in str(error.value)
    assert message in str(error.value)


def test_a_split_that_is_not_there_is_named_with_those_that_are(tmp_path):
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"images": [{"id": 1, "split": "test", "captions": ["a"]}]}))
    with pytest.raises(UserError, match="has no split 'val'; it has 'test'"):
        scoring.measure(SAID, path, split="val")
    path.write_text(json.dumps(TOLD))
    with pytest.raises(UserError, match="only a data file has splits"):
        scoring.measure(SAID, path, split="val")


HOSTILE = ["", "   ", "\x00\x07\x1b[31m", "🐕🐈", "…", '"', "\ud800", "a\r\nb\u2028c", "word " * 10_000, "x" * 100_000]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_was_said_or_told_has_a_defined_score(text):
    for captions, references in (
        ({"1": text, "2": "a dog"}, TOLD),
        (SAID, {"1": [text], "2": TOLD["2"]}),
        ({"1": text, "2": text}, {"1": [text], "2": [text, ""]}),
    ):
        found = scoring.measure(captions, references, metrics=[n for n in FAST if n not in ("mBLEU", "self-CIDEr")])
        assert all(math.isfinite(value) for value in found.corpus.values())
        assert all(math.isfinite(value) for each in found.per_photo().values() for value in each.values())


def test_metrics_are_chosen_by_name_in_any_case():
    assert list(capscore.score(SAID, TOLD, metrics="cider-d, bleu-4")) == ["CIDEr-D", "BLEU-4"]
    assert list(capscore.score(SAID, TOLD, metrics=["BLEU"])) == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4"]
    with pytest.raises(UserError, match="there is no metric 'BLUE'; there are BLEU, METEOR"):
        capscore.score(SAID, TOLD, metrics="BLUE")


def test_by_default_nothing_is_said_of_diversity_where_there_is_one_caption_each():
    found = scoring.measure(SAID, TOLD)
    assert not {"mBLEU", "self-CIDEr", "SPICE"} & set(found.skipped)
    assert {"BLEU-4", "Prec", "CIDErBtw"} <= set(found.corpus)


def test_all_runs_what_can_run_and_says_what_could_not():
    found = scoring.measure(SAID, TOLD, metrics="all")
    assert "several captions of one photo" in found.skipped["mBLEU"]
    assert {"BLEU-1", "CIDEr-D", "ROUGE-L", "SGF", "Prec"} <= set(found.corpus)
    assert set(found.corpus) == set(found.signature)
    with pytest.raises(UserError, match="mBLEU cannot be computed: it compares several captions"):
        capscore.score(SAID, TOLD, metrics="mBLEU")


def test_without_its_data_meteor_is_left_out_of_the_default_and_an_error_by_name(monkeypatch):
    monkeypatch.setattr(system, "package", lambda name: None)
    assert "pip install 'capscore[meteor]'" in scoring.measure(SAID, TOLD).skipped["METEOR"]
    with pytest.raises(UserError, match="METEOR cannot be computed: METEOR needs"):
        capscore.score(SAID, TOLD, metrics="METEOR")


def test_several_captions_of_a_photo_are_judged_by_the_first_and_for_diversity_together():
    several = {"1": [SAID["1"], "a dog", "grass"], "2": [SAID["2"], "cats"]}
    found = capscore.score(several, TOLD, metrics=f"{OVERLAP},mBLEU,self-CIDEr")
    assert {n: v for n, v in found.items() if n in capscore.score(SAID, TOLD, metrics=OVERLAP)} == capscore.score(
        SAID, TOLD, metrics=OVERLAP
    )
    assert 0 < found["mBLEU-1"] < 1
    assert 0 < found["self-CIDEr"] <= 1


def test_signatures_say_what_a_figure_depends_on():
    version = capscore.__version__
    found = scoring.measure(SAID, {**TOLD, "1": TOLD["1"][:1]}, metrics="CIDEr-D,BLEU-4,CIDErBtw", df="coco")
    assert found.signature == {
        "CIDEr-D": f"CIDEr-D|df:coco|tok:ptb|refs:1-2|v:{version}",
        "BLEU-4": f"BLEU-4|tok:ptb|refs:1-2|v:{version}",
        "CIDErBtw": f"CIDErBtw|look-alikes:references-5|df:coco|tok:ptb|refs:1-2|v:{version}",
    }


def test_a_single_photo_is_scored_by_the_bundled_frequencies():
    one = {"1": "A dog runs on the grass."}
    told = {"1": ["a dog runs on the grass"]}
    assert capscore.score(one, told, metrics="CIDEr-D") == {"CIDEr-D": 0.0}
    assert capscore.score(one, told, metrics="CIDEr-D", df="coco") == pytest.approx({"CIDEr-D": 10})


def test_frequencies_of_a_file_of_references(tmp_path):
    path = tmp_path / "more.json"
    path.write_text(json.dumps(TOLD | {"3": ["a bus"], "4": ["a dog"]}))
    two = scoring.measure(SAID, TOLD, metrics="CIDEr-D", df=path)
    four = scoring.measure(SAID | {"3": "x", "4": "x"}, TOLD | {"3": ["a bus"], "4": ["a dog"]}, metrics="CIDEr-D")
    assert two.per_photo()["1"] == pytest.approx(four.per_photo()["1"])
    assert two.signature["CIDEr-D"].startswith("CIDEr-D|df:more.json|")


def test_references_of_several_models_are_tokenised_once(monkeypatch):
    asked = []
    monkeypatch.setattr(scoring, "numbered", lambda texts, words: asked.append(texts) or numbered(texts, words))
    scoring.compare([SAID, SAID, SAID], TOLD, metrics=OVERLAP)
    assert asked.count([text for texts in TOLD.values() for text in texts]) == 1
    assert asked.count(list(SAID.values())) == 3


words = st.lists(st.sampled_from(["dog", "cat", "red", "runs", "sofa", "grass"]), min_size=1, max_size=8).map(" ".join)
worlds = st.lists(st.tuples(words, st.lists(words, min_size=1, max_size=3)), min_size=2, max_size=5)


@given(worlds, st.randoms(use_true_random=False))
def test_the_order_of_photos_and_references_changes_no_measure(world, chance):
    before = scoring.measure(
        {i: said for i, (said, _) in enumerate(world)},
        {i: told for i, (_, told) in enumerate(world)},
        metrics=ORDERLESS,
    )
    order = chance.sample(range(len(world)), len(world))
    after = scoring.measure(
        {i: world[i][0] for i in order},
        {i: chance.sample(world[i][1], len(world[i][1])) for i in order},
        metrics=ORDERLESS,
    )
    assert after.corpus == pytest.approx(before.corpus, abs=1e-9)
    each = before.per_photo()
    assert all(scores == pytest.approx(each[id], abs=1e-9) for id, scores in after.per_photo().items())


# of photos equally alike, the earlier is the look-alike: these two may depend on the order of photos
ORDERLESS = [n for n in FAST if n not in ("mBLEU", "self-CIDEr", "CIDErBtw", "DisWordRate")] + ["SGF"]


@given(st.lists(st.sampled_from("abcdefgh"), min_size=4, max_size=9))
def test_a_caption_that_equals_its_only_reference_scores_the_maximum(letters):
    said = " ".join(f"w{letter}" for letter in letters)
    found = scoring.measure({1: said, 2: "zz"}, {1: [said], 2: ["yy"]}, metrics=OVERLAP).per_photo()["1"]
    most = {"ROUGE-L": 1, "CIDEr-D": 10, "CIDEr": 10, **{f"BLEU-{n}": 1 for n in range(1, 5)}}
    assert found == pytest.approx(most, abs=1e-6)


@given(worlds)
def test_an_unrelated_photo_changes_nothing_but_cider_and_that_through_frequencies(world):
    captions = {i: said for i, (said, _) in enumerate(world)}
    references = {i: told for i, (_, told) in enumerate(world)}
    before = scoring.measure(captions, references, metrics="BLEU,ROUGE-L,Prec").per_photo()
    after = scoring.measure(
        captions | {"x": "qi za"}, references | {"x": ["qi xu"]}, metrics="BLEU,ROUGE-L,Prec"
    ).per_photo()
    assert all(after[id] == pytest.approx(scores) for id, scores in before.items())
