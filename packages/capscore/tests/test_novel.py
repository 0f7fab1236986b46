"""Novel: whose captions are their own."""

import json

from capscore import command, scoring
from capscore.caption_files import TrainingCaptions

CAPTIONS = {1: "A dog runs.", 2: "a dog runs fast", 3: "a cat", 4: "A Cat!"}
REFERENCES = {photo: ["something else"] for photo in CAPTIONS}


def test_a_caption_is_novel_unless_a_training_caption_has_the_same_words():
    """Case and punctuation do not count; a part of a training caption is another caption."""
    training = TrainingCaptions([["a", "dog", "runs"], ["a", "cat", "sleeps"]])
    found = scoring.measure(CAPTIONS, REFERENCES, metrics="Novel", training=training)
    assert found.per_photo() == {"1": {"Novel": 0}, "2": {"Novel": 1}, "3": {"Novel": 1}, "4": {"Novel": 1}}
    assert found.corpus == {"Novel": 0.75}


def test_the_command_takes_the_training_split_of_data_files(tmp_path, capsys):
    photos = [
        {"id": 7, "file": "7.jpg", "split": "train", "captions": ["a dog runs", "a cat."]},
        {"id": 8, "file": "8.jpg", "split": "test", "captions": ["a dog runs fast"]},
    ]
    for name, content in {
        "captions": CAPTIONS,
        "references": REFERENCES,
        "data": {"dataset": "x", "images": photos},
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    files = [str(tmp_path / f"{name}.json") for name in ("captions", "references")]
    assert command.main([*files, "--metrics", "Novel", "--training", str(tmp_path / "data.json")]) == 0
    assert json.loads(capsys.readouterr().out)["corpus"] == {"Novel": 0.25}
