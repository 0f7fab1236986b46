"""Runs side by side: what their recipes and logs say."""

import json
from itertools import count

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

from capscore import scoring
from capscore.errors import UserError
from tellapart.data.examples import Example
from tellapart.data.tokenizers import WordTokenizer
from tellapart.evaluation import compare
from tellapart.evaluation.local_reward import LocalReward
from tellapart.evaluation.models import Split
from tellapart.evaluation.table import text_table


def make(folder, lines, recipe=None, position=None):
    """A run folder as `tellapart train` leaves it, but for the weights."""
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe or {}))
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if position:
        save_file({"x": torch.zeros(1)}, folder / "last.safetensors", metadata={"position": json.dumps(position)})
    return str(folder)


LINES = [
    {"step": 1, "loss": 3.0, "words": 7.0, "epoch": 0.1},
    {"step": 1, "val/loss": 2.5, "val/CIDEr-D": 0.5, "val/length": 9.0},
    {"step": 2, "loss": 2.0, "reward/gd": 0.25, "val/loss": 2.75, "val/CIDEr-D": 0.4, "val/length": 8.5},
]


def test_logs_become_curves(tmp_path):
    (run,) = compare.read_runs([make(tmp_path / "a", LINES, position={"step": 2, "seconds": 90.0, "finished": "done"})])
    assert run.validations == {
        "loss": [(1, 2.5), (2, 2.75)],
        "CIDEr-D": [(1, 0.5), (2, 0.4)],
        "length": [(1, 9), (2, 8.5)],
    }
    assert run.training == {"loss": [(1, 3.0), (2, 2.0)], "reward/gd": [(2, 0.25)]}
    assert (run.steps, run.seconds, run.state) == (2, 90.0, "done")


def test_facts_have_the_last_and_the_best_of_each_validation(tmp_path):
    other = {"objective": {"name": "policy_gradient", "rewards": {"weights": {"cider_d": 1.0, "gd": 10.0}}}}
    a = make(tmp_path / "a", LINES, position={"step": 2, "seconds": 90.0, "finished": ""})
    b = make(tmp_path / "b", [{"step": 5, "val/Rep": 0.25}, {"step": 7, "val/Rep": 0.5}], other)
    table = compare.facts(compare.read_runs([a, b]))
    assert table["rewards"] == ["", "cider_d + 10 gd"]
    assert (table["minutes"], table["steps"]) == (["1.5", ""], ["2", "7"])
    assert (table["loss"], table["loss, best"]) == (["2.750", ""], ["2.500 at 1", ""])
    assert (table["CIDEr-D"], table["CIDEr-D, best"]) == (["40.0", ""], ["50.0 at 1", ""])
    assert (table["Rep"], table["Rep, best"]) == (["", "50.0"], ["", "25.0 at 5"])
    assert table["length"] == ["8.5", ""]
    assert "length, best" not in table


def test_only_settings_that_differ_are_told_and_old_recipes_have_the_defaults(tmp_path):
    a = make(tmp_path / "a", LINES, {"batch_size": 16, "model": {"width": 64}})
    b = make(tmp_path / "b", LINES, {"seed": 3, "objective": {"rewards": {"weights": {"gd": 2.0}}}})
    assert compare.differences(compare.read_runs([a, b])) == {
        "model.width": ["64", "-"],
        "objective.rewards.weights.cider_d": ["1.0", "-"],
        "objective.rewards.weights.gd": ["-", "2.0"],
        "seed": ["0", "3"],
    }


def test_validations_on_other_photos_are_not_compared_in_silence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a = make(tmp_path / "a", LINES, {"data": {"files": ["d.json"]}})
    same = make(tmp_path / "b", LINES, {"data": {"files": [str(tmp_path / "d.json")]}, "seed": 3})
    fewer = make(tmp_path / "c", LINES, {"data": {"files": ["d.json"]}, "validation": {"photos": 250}})
    assert compare.caution(compare.read_runs([a, same])) == ""
    assert "do not compare" in compare.caution(compare.read_runs([a, same, fewer]))


