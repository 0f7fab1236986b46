"""Photos are captioned as they appear: not before they are finished, not twice, and never over what people wrote."""

import io
import json
import os
import signal
import time
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from PIL import Image

from capscore.errors import UserError
from tellapart.captioning.pipeline import CaptionSource
from tellapart.data.captions import Caption
from tellapart.desk.captions_file import CaptionsFile
from tellapart.desk.resume import write
from tellapart.desk.watch import PATIENCE, Arrivals, in_folders, watch


def jpeg(colour):
    data = io.BytesIO()
    photo = Image.new("RGB", (64, 64), colour)
    photo.paste(Image.linear_gradient("L").resize((32, 64)))
    photo.save(data, "JPEG")
    return data.getvalue()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "photos").mkdir()
    return tmp_path / "photos"


@pytest.fixture
def arrivals(folder):
    """A poll every ten seconds."""
    return Arrivals(in_folders([str(folder)]), clock=count(0, 10).__next__)


def names(photos):
    return [Path(photo.file).name for photo in photos]


def take(arrivals):
    """What a command does at each poll: the photos are captioned, and done."""
    ready = arrivals.poll()
    arrivals.done(ready)
    return names(ready)


def test_a_photo_is_taken_once_when_it_is_the_same_in_two_polls(arrivals, folder):
    assert take(arrivals) == []
    (folder / "a.jpg").write_bytes(jpeg("red"))
    assert [take(arrivals) for _ in range(4)] == [[], ["a.jpg"], [], []]


