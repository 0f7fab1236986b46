"""What a detector finds is kept between runs."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from detectors import tiny_yolox
from tellapart.detectors import yolox
from tellapart.detectors.detector import MOST, detect


@pytest.fixture
def detector(tmp_path):
    """Class 0 is as likely as a photo is blue, 1 green, 2 red; and class 1, weakly, elsewhere."""
    answers, by_colour = tiny_yolox.nothing(), np.zeros((3, *tiny_yolox.nothing().shape), np.float32)
    answers[-1, 4], answers[-6, 4:7] = 1, (1, 0, 0.123456789)
    by_colour[:, -1, 5:] = np.eye(3)
    return yolox.load(tiny_yolox.write(tmp_path / "tiny.onnx", answers, by_colour))


@pytest.fixture
def runs(detector, monkeypatch):
    """How often the network ran."""
    count, run = [], yolox.Yolox._run
    monkeypatch.setattr(yolox.Yolox, "_run", lambda self, canvas: count.append(1) or run(self, canvas))
    return count


def photo(folder, name, colour):
    folder.mkdir(exist_ok=True)
    Image.new("RGB", (96, 64), colour).save(folder / name)
    return str(folder / name)


@pytest.fixture
def files(tmp_path):
    colours = [(250, 10, 20), (10, 240, 20), (10, 20, 200), (0, 0, 0)]
    return [photo(tmp_path / "photos", f"{number}.png", colour) for number, colour in enumerate(colours)]


def assert_same(found, number, expected):
    mask = found.mask[number]
    assert mask.tolist() == [place < len(expected.scores) for place in range(MOST)]
    assert torch.equal(found.boxes[number][mask], torch.from_numpy(expected.boxes))
    assert torch.equal(found.scores[number][mask], torch.from_numpy(expected.scores))
    assert torch.equal(found.classes[number][mask], torch.from_numpy(expected.classes))
    assert not found.boxes[number][~mask].any()


def test_what_is_kept_is_what_the_detector_found_to_the_last_bit(detector, files, own_cache, runs):
    expected = [detector(yolox.letterboxed(file, detector.size)) for file in files]
    runs.clear()
    for times in (4, 0):  # made, and read
        found = detect(detector, files)
        assert len(runs) == times
        runs.clear()
        for number, own in enumerate(expected):
            assert_same(found, number, own)
    assert [len(own.scores) for own in expected] == [2, 2, 2, 1]
    assert found.classes_above(0.35) == [{2}, {1}, {0}, set()]
    assert found.classes_above(0.1) == [{1, 2}, {1}, {0, 1}, {1}]
    assert len(set(found.sha256)) == 4


def test_only_what_is_new_or_has_changed_is_looked_at(detector, files, own_cache, runs, tmp_path):
    detect(detector, files[:2])
    photo(tmp_path / "photos", "0.png", (0, 0, 230))
    runs.clear()
    assert detect(detector, files).classes_above(0.35) == [{0}, {1}, {0}, set()]
    assert len(runs) == 3


def test_a_photo_that_cannot_be_read_is_named_and_the_others_go_on(detector, files, own_cache, tmp_path):
    (tmp_path / "photos" / "1.png").write_bytes(b"no photo")
    found = detect(detector, [*files, "nowhere.jpg"])
    assert found.files == [files[0], files[2], files[3]]
    assert found.classes_above(0.35) == [{2}, {0}, set()]
    assert list(found.failed) == [files[1], "nowhere.jpg"]
    assert found.failed["nowhere.jpg"] == "there is no such file"


def test_who_is_stopped_goes_on_where_that_was(detector, own_cache, monkeypatch, tmp_path):
    files = [photo(tmp_path / "photos", f"{number}.png", (number, 200, 0)) for number in range(40)]
    count, run = [], yolox.Yolox._run

    def until_stopped(self, canvas):
        count.append(1)
        if len(count) == 20:
            raise KeyboardInterrupt
        return run(self, canvas)

    monkeypatch.setattr(yolox.Yolox, "_run", until_stopped)
    with pytest.raises(KeyboardInterrupt):
        detect(detector, files)
    assert detect(detector, files).classes_above(0.35) == [{1}] * 40
    assert len(count) == 20 + 40 - 16  # a batch of 16 was safe


def test_without_a_cache_photos_are_looked_at_all_the_same(detector, files, monkeypatch, tmp_path, capsys):
    (tmp_path / "\x1b[31mtaken").write_text("a file where the cache should be")
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "\x1b[31mtaken"))
    assert detect(detector, files).classes_above(0.35) == [{2}, {1}, {0}, set()]
    err = capsys.readouterr().err
    assert "Nothing is kept of the photos" in err
    assert "\x1b" not in err


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda rows: rows * np.nan, "the detector tiny gives numbers that are not finite; the file may be damaged"),
        (lambda rows: rows + 2, "the detector tiny is no YOLOX export: its scores are not between 0 and 1"),
        (lambda rows: 1 / 0, "the detector tiny cannot be run (division by zero)"),
    ],
)
def test_a_photo_with_which_the_detector_fails_is_named_and_the_others_go_on(
    detector, files, own_cache, monkeypatch, capsys, broken, reason
):
    run = detector._session.run

    def fails_on_red(names, given):
        (rows,) = run(names, given)
        return [broken(rows) if given["images"][0, 2].mean() > 200 else rows]  # BGR

    monkeypatch.setattr(detector, "_session", SimpleNamespace(run=fails_on_red))
    found = detect(detector, files)
    assert found.files == files[1:]
    assert found.classes_above(0.35) == [{1}, {0}, set()]
    assert found.failed == {files[0]: reason}
    assert "Nothing is kept" not in capsys.readouterr().err


def test_classes_can_be_called_by_their_places_in_a_list(detector, files, own_cache):
    found = detect(detector, files)
    assert found.classes_above(0.35, {2: 7, 1: 5}) == [{7}, {5}, set(), set()]
    assert detector.numbers_of(["blue", "green", "red"]) == {0: 0, 1: 1, 2: 2}
    with pytest.raises(yolox.BadDetector, match=r"tiny\.onnx: knows 3 classes, and objects are checked by 2\.$"):
        detector.numbers_of(["blue", "green"])