def test_a_terminal_gets_as_many_columns_as_it_takes():
    table = {"steps": ["1", "22", "333"], "x": ["a" * 60, "b", "c"]}
    text = text_table(["one", "two", "three"], table, 60, most=44)
    assert [line.split() for line in text.splitlines()] == [
        ["one", "two"],
        ["steps", "1", "22"],
        ["x", "..." + "a" * 41, "b"],
        [],
        ["three"],
        ["steps", "333"],
        ["x", "c"],
    ]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "recipe.yaml").unlink(), "is not a run folder"),
        (lambda f: (f / "log.jsonl").unlink(), "there is no log.jsonl"),
        (lambda f: (f / "log.jsonl").write_text(""), "has no line yet"),
        (lambda f: (f / "log.jsonl").write_text('{"step": 1}\n{"step"\n'), "log.jsonl: line 2 is damaged"),
        (lambda f: (f / "log.jsonl").write_text('{"step": 1, "loss": "low"}\n'), "log.jsonl: line 1 is damaged"),
        (lambda f: (f / "log.jsonl").write_text("[]\n"), "log.jsonl: line 1 is damaged"),
        (lambda f: (f / "recipe.yaml").write_text("a: ["), "is not YAML"),
        (lambda f: (f / "recipe.yaml").write_text("[]"), "a recipe must be an object, not a list"),
        (lambda f: (f / "recipe.yaml").write_text("optim: {lr: fast}"), "optim.lr must be a number, not "),
        (
            lambda f: (f / "recipe.yaml").write_text("objective: {rewards: {weights: {gd: much}}}"),
            "objective.rewards.weights.gd must be a number, not 'much'",
        ),
        (lambda f: (f / "last.safetensors").write_bytes(b"x"), "last.safetensors is not a safetensors file"),
    ],
)
def test_what_is_wrong_with_a_run_is_said_in_a_sentence(tmp_path, spoil, message):
    folder = make(tmp_path / "a", LINES)
    spoil(tmp_path / "a")
    with pytest.raises(UserError, match=message):
        compare.read_runs([folder])


def test_a_figure_that_is_no_number_is_left_out_of_a_curve(tmp_path):
    (run,) = compare.read_runs([make(tmp_path / "a", [{"step": 1, "loss": float("nan")}, {"step": 2, "loss": 1.0}])])
    assert run.training["loss"] == [(2, 1.0)]


# Evaluations


def evaluation(folder, scores, given):
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({"d": scores}))
    models = {name: {"given": path} for name, path in given.items()}
    (folder / "details.json").write_text(json.dumps({"d": {"models": models}}))
    return folder


def test_recall_against_batch_size_is_the_mean_of_runs_with_one_objective(tmp_path):
    def sized(name, size, terms):
        recipe = {"batch_size": size, "objective": {"name": "policy_gradient", "rewards": {"weights": terms}}}
        return make(tmp_path / name, LINES, recipe)

    folders = [
        sized("a", 8, {"gd": 1.0}),
        sized("b", 8, {"gd": 1.0}),
        sized("c", 16, {"gd": 1.0}),
        sized("d", 8, {"ld": 1.0}),
    ]
    trained = compare.read_runs(folders)
    scores = {"a": 0.25, "b": 0.75, "c": 0.625, "d": 0.125}
    found = compare.read_evaluation(
        evaluation(
            tmp_path / "e",
            {name: {"self R@1": value, "CIDEr-D": 1.0} for name, value in scores.items()},
            dict(zip("abcd", folders, strict=True)),
        ),
        trained,
    )
    assert compare.by_batch_size(trained, [found]) == {("d", "self R@1"): {"gd": [(8.0, 50.0), (16.0, 62.5)]}}


def test_an_evaluation_of_others_is_refused(tmp_path):
    trained = compare.read_runs([make(tmp_path / "a", LINES)])
    with pytest.raises(UserError, match="none of the runs was evaluated there; it has plain"):
        compare.read_evaluation(evaluation(tmp_path / "e", {"plain": {}}, {"plain": "plain"}), trained)
    (tmp_path / "e" / "details.json").write_text("{}")
    with pytest.raises(UserError, match="not those of one evaluation"):
        compare.read_evaluation(tmp_path / "e", trained)


# Captions

TOLD = [
    ("a red bus on a street", "the red bus waits"),
    ("a cat on a bed", "a black cat sleeps"),
    ("a man on a wave", "the man rides a wave"),
    ("two dogs in the snow", "dogs run in snow"),
]


def photos(tmp_path):
    return [Example(i, tmp_path / f"{i}.png", "test", captions) for i, captions in enumerate(TOLD)]


def test_changes_are_ordered_by_cider_d(tmp_path):
    split = Split("d", "d.json", photos(tmp_path), [])
    before = ["a bus", "a cat on a bed", "a dog", "dogs run in snow"]
    after = ["a red bus on a street", "a cow on a bed", "a dog", "dogs run in the snow"]
    said = {
        name: {str(photo.file): text for photo, text in zip(split.photos, texts, strict=True)}
        for name, texts in (("before", before), ("after", after))
    }
    found = compare.compare_captions(split, split.photos, said)
    for name, texts in (("before", before), ("after", after)):  # the scores that `tellapart score` gives
        by_id = scoring.measure(
            dict(zip("0123", texts, strict=True)), dict(zip("0123", map(list, TOLD), strict=True)), metrics="CIDEr-D"
        )
        np.testing.assert_allclose(found.scores[name], by_id.statistics[0].rows[:, 0], rtol=1e-9)
    gains = found.scores["after"] - found.scores["before"]
    assert found.improved(4) == [photo for photo in np.argsort(-gains).tolist() if gains[photo] > 0]
    assert found.improved(4)[0] == 0
    assert found.failed(1) == [1]
    assert 2 not in [*found.improved(4), *found.failed(4)]


