"""The command line of `compare`, with two small runs that were really trained."""

import json
import re
import shutil
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import yaml
from benchmarks import step_time

from support.toy import world as toy_world
from tellapart.commands.train import parse
from tellapart.data.tokenizers import split_words
from tellapart.evaluation.compare import read_runs
from tellapart.training import build

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with toy/captions.json and the runs xe and gld, the second from the first on."""
    folder = tmp_path_factory.mktemp("compared")
    toy_world.make(folder / "toy", groups=9, group_size=(5, 5), size=64)
    recipe = {
        "model": {"width": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "feed_forward": 64},
        "encoder": {"image_size": 64, "grid": 2},
        "data": {"files": [str(folder / "toy/captions.json")], "features": str(folder / "features"), "min_count": 1},
        "optim": {"lr": 0.01},
        "validation": {"every": 2, "metric": "loss"},
        "batch_size": 4,
        "max_steps": 20,
        "log_steps": 5,
        "dtype": "fp32",
        "threads": 1,
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))

    def train(name, *changed):
        chosen, out, _ = parse([str(folder / "recipe.yaml"), f"--out={folder / name}", *changed])
        build.run(chosen, out)

    train("xe")
    train(
        "gld",
        f"--init_from={folder / 'xe'}",
        "--objective.name=policy_gradient",
        "--objective.rewards.weights={ld: 1.0, repetition: 0.5}",
        "--objective.rewards.ld.threshold=0.5",
        "--objective.policy.samples=2",
        "--validation.metric=last",
        "--optim.lr=0.001",
        "--max_steps=4",
        "--log_steps=1",
        "--batch_size=3",
    )
    return folder


@pytest.fixture
def compare(tellapart, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # paths of the test's folders are long, and a narrow table is cut in two
    return lambda *arguments: tellapart("compare", *arguments)


class Page(HTMLParser):
    """Sections by heading: the texts in them; and every address that the page would load."""

    def __init__(self, text):
        super().__init__()
        self.sections, self.loads, self._heading, self._now = {}, [], False, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self._heading = tag == "h2"
        self.loads += [value for name, value in attributes if name in ("src", "href")]

    def handle_data(self, data):
        if self._heading:
            self._now = self.sections.setdefault(data, [])
            self._heading = False
        elif data.strip():
            self._now.append(data.strip())


def titles(svg):
    return [title.text for title in ElementTree.parse(svg).getroot().iter(f"{SVG}title")]


def logged(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def row(text, name):
    """The cells of a row of the printed table."""
    (line,) = [line for line in text.splitlines() if re.match(rf"{re.escape(name)}\s", line)]
    return line.removeprefix(name).split()


def test_a_table_of_both_runs_and_of_what_differs(compare, world):
    code, text, _ = compare(world / "xe", world / "gld")
    assert code == 0
    assert row(text, "steps") == ["20", "4"]
    last = [
        [line for line in logged(world / name) if "val/CIDEr-D" in line][-1]["val/CIDEr-D"] for name in ("xe", "gld")
    ]
    assert row(text, "CIDEr-D") == [f"{100 * value:.1f}" for value in last]
    assert row(text, "objective.name") == ["cross_entropy", "policy_gradient"]
    assert row(text, "batch_size") == ["4", "3"]
    assert "optim.warmup" not in text


def test_curves_are_the_numbers_of_the_logs(compare, world, tmp_path):
    code, text, _ = compare(world / "xe", world / "gld", "--out", tmp_path / "out")
    assert code == 0
    assert text.splitlines()[-1] == str(tmp_path / "out" / "report.html")
    wanted = [
        f"{name}, step {line['step']}: {100 * line['val/CIDEr-D']:.4g}"
        for name in ("xe", "gld")
        for line in logged(world / name)
        if "val/CIDEr-D" in line
    ]
    assert titles(tmp_path / "out" / "figures" / "validation.CIDEr-D.svg") == wanted
    rewards = [
        f"gld, step {line['step']}: {line['reward/ld']:.4g}" for line in logged(world / "gld") if "reward" in line
    ]
    assert titles(tmp_path / "out" / "figures" / "training.reward.ld.svg") == rewards
    page = Page((tmp_path / "out" / "report.html").read_text())
    assert page.sections.keys() >= {"Runs", "Validation over steps", "Rewards over steps", "What n-grams weigh"}
    assert "Captions that got better" not in page.sections
    assert set(wanted) <= set(page.sections["Validation over steps"])
    assert not page.loads


def test_captions_are_made_once(compare, world, tmp_path):
    request = ("--data", world / "toy" / "captions.json", "--photos", "6", "--out", tmp_path / "out")
    code, _, err = compare(world / "xe", world / "gld", *request)
    assert code == 0, err
    kept = [tmp_path / "out" / "captions" / f"toy_world.{name}.jsonl" for name in ("xe", "gld")]
    assert [len(file.read_text().splitlines()) for file in kept] == [6, 6]
    for file in kept:  # what is read again is not made again
        file.write_text(file.read_text().replace('"caption": "', '"caption": "kept '))
    changed = [file.read_text() for file in kept]
    assert compare(world / "xe", world / "gld", *request)[0] == 0
    assert [file.read_text() for file in kept] == changed


def records(data):
    return json.loads(data.read_text())["images"]


def evaluation(folder, data, recalls, speak):
    """What `tellapart evaluate --out` leaves.  recalls: folder of a run -> self R@1; speak: name, number -> caption"""
    (folder / "captions").mkdir(parents=True)
    files = [str(data.parent / record["file"]) for record in records(data)]
    for one in recalls:
        rows = [{"file": file, "caption": speak(one.name, n), "key": "k"} for n, file in enumerate(files)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "captions" / f"toy_world.{one.name}.jsonl").write_text(text)
    scores = {one.name: {"self R@1": recall} for one, recall in recalls.items()}
    (folder / "results.json").write_text(json.dumps({"toy_world": scores}))
    models = {one.name: {"given": str(one)} for one in recalls}
    (folder / "details.json").write_text(json.dumps({"toy_world": {"models": models}}))
    return folder


def test_captions_of_an_evaluation_are_shown_with_what_changed(compare, world, tmp_path):
    """The second run says what a person said; the first says it of the next photo."""
    data, out = world / "toy" / "captions.json", tmp_path / "out"
    told = [record["captions"] for record in records(data)]

    def speak(name, number):
        return told[number][0] if name == "gld" else told[number - 1][0]

    made = evaluation(tmp_path / "evaluation", data, {world / "xe": 0.5, world / "gld": 0.5}, speak)
    request = ("--data", data, "--photos", "6", "--evaluation", made, "--out", out)
    code, _, err = compare(world / "xe", world / "gld", *request)
    assert code == 0
    assert not (out / "captions").exists()
    assert "recall against batch size is left out" in err

    text = (out / "report.html").read_text()
    page = Page(text)
    assert not page.loads
    assert text.count('background-image: url("data:image/webp;base64,') >= 6
    shown = page.sections["Captions that got better"]
    test = [number for number, record in enumerate(records(data)) if record["split"] == "test"]
    assert any(told[number][1] in shown for number in test)
    assert '<mark class="told"' in text
    assert '<mark class="untold"' in text
    assert 'aria-label="' in text
    assert "its place by word" in " ".join(shown)
    assert 'data-at="' in text  # the captioners are there, and were asked what the words rest on

    charts = sorted((out / "figures").glob("words.*.gld.svg"))
    assert len(charts) == 3
    for chart in charts:
        heights = [title for title in titles(chart) if title.startswith("LD, ")]
        spoken = [re.fullmatch(r"LD, (.+): [\d.]+", title)[1] for title in heights]
        assert spoken == split_words(speak("gld", int(chart.name.split(".")[1])))
    assert "are those of its reward" in " ".join(page.sections["What words earn"])


def test_a_run_can_be_looked_at_alone(compare, world, tmp_path):
    out = tmp_path / "out"
    given = ("--data", world / "toy" / "captions.json", "--photos", "3", "--attention", "2", "--out", out)
    code, text, _ = compare(world / "xe", *given)
    assert code == 0
    assert "where the recipes differ" not in text
    page = Page((out / "report.html").read_text())
    assert (
        len(list((out / "attention").glob("*.xe.*.png"))) == (out / "report.html").read_text().count("image/png") == 2
    )
    assert "Captions that got better" not in page.sections
    assert "those that score least by xe" in " ".join(page.sections["Where it fails"])
    assert "whose reward does not use them" in " ".join(page.sections["What n-grams weigh"])


@pytest.mark.parametrize("cached", [True, False])
def test_the_parts_of_a_step_are_measured(world, tmp_path, cached):
    folder = shutil.copytree(world / "gld", tmp_path / "gld")
    if not cached:
        recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
        recipe["data"]["features"] = str(tmp_path / "features")
        (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (run,) = read_runs([str(folder)])
    parts = step_time.measure(run)
    names = ["encode", "sample", "score", "reward: ld", "reward: repetition", "baseline", "backward", "rest"]
    assert list(parts) == [*names, step_time.TOTAL]
    assert all(value >= 0 for value in parts.values())
    assert min(parts["sample"], parts["backward"]) > 0
    assert not (tmp_path / "features").exists()


def test_a_part_within_another_counts_as_itself_alone(monkeypatch):
    clock = iter([0.0, 1.0, 5.0, 7.0])
    monkeypatch.setattr(step_time.time, "perf_counter", lambda: next(clock))
    watch = step_time.Stopwatch()
    with watch.part("outer"), watch.part("inner"):
        pass
    assert watch.took == {"outer": 1.0 + 2.0, "inner": 4.0}


def test_a_figure_that_cannot_be_made_does_not_cost_the_others(compare, world, tmp_path):
    folder = shutil.copytree(world / "xe", tmp_path / "xe")
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    recipe["data"]["files"] = [str(tmp_path / "gone.json")]
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    given = ("--data", world / "toy" / "captions.json", "--photos", "3", "--out", tmp_path / "out")
    code, _, err = compare(folder, *given)
    assert code == 0
    assert "what words weigh and earn left out: " in err
    assert "gone.json: there is no such file" in (tmp_path / "out" / "report.html").read_text()


def test_a_photo_that_cannot_be_read_is_named_and_the_rest_goes_on(compare, world, tmp_path):
    toy = shutil.copytree(world / "toy", tmp_path / "toy")
    broken = toy / next(record["file"] for record in records(toy / "captions.json") if record["split"] == "test")
    broken.write_bytes(b"no photo")
    code, _, err = compare(world / "xe", "--data", toy / "captions.json", "--out", tmp_path / "out")
    assert code == 1
    assert f"{broken}: xe has no caption of it." in err
    assert (tmp_path / "out" / "report.html").exists()
