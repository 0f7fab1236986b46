"""What people decided, out of a captions file or a study; and a captioner that follows simulated people."""

import json
import random

import numpy as np
import pytest

import tellapart as library
from capscore.errors import UserError
from support.holiday import holiday
from tellapart.desk import feedback, resume
from tellapart.desk.captions_file import CaptionsFile, reviewed
from tellapart.rewards.preference import Decision
from tellapart.study.folder import Answer, Answers, Study, Trial, save

WORDS = ["a", "man", "riding", "wave", "red", "bus", "street", "cat", "on", "the", "bed"]  # those of `small_model`


def write(path, *decisions):
    """Rows with reviews, as a person who edits, approves and rejects leaves them."""
    rows = []
    for number, (caption, *review) in enumerate(decisions):
        row = resume.new_row({"file": f"{number}.jpg", "caption": caption}, [], "0" * 64, "")
        rows.append(reviewed(row, *review))
    CaptionsFile(path).keep(rows)
    return path


@pytest.mark.parametrize("name", ["f.jsonl", "f.csv"])
def test_reviews_of_a_captions_file_are_decisions(tmp_path, name):
    path = write(
        tmp_path / name,
        *[("a dog", "approved")] * 17,
        ("a cat", "rejected"),
        ("a bird", "edited", "an owl"),
        ("a bird", "edited", "a bird"),  # written again: approved
        ("nobody looked at it", None),
    )
    by_hand = {"file": "x.jpg", "caption": "by hand", "edited": True}
    file = CaptionsFile(path)
    file.keep([*file.rows, by_hand, {"file": "y.jpg", "error": "broken"}])
    decisions = feedback.read(path)
    assert decisions[:17] == [Decision(f"{i}.jpg", "a dog") for i in range(17)]
    assert decisions[17:19] == [Decision("17.jpg", "", "a cat"), Decision("18.jpg", "an owl", "a bird")]
    assert decisions[19:] == [Decision("19.jpg", "a bird"), Decision("x.jpg", "by hand")]


def test_too_few_decisions_and_other_files_are_refused(tmp_path):
    path = write(tmp_path / "f.jsonl", *[("a dog", "approved")] * 19, ("a cat", None))
    (tmp_path / "notes.csv").write_text("my,notes\n1,2\n")
    for file, sentence in (
        (path, r"--feedback .*f\.jsonl: has 19 captions that a person has .*; 20 are needed"),
        (tmp_path / "none.jsonl", r"--feedback .*none\.jsonl: there is no such file"),
        (tmp_path / "notes.csv", r"--feedback .*notes\.csv: exists and is no file of captions"),
        (tmp_path, "this is no study folder"),
    ):
        with pytest.raises(UserError, match=sentence):
            feedback.read(file)


def study(folder, kind, trials, responses):
    save(Study(kind, "t", "c", "x", ["A", "B"], [trials], {p: p for t in trials for p in t.photos}), folder, [])
    answers = Answers(folder)
    person = answers.join(1)
    times = [person.started + 5 * count for count in range(1, len(trials) + 1)]
    answered = zip(trials, responses, times, strict=True)
    answers.add(*(Answer(person.id, trial.id, response, 5000.0, time) for trial, response, time in answered))
    return folder


def test_choices_of_a_study_are_decisions(tmp_path):
    trials = [Trial(f"{i:02}", f"p{i}", ("A",), (f"caption {i}",), (f"p{i}", "q")) for i in range(20)]
    found = feedback.read(study(tmp_path / "choose", "choose", trials, ["q", *(f"p{i}" for i in range(1, 20))]))
    assert found[0] == Decision("p0", "", "caption 0")
    assert found[1:] == [Decision(f"p{i}", f"caption {i}") for i in range(1, 20)]


def test_comparisons_of_a_study_are_pairs_and_ties_are_nothing(tmp_path):
    trials = [Trial(str(i), f"p{i}", ("A", "B"), (f"one {i}", f"two {i}"), (f"p{i}",)) for i in range(12)]
    trials.append(Trial("9", "p9", ("first",), ("check", "check"), ("p9",), catch=True))
    trials[9] = Trial("99", "p9", ("A", "B"), ("one 9", "two 9"), ("p9",))
    both = {"accuracy": "first", "distinctiveness": "first"}
    responses = [{"accuracy": "second", "distinctiveness": "tie"}, *[both] * 12]
    found = feedback.read(study(tmp_path / "compare", "compare", trials, responses))
    assert len(found) == 1 + 2 * 11  # the attention check is none
    assert found.count(Decision("p0", "two 0", "one 0")) == 1
    assert found.count(Decision("p3", "one 3", "two 3")) == 2


@pytest.fixture
def folder(tmp_path):
    return holiday(tmp_path / "holiday", 40)


def edits(draw, count):
    """People who rewrite a caption so that it names the colour, if it does not."""
    for _ in range(count):
        words = [word for word in draw.choices(WORDS, k=draw.randint(4, 9)) if word != "red"]
        named = [*words]
        named.insert(draw.randrange(len(words) + 1), "red")
        yield " ".join(words), " ".join(named)


@pytest.mark.slow
def test_a_captioner_follows_what_simulated_people_prefer_and_not_shuffled_preferences(
    small_model, small_retriever, folder, tmp_path, own_cache
):
    settings = {
        "max_steps": 25, "objective.policy.samples": 4, "objective.policy.kl": 0.0, "optim.lr": 2e-3,
        "objective.rewards.weights": {"log_probability": 0.5}, "log_steps": 5,
    }  # fmt: skip
    draw = random.Random(0)
    liked = [(before, "edited", after) for before, after in edits(draw, 80)]
    noise = [(a, "edited", b) if draw.random() < 0.5 else (b, "edited", a) for a, _, b in liked]
    shares = {}
    for name, decisions in (("liked", liked), ("noise", noise)):
        file = write(tmp_path / f"{name}.jsonl", *decisions)
        models = {"model": small_model, "retriever": small_retriever}
        options = {"out": tmp_path / name, "overrides": settings, "feedback": feedback.read(file)}
        adapted = library.adapt(folder, **models, **options)
        (grid,) = adapted.evaluation.grids
        for row in ("before", "after"):
            captions = [grid.rows[row].captions.of_photo[photo][0] for photo in grid.measured]
            shares[name, row] = np.mean(["red" in caption.split() for caption in captions])
        known = json.loads((tmp_path / name / "adapt.json").read_text())
        assert known["feedback"] == adapted.feedback
        assert ("is not used" in adapted.feedback) == (name == "noise")
        assert ("Preference" in adapted.scores["after"]) == (name == "liked")
    assert shares["liked", "before"] == shares["noise", "before"] < 0.6
    assert shares["liked", "after"] > shares["liked", "before"] + 0.3
    assert shares["liked", "after"] > shares["noise", "after"] + 0.3