def test_photos_that_a_run_has_no_caption_of_are_not_compared(tmp_path):
    split = Split("d", "d.json", photos(tmp_path), [])
    files = [str(photo.file) for photo in split.photos]
    found = compare.compare_captions(
        split, split.photos, {"a": dict.fromkeys(files, "a cat"), "b": {files[1]: "a dog"}}
    )
    assert [photo.id for photo in found.photos] == [1]
    with pytest.raises(UserError, match="no photo that all runs have a caption of"):
        compare.compare_captions(split, split.photos, {"a": {files[0]: "a cat"}, "b": {files[1]: "a dog"}})


def test_photos_are_drawn_by_chance_but_always_the_same(tmp_path):
    bare = Example(9, tmp_path / "9.png", "test", ())
    split = Split("d", "d.json", [*photos(tmp_path), bare], [])
    two = compare.drawn_photos(split, 2)
    assert len(two.photos) == 2
    assert two == compare.drawn_photos(split, 2)
    assert bare not in compare.drawn_photos(split, 9).photos
    with pytest.raises(UserError, match="no photo of the split has captions"):
        compare.drawn_photos(Split("d", "d.json", [bare], []), 2)


# The local discriminative reward


@pytest.fixture
def local(tmp_path):
    """Rewards of a run that was trained on four photos."""
    records = [{"id": i, "file": f"{i}.png", "split": "train", "captions": told} for i, told in enumerate(TOLD)]
    (tmp_path / "d.json").write_text(json.dumps({"dataset": "d", "images": records}))
    numbers = count()

    def make_local(**settings):
        recipe = {
            "data": {"files": [str(tmp_path / "d.json")]},
            "objective": {
                "name": "policy_gradient",
                "rewards": {"weights": {"ld": 1.0}, "count_end": False, "ld": settings},
            },
        }
        folder = make(tmp_path / f"run{next(numbers)}", LINES, recipe)
        WordTokenizer.build([text for told in TOLD for text in told], 1).save(tmp_path / folder)
        return LocalReward.of_run(compare.read_runs([folder])[0])

    return make_local


def test_weights_of_words_are_those_of_the_formula(local):
    """log(4 photos / photos that have the word), times how often the reference says it."""
    words = local().weights(bins=200)[0]
    weigh = {"cat": np.log(4), "the": np.log(4 / 3), "on": np.log(4 / 3), "a": 2 * np.log(4 / 3)}
    known = {text: weight for weight, text in words.examples}
    for text in weigh.keys() & known.keys():
        assert known[text] == pytest.approx(weigh[text])
    assert known
    assert words.shares.sum() == pytest.approx(1)
    told = [text.split() for captions in TOLD for text in captions]
    # only a, the and on are said of more than one photo
    rare = sum(word not in ("a", "the", "on") for text in told for word in text) / sum(map(len, told))
    heavy = words.shares[words.edges[1:] >= np.log(4) - 0.05].sum()
    assert heavy == pytest.approx(rare)


def test_rare_words_that_references_have_earn_more_than_the_sentence(local):
    (earned,) = local(threshold=0.5, word_threshold=0.5).earned(["a red bus waits on a wave"], [TOLD[0]])
    assert earned.words == ["a", "red", "bus", "waits", "on", "a", "wave"]
    bonus = dict(zip(earned.words, np.array(earned.each) - earned.sentence, strict=True))
    assert bonus["red"] > 0
    assert bonus["bus"] > 0
    assert bonus["wave"] == bonus["on"] == pytest.approx(0)
    assert earned.most == pytest.approx(max(bonus.values()))


def test_thresholds_come_from_the_references_where_the_recipe_says_so(local):
    config = local(word_quantile=0.999, ngram_quantile=0.999).config
    assert config.word_threshold == pytest.approx(max(np.log(4), 2 * np.log(4 / 3)))
    assert local(word_threshold=0.7).config.word_threshold == 0.7


def test_what_needs_look_alikes_or_data_that_are_gone_is_said(local, tmp_path):
    with pytest.raises(UserError, match="look-alikes"):
        local(qualify="contrast")
    (tmp_path / "d.json").unlink()
    with pytest.raises(UserError, match=r"d\.json: there is no such file"):
        local()
