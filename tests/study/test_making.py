"""From caption files to what people see: balanced, seeded, recorded."""

import json
from collections import Counter

import pytest
from PIL import Image

from capscore.errors import UserError
from study.studies import PHOTOS, study
from tellapart.study import folder as folders


def asked(made):
    return [(number, trial) for number, session in enumerate(made.sessions) for trial in session if not trial.catch]


@pytest.mark.parametrize(("kind", "photos"), [("choose", 10), ("order", 21), ("compare", 1)])
def test_every_caption_gets_its_answers_and_nobody_sees_a_photo_twice(tmp_path, kind, photos):
    made = study(tmp_path, kind, sets=12, per_person=5, answers=2, catch=2)
    trials = asked(made)
    shown = Counter((trial.set, tuple(sorted(trial.models))) for _, trial in trials)
    assert set(shown.values()) == {2}
    assert len(shown) == 12 * (1 if kind == "compare" else 2)
    assert max(Counter((person, trial.set) for person, trial in trials).values()) == 1
    for person, session in enumerate(made.sessions):
        own = Counter(trial.models for number, trial in trials if number == person)
        assert max(own.values()) - min(own.values()) <= 1
        assert sum(trial.catch for trial in session) == 2
        assert not session[0].catch
    assert all(len(trial.photos) == photos and trial.photos.count(trial.set) == 1 for _, trial in trials)
    assert all(trial.captions[0].endswith(trial.models[0]) for _, trial in trials)


def test_the_distractors_are_the_nearest_photos(tmp_path):
    made = study(tmp_path, "choose", distractors=2, captions=("plain.json",), per_person=30)
    for _, trial in asked(made):
        own, others = int(made.photos[trial.set]), {int(made.photos[photo]) for photo in trial.photos}
        nearest = sorted(range(PHOTOS), key=lambda n: (abs(n - own), n))[:3]
        assert max(abs(n - own) for n in others) == max(abs(n - own) for n in nearest)


@pytest.mark.parametrize("limit", [None, 0.98])
def test_no_distractor_is_more_alike_than_the_limit(tmp_path, limit):
    """Photos are 0.05 apart: cos 0.2 = 0.9801 is above 0.98, so four neighbours on each side are too much alike."""
    made = study(tmp_path, "choose", distractors=3, captions=("plain.json",), per_person=30, near_duplicates=limit)
    least = {abs(int(made.photos[t.set]) - int(made.photos[p])) for _, t in asked(made) for p in t.photos if p != t.set}
    assert min(least) == (1 if limit is None else 5)
    assert made.settings["near_duplicates"] == limit


def test_the_place_of_the_right_photo_is_balanced(tmp_path):
    made = study(tmp_path, "choose", distractors=3, per_person=20, catch=0, sets=20)
    for session in made.sessions:
        places = Counter(trial.photos.index(trial.set) for trial in session)
        assert places == dict.fromkeys(range(4), 5)


def test_the_seed_decides_everything(tmp_path):
    seeds = {"a": 1, "b": 1, "c": 2}
    first, same, other = (study(tmp_path / n, "choose", seed=s, completion_code="X") for n, s in seeds.items())
    assert first.sessions == same.sessions != other.sessions


def test_catch_trials_say_what_to_answer(tmp_path):
    for kind in ("choose", "order", "compare"):
        made = study(tmp_path / kind, kind)
        trial = next(trial for session in made.sessions for trial in session if trial.catch)
        if kind == "compare":
            answer = "first" if " first " in trial.captions[0] else "second"
            right = {"accuracy": answer, "distinctiveness": answer}
        else:
            number = int(next(word for word in trial.captions[0].replace(",", " ").split() if word.isdecimal()))
            first = trial.photos[number - 1]
            right = first if kind == "choose" else [first, *(photo for photo in trial.photos if photo != first)][:10]
        assert not trial.why_wrong(kind, right)
        assert trial.passed(kind, right)


def test_a_folder_gives_the_study_again_with_photos_that_carry_nothing(tmp_path):
    made = study(tmp_path, "order", captions=("plain.json", "human"))
    assert folders.load(tmp_path / "study") == made
    for id in made.photos:
        with Image.open(folders.photo_file(tmp_path / "study", id)) as picture:
            assert not picture.getexif()


def test_bad_requests_are_one_sentence(tmp_path):
    (tmp_path / "other.json").write_text(json.dumps({"x": "a caption of another photo"}))
    for kind, options, sentence in (
        ("order", {"photos": 20}, "a question shows 21 photos, and the data have 20"),
        ("choose", {"captions": ("plain.json", "other.json")}, r"other\.json: none of its captions is of a photo of"),
        ("compare", {"captions": ("plain.json",)}, "at least two caption files"),
        ("choose", {"captions": ("plain",)}, "a study takes caption files"),
    ):
        with pytest.raises(UserError, match=sentence):
            study(tmp_path, kind, **options)
    assert not (tmp_path / "study").exists()


def test_folders_that_are_no_study_of_this_version_are_refused(tmp_path):
    """And a study is not written over another."""
    with pytest.raises(UserError, match="no study folder"):
        folders.load(tmp_path)
    study(tmp_path, "choose")
    with pytest.raises(UserError, match="a study in this folder already"):
        study(tmp_path, "choose")
    path = tmp_path / "study" / "study.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "format": 2}))
    with pytest.raises(UserError, match="has format 2, and this version of tellapart reads 1"):
        folders.load(tmp_path / "study")
    for wrong in ({"photos": {}}, {"sessions": [[{"id": 1}]]}, {"kind": "guess"}, {"more": 1}, {"sessions": []}):
        path.write_text(json.dumps({**content, **wrong}))
        with pytest.raises(UserError, match="this is not a study"):
            folders.load(tmp_path / "study")
