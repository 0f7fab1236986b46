"""Hostile files, and all that open them: one sentence with the file's name, soon, and nothing else."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attacks import clips as made_clips
from attacks import data_files
from attacks import photos as made
from attacks.data_files import GOOD
from capscore import caption_files, files, ngrams
from capscore.errors import UserError
from tellapart.commands.train import parse
from tellapart.data import examples
from tellapart.data.media import clips, photos
from tellapart.data.media.clips import open_clip
from tellapart.desk.candidates_file import CandidatesFile
from tellapart.desk.write import Captions
from tellapart.detectors import yolox
from tellapart.encoders.classifiers import read_tensors
from tellapart.errors import BadPhoto
from tellapart.neighbours import groups
from tellapart.rewards.preference import Preference

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL.TiffImagePlugin")


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    """Whatever waits for a pipe, or unpacks a bomb, fails instead of holding up everybody."""

    def too_late(_signal: int, _frame: object) -> None:
        raise TimeoutError("the file was not refused within half a minute")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, 30)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def refusal(read, file) -> str:
    with pytest.raises(UserError) as caught:
        read(file)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What is no file, or unpacks to more than is read, and all that open files which users name

TEXTS = {
    "data": examples.read,
    "captions": caption_files.read,
    "references": caption_files.read_references,
    "text": files.read_text,
    "JSON": files.read_json,
    "candidates": CandidatesFile,
    "preferences": Preference.load,
    "look-alikes": groups.load,
}
LOADERS = TEXTS | {
    "frequencies": ngrams.load,
    "detector": yolox.load,
    "weights": read_tensors,
    "captions to write": Captions.read,
    "recipe": lambda file: parse([str(file)]),
    "option": lambda file: parse(["--recipe", str(file), "--print_config"]),
}
ENDINGS = {"detector": ".onnx", "frequencies": ".npz", "recipe": ".yaml", "option": ".yaml"}
NO_FILE = {
    "missing": (lambda file: None, "there is no such file|there is no recipe"),
    "a folder": (Path.mkdir, "folder|not a regular file"),
    "a pipe": (os.mkfifo, "not a regular file"),
    "a link to a device": (lambda file: file.symlink_to("/dev/zero"), "not a regular file"),
}


@pytest.mark.parametrize("kind", NO_FILE)
@pytest.mark.parametrize("loader", LOADERS)
def test_what_is_no_file_is_refused_at_once(loader, kind, tmp_path):
    make, reason = NO_FILE[kind]
    file = tmp_path / f"file{ENDINGS.get(loader, '.json')}"
    make(file)
    sentence = refusal(LOADERS[loader], file)
    assert str(file) in sentence
    assert re.search(reason, sentence)
    assert "not a regular file" in refusal(LOADERS[loader], Path("/dev/zero"))


@pytest.mark.parametrize("read", TEXTS.values(), ids=TEXTS)
def test_a_bomb_is_refused_by_all_who_read_text(read, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_TEXT", 1 << 20)  # so that a bomb takes no second
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b'{"a": "' + b" " * (3 << 20) + b'"}'))
    assert bomb.stat().st_size < 1 << 16
    assert refusal(read, bomb) == f"{bomb}: the file has, unpacked, more than 1 MB, the most that is read."
    bomb.write_bytes(gzip.compress(b" " * 1000) * 2000)  # many small parts are counted as a whole
    assert "more than 1 MB" in refusal(read, bomb)


@pytest.mark.parametrize(
    ("name", "reason"), [("a\0b.json", "cannot be the name of a file"), ("x" * 5000, "cannot be read")]
)
@pytest.mark.parametrize("read", [examples.read, files.read_json, yolox.load], ids=["data", "JSON", "detector"])
def test_a_name_that_no_file_has(read, name, reason):
    assert reason in refusal(read, Path(name))


# Data files: what is wrong as a whole is refused, a broken record is named


@pytest.mark.parametrize("name", data_files.WRONG)
def test_a_data_file_that_is_wrong_as_a_whole_is_refused_in_one_sentence_that_begins_with_its_name(name, tmp_path):
    path = data_files.make(name, tmp_path)
    sentence = refusal(examples.read, path)
    assert sentence.startswith(f"{path}: ")
    assert data_files.WRONG[name][1] in sentence


@pytest.mark.parametrize("command", ["caption", "lookalikes", "prepare karpathy", "prepare coco", "prepare flickr"])
def test_every_command_answers_it_with_exit_2_and_one_line(command, tellapart, tmp_path):
    fine = {  # to who reads other formats
        "prepare karpathy": ("a number as its name", "images and videos"),
        "prepare coco": ("COCO's annotations", "a number as its name", "images and videos"),
    }.get(command, ())
    for number, name in enumerate(data_files.WRONG):
        if name in fine:
            continue
        (tmp_path / str(number)).mkdir()
        path, out = data_files.make(name, tmp_path / str(number)), tmp_path / "data.json"
        code, _, err = tellapart(*command.split(), path, *(("--out", out) if command.startswith("prepare") else ()))
        assert (name, code, err.count("\n")) == (name, 2, 1)
        assert err.startswith(f"tellapart {command.split()[0]}: ")
        assert str(path) in err
        assert not out.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    path = data_files.of_images(tmp_path, GOOD)
    path.chmod(0)
    assert refusal(examples.read, path) == f"{path}: the file cannot be read (Permission denied)."


_ID = "must be a whole number or a string, not"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": None}, 'image number 1: "id" is missing.'),
        ({"id": [1]}, f'image number 1: "id" {_ID} a list.'),
        ({"id": 1.5}, f'image number 1: "id" {_ID} a number with a fraction.'),
        ({"id": True}, f'image True: "id" {_ID} a boolean.'),  # although Python counts it as 1
        ({"id": ""}, 'image number 1: "id" is empty.'),
        ({"id": "good"}, "image 'good': \"id\" was given to an earlier record too; this one is left out."),
        ({"file": None}, 'image 17: "file" is missing.'),
        ({"file": 3}, 'image 17: "file" must be a string, not a number.'),
        ({"file": ""}, "image 17: \"file\" '' cannot be the name of a file."),
        ({"file": "dog.jpg\0.png"}, "image 17: \"file\" 'dog.jpg\\x00.png' cannot be the name of a file."),
        ({"file": "dog\ud83d.jpg"}, "image 17: \"file\" 'dog\\ud83d.jpg' cannot be the name of a file."),
        ({"split": 1}, 'image 17: "split" must be a string, not a number.'),
        ({"captions": 5}, 'image 17: "captions" must be a list of strings, not a number.'),
        ({"captions": "a dog"}, 'image 17: "captions" must be a list of strings, not a string.'),
        ({"id": "\ud83d\x1b[2J\n", "file": None}, "image '\\ud83d\\x1b[2J\\n': \"file\" is missing."),
        ("dog.jpg", "image number 1: it must be an object, not a string."),
    ],
    ids=ascii,
)
def test_a_broken_record_is_named_and_the_others_are_used(change, reason, tmp_path):
    good = {"id": "good", "file": "good.jpg", "captions": ["a good photo"]}
    broken = (
        {key: value for key, value in (GOOD | change).items() if value is not None} if change != "dog.jpg" else change
    )
    records = [good, broken] if change == {"id": "good"} else [broken, good]
    path = data_files.of_images(tmp_path, *records)
    dataset = examples.read(path)
    assert [example.captions for example in dataset.examples] == [("a good photo",)]
    assert dataset.problems == [f"{path}: {reason}"]
    assert reason.isprintable()  # whatever the id holds: it is written to a terminal
    reason.encode()


def test_1_and_the_string_1_are_one_id_because_json_keys_are_strings(tmp_path):
    path = data_files.of_images(tmp_path, {**GOOD, "id": 1}, {**GOOD, "id": "1"})
    assert [example.id for example in examples.read(path).examples] == [1]


@pytest.mark.parametrize(
    ("caption", "reason"),
    [
        (None, "must be a string, not null."),
        *((n, "is empty.") for n in ("", "  \t\n", "\0", "\u200b\ufeff", "\ud83d")),
    ],
    ids=ascii,
)
def test_a_caption_that_cannot_be_used_is_left_out_alone(caption, reason, tmp_path):
    path = data_files.of_images(tmp_path, {**GOOD, "captions": ["a dog", caption, "a white dog"]})
    dataset = examples.read(path)
    assert dataset.examples[0].captions == ("a dog", "a white dog")
    assert dataset.problems == [f'{path}: image 17: "captions" number 2 {reason}']


def test_control_characters_go_white_space_is_one_space_and_emoji_and_accents_stay(tmp_path):
    captions = ["un café à Besançon", "eine Straße", "犬が雪の中にいる", "a 👩\u200d🚒 and a 🐕"]
    odd = "\x1b a\0dog \r\n in\u2028the\u00a0 snow\x7f "
    path = data_files.of_images(tmp_path, {**GOOD, "captions": [odd, *captions]})
    assert examples.read(path).examples[0].captions == ("a dog in the snow", *captions)


# Photos

NOT_A_PHOTO = r"is not a photo that we can open \(JPEG, PNG, .+\)"
DAMAGED = r"is damaged \(.+\)"
BOMB = "has more than 178 megapixels; such a file may be an attack"
REASONS = {
    "missing": "there is no such file",
    "a folder": "is a folder, not a photo",
    "a pipe": "is not a regular file",
    "a device": "is not a regular file",
    "a link to nowhere": "is a link to a file that does not exist",
    "a link to itself": r"cannot be read \(Too many levels of symbolic links\)",
    "a NUL in the name": r"is no file name \(embedded null byte\)",
    "a name too long": r"cannot be read \(File name too long\)",
    "empty": "the file is empty",
    "text named png": NOT_A_PHOTO,
    "SVG named jpg": NOT_A_PHOTO,
    "EPS named png": NOT_A_PHOTO,
    "HEIC named jpg": rf"is a HEIC photo; `pip install 'tellapart\[heic\]'` brings what opens it|{DAMAGED}",
    "garbage that begins like a JPEG": f"{NOT_A_PHOTO}|{DAMAGED}",
    "decompression bomb": BOMB,
    "decompression bomb in a GIF": BOMB,
}


@pytest.mark.parametrize("name", made.BROKEN)
def test_a_broken_photo_is_refused_in_one_sentence_with_its_name_and_the_reason(name, tmp_path):
    path = made.BROKEN[name](tmp_path)
    with pytest.raises(BadPhoto) as caught:
        photos.read(path, 32)
    assert re.fullmatch(REASONS.get(name, DAMAGED), caught.value.reason)
    assert caught.value.file == str(path)
    assert str(caught.value) == f"{path}: {caught.value.reason}".replace("\0", "\\x00")
    assert str(caught.value).isprintable()
    assert not re.search(r"Traceback|Error\b|object at|\.py\b", caught.value.reason)


def test_the_bomb_is_a_valid_small_file_and_the_eps_is_one_that_pillow_would_run(tmp_path):
    """Otherwise the refusals above would say little."""
    bomb = made.bomb(tmp_path)
    assert bomb.stat().st_size < 200_000
    with warnings.catch_warnings(), pytest.raises(Image.DecompressionBombError):
        Image.open(bomb)
    with Image.open(made.BROKEN["EPS named png"](tmp_path)) as image:
        assert image.format == "EPS"


def test_a_name_cannot_steer_the_terminal_that_the_sentence_is_printed_on(tmp_path):
    """ESC [2J clears the screen; a new line would let a file name forge a message of its own."""
    sentence = refusal(lambda file: photos.read(file, 32), tmp_path / "\x1b[2J\nall is well.jpg")
    assert sentence == f"{tmp_path}/\\x1b[2J\\nall is well.jpg: there is no such file"


def test_a_photo_that_is_cut_anywhere_or_has_any_byte_changed_is_read_or_refused_and_nothing_else(tmp_path):
    rng = np.random.default_rng(0)
    image = made.noise(24, 32)
    kinds = [("JPEG", {"exif": made.exif(6)}), ("PNG", {}), ("WEBP", {}), ("GIF", {}), ("BMP", {}), ("TIFF", {})]
    for format, settings in kinds:
        whole = made.encoded(image, format, **settings)
        for _ in range(40):
            data = bytearray(whole[: rng.integers(1, len(whole) + 1)] if rng.random() < 0.3 else whole)
            for place in rng.integers(0, min(len(data), 300), 3):
                data[place] = rng.integers(256)
            reason = ""
            try:
                assert photos.decode(bytes(data), "photo", at_least=16).mode == "RGB"
            except BadPhoto as error:
                reason = str(error)
            assert reason.isprintable()


def test_photos_with_broken_exif_are_read_without_a_warning_on_the_screen(tmp_path):
    names = ("broken EXIF", "EXIF of noise", "orientation 6 with nonsense beside")
    script = "import sys; from tellapart.data.media import photos; [photos.read(file, 32) for file in sys.argv[1:]]"
    command = [sys.executable, "-W", "default", "-c", script, *(made.ODD[name](tmp_path) for name in names)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# Clips


@pytest.mark.parametrize(("make", "reason"), made_clips.REFUSED.values(), ids=made_clips.REFUSED)
def test_a_clip_that_cannot_be_used_is_refused_in_one_sentence(tmp_path, capfd, make, reason):
    file = make(tmp_path)
    with pytest.raises(BadPhoto) as refused, open_clip(file) as clip:
        clip.frames(clip.evenly(3))
    assert refused.value.file == str(file)
    assert refused.value.reason == (reason or refused.value.reason)
    assert 5 < len(refused.value.reason) < 120
    assert "\n" not in refused.value.reason
    assert capfd.readouterr() == ("", "")  # FFmpeg is talkative


@pytest.mark.parametrize(("make", "frames", "seconds"), made_clips.TAKEN.values(), ids=made_clips.TAKEN)
def test_frames_are_counted_in_the_file_whatever_its_header_says(tmp_path, make, frames, seconds):
    with open_clip(make(tmp_path)) as clip:
        assert (len(clip), clip.duration) == (frames, pytest.approx(seconds, abs=0.05))
        assert len(clip.frames(clip.evenly(8))) == 8


def test_frames_larger_than_all_the_memory_are_refused_before_they_are_decoded(tmp_path, monkeypatch):
    make, *_ = made_clips.TAKEN["one frame"]
    monkeypatch.setattr(clips, "MAX_PIXELS", 128 * 48 - 1)
    with pytest.raises(BadPhoto, match="pixels"), open_clip(make(tmp_path)):
        pass


def test_the_memory_for_a_decoder_is_given_back(tmp_path):
    for make, *_ in (made_clips.TAKEN["one frame"], made_clips.REFUSED["garbage frames"]):
        try:
            with open_clip(make(tmp_path)):
                assert photos._decoding._used == 128 * 48 * clips._DECODER_BYTES
        except BadPhoto:
            pass
        assert photos._decoding._used == 0