def test_a_photo_that_is_being_written_is_not_read(arrivals, folder):
    data, file = jpeg("red"), folder / "a.jpg"
    for end in range(0, len(data), len(data) // 5):  # it grows at every poll
        file.write_bytes(data[:end])
        assert take(arrivals) == []
        assert arrivals.unfinished == {str(file)}
    file.write_bytes(data)
    assert [take(arrivals) for _ in range(3)] == [[], ["a.jpg"], []]
    assert arrivals.unfinished == set()


def test_a_photo_whose_copying_stalls_is_waited_for_and_one_that_stays_broken_is_taken_in_the_end(arrivals, folder):
    data, stalled, broken = jpeg("red"), folder / "stalled.jpg", folder / "broken.jpg"
    stalled.write_bytes(data[: len(data) // 2])
    broken.write_bytes(data[: len(data) // 3])
    for _ in range(round(PATIENCE / 10)):
        assert take(arrivals) == []
    assert take(arrivals) == ["broken.jpg", "stalled.jpg"]  # they get rows with the reason
    stalled.write_bytes(data)
    assert [take(arrivals) for _ in range(3)] == [[], ["stalled.jpg"], []]


def test_a_photo_that_is_not_captioned_comes_again_and_one_that_is_gone_does_not(arrivals, folder):
    (folder / "a.jpg").write_bytes(jpeg("red"))
    (folder / "b.jpg").write_bytes(jpeg("blue"))
    arrivals.poll()
    assert names(arrivals.poll()) == names(arrivals.poll()) == ["a.jpg", "b.jpg"]
    (folder / "a.jpg").unlink()
    assert names(arrivals.poll()) == ["b.jpg"]


def test_only_folders_are_watched(folder):
    with pytest.raises(UserError, match=r"a\.jpg: --watch watches folders"):
        in_folders([str(folder / "a.jpg")])


def run(arrivals, out, events):
    """Watch with a captioner that says what it is asked for; between polls, the events happen one by one."""
    asked = []

    def caption(new):
        def speak(files):
            asked.extend(Path(file).name for file in files)
            yield from (Caption(file, f"caption of {Path(file).name}", -1.0) for file in files)

        write(CaptionSource(speak, "a captioner"), new, CaptionsFile(out))

    waiting = iter(events)

    def sleep(_):
        event = next(waiting, None)
        if event is None:
            raise KeyboardInterrupt
        event()

    watch(arrivals, caption, interval=0, sleep=sleep)
    return asked


def edit(out, name, caption):
    file = CaptionsFile(out)
    with file.writing():
        file.keep([row | {"caption": caption} if name in row["file"] else row for row in file.rows])


@pytest.mark.parametrize("name", ["o.jsonl", "o.csv"])
def test_what_a_person_corrected_stays_while_photos_come_and_after_a_restart(folder, tmp_path, name):
    out, nothing = tmp_path / name, bool
    correct = partial(edit, out, "a.jpg", "grandma, 1962")

    def add(name, colour):
        return partial((folder / name).write_bytes, jpeg(colour))

    def touch():
        os.utime(folder / "a.jpg")
        os.utime(folder / "b.jpg")

    add("a.jpg", "red")()
    events = [nothing, add("b.jpg", "blue"), nothing, correct, add("c.jpg", "green"), nothing, touch, nothing, nothing]
    assert run(Arrivals(in_folders([str(folder)])), out, events) == ["a.jpg", "b.jpg", "c.jpg"]
    events = [nothing, lambda: (folder / "b.jpg").rename(folder / "d.jpg"), add("e.jpg", "grey"), nothing, nothing]
    assert run(Arrivals(in_folders([str(folder)])), out, events) == ["e.jpg"]
    rows = {Path(row["file"]).name: row for row in CaptionsFile(out).rows}
    captions = {f"{name}.jpg": f"caption of {first}.jpg" for name, first in ("db", "cc", "ee")}
    assert {name: row["caption"] for name, row in rows.items()} == captions | {"a.jpg": "grandma, 1962"}
    assert rows["a.jpg"]["edited"] is True


def test_trouble_with_the_first_photos_ends_it_and_later_trouble_is_reported_once(folder, tmp_path, capsys):
    (folder / "a.jpg").write_bytes(jpeg("red"))
    taken, reasons = [], iter(["", "disk full.", "disk full.", ""])

    def caption(new):
        if reason := next(reasons):
            raise UserError(reason)
        taken.append(names(new))

    def sleep(_):
        if len(taken) == 2:
            raise KeyboardInterrupt
        (folder / "b.jpg").exists() or (folder / "b.jpg").write_bytes(jpeg("blue"))

    watch(Arrivals(in_folders([str(folder)])), caption, interval=1, sleep=sleep)
    assert taken in ([["a.jpg"], ["b.jpg"]], [["a.jpg", "b.jpg"], ["b.jpg"]])
    assert capsys.readouterr().err.count("disk full.  It is tried again every 1 s.") == 1
    reasons = iter(["no such server."])
    with pytest.raises(UserError, match="no such server"):
        watch(Arrivals(in_folders([str(folder)])), caption, interval=0, sleep=lambda _: None)


def wait_for(condition, process, meanwhile=lambda: None):
    deadline = time.monotonic() + 180
    while not condition():
        meanwhile()
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_watches_survives_a_kill_and_stops_when_asked(
    start_tellapart, small_model, small_retriever, photo_folder, tmp_path, own_cache, stop
):
    out = tmp_path / "captions.jsonl"
    command = ["caption", photo_folder, "--model", small_model, "--retriever", small_retriever, "--out", out]
    command += ["--watch", "--interval", "0.1"]

    def rows():
        lines = out.read_text().split("\n")[:-1] if out.exists() else []
        return {Path(row["file"]).name: row for row in map(json.loads, lines)}

    def edited(caption):
        """As a program does that waits until nobody else writes to the file."""
        try:
            edit(out, "3.png", caption)
        except UserError:  # another process writes to this file
            return False
        return True

    process = start_tellapart(*command)
    wait_for(lambda: len(rows()) == 6, process)
    wait_for(lambda: edited("grandma, 1962"), process)
    before = rows()
    data = (photo_folder / "0.png").read_bytes()
    with (photo_folder / "half.png").open("wb", buffering=0) as half:
        half.write(data[:-40])
        Image.new("RGB", (30, 30), "red").save(photo_folder / "6.png")
        wait_for(lambda: "6.png" in rows(), process, meanwhile=lambda: half.write(b"\0"))
        assert "half.png" not in rows()
    process.kill()
    process.wait()
    (photo_folder / "half.png").unlink()
    process = start_tellapart(*command)
    Image.new("RGB", (30, 30), "blue").save(photo_folder / "7.png")
    wait_for(lambda: "7.png" in rows(), process)
    wait_for(lambda: edited("grandma in 1962"), process)
    process.send_signal(stop)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert "the same command continues from here" in err
    after = rows()
    assert len(CaptionsFile(out).rows) == len(after) == 8
    assert (after["3.png"]["caption"], after["3.png"]["edited"]) == ("grandma in 1962", True)
    assert all(after[name] == row for name, row in before.items() if name != "3.png")
    assert after["7.png"]["look_alikes"] is not None
