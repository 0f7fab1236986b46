"""The command line of `evaluate`, with retrievers that see words instead of photos."""

import json
import shutil

import pytest

from capscore.errors import UserError
from evaluation import world
from tellapart.evaluation import grid as run
from tellapart.models import retrievers


@pytest.fixture(autouse=True)
def words_for_photos(monkeypatch):
    world.words_for_photos(monkeypatch)


@pytest.fixture
def evaluate(tellapart):
    return lambda *arguments: tellapart("evaluate", *arguments)


@pytest.fixture
def files(tmp_path):
    """A data file, captions that name thing and place, captions that name the thing."""
    data = world.make(tmp_path / "w", 12)
    for name, captions in zip(("exact", "vague"), world.exact_and_vague(data), strict=True):
        (tmp_path / f"{name}.json").write_text(json.dumps(captions))
    return data, tmp_path / "exact.json", tmp_path / "vague.json"


QUICK = ("--metrics", "CIDEr-D,Rep,Prec,UniCap,AvgLen", "--retriever", "word", "judge")


def test_results_have_the_shape_that_is_promised(evaluate, files, tmp_path):
    data, exact, vague = files
    out = tmp_path / "out"
    code, text, err = evaluate(exact, vague, "human", "--data", data, *QUICK, "--out", out)
    assert code == 0
    assert err.splitlines()[-1] == (  # before it, perhaps, the progress of a machine that is slow or has to compile
        "world: P@1/100[word], P@1/100-hard[word], P@1/100[judge], P@1/100-hard[judge] are left out: a pool has 100 "
        "photos, and there are 12."
    )
    results = json.loads((out / "results.json").read_text())
    assert list(results) == ["world"]
    assert list(results["world"]) == ["exact", "vague", "human"]
    scores = results["world"]["vague"]
    assert all(isinstance(score, float) for score in scores.values())
    assert scores.keys() >= {"R@1[word]", "R@10[judge]", "GEG-Avg[word]", "TT R@5", "CIDEr-D", "UniCap"}
    assert results["world"]["exact"]["R@1[judge]"] == 1
    details = json.loads((out / "details.json").read_text())["world"]
    assert (details["against"], details["photos"], details["measured"]) == ("exact", 12, 12)
    assert details["models"]["vague"]["difference"]["R@1[word]"]["difference"] < 0
    assert "P@1/100[word]" in details["skipped"]
    assert "vague" in text
    assert text.splitlines()[-1] == str(out / "report.html")
    assert {path.name for path in out.iterdir()} >= {
        "world.qrels",
        "world.human.qrels",
        "world.exact.word.run",
        "world.vague.judge.run",
        "report.html",
    }


@pytest.mark.slow
def test_two_data_sets_make_a_grid_and_a_file_is_a_row_of_its_own(evaluate, files, tmp_path):
    data, exact, _ = files
    other = world.make(tmp_path / "v", 120, name="other")
    code, text, err = evaluate(exact, "human", "--data", data, other, *QUICK, "--out", tmp_path / "out")
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {name: list(models) for name, models in results.items()} == {"world": ["exact", "human"], "other": ["human"]}
    assert code == 1
    assert "exact.json: has captions of 12 of the 120 photos of other; left out." in err
    assert [line.split()[:3] for line in text.splitlines()].count(["TT", "R@1", "TT@6"]) == 2  # the heads of the tables
    assert text.count("\nPrec  Accuracy: ") == 1  # what they mean, once


def test_runs_of_one_recipe_are_a_row_with_their_means(evaluate, files, tmp_path):
    data, exact, vague = files
    (tmp_path / "run_0.json").write_bytes(exact.read_bytes())
    (tmp_path / "run_1.json").write_bytes(vague.read_bytes())
    runs = f"{tmp_path / 'run_0.json'},{tmp_path / 'run_1.json'}"
    code, text, _ = evaluate(vague, runs, "--data", data, *QUICK, "--against", runs, "--out", tmp_path / "out")
    assert code == 0
    assert [line.split()[0] for line in text.splitlines()[2:4]] == ["vague", "run"]
    assert "run: the mean of run_0, run_1." in text
    results = json.loads((tmp_path / "out" / "results.json").read_text())["world"]
    assert set(results) == {"vague", "run_0", "run_1", "run"}
    for name in ("R@1[judge]", "TT R@1", "CIDEr-D", "AvgLen", "UniCap"):
        assert results["run"][name] == pytest.approx((results["run_0"][name] + results["run_1"][name]) / 2)
    details = json.loads((tmp_path / "out" / "details.json").read_text())["world"]
    assert details["against"] == "run"
    assert details["models"]["run"]["given"] == runs
    half = details["models"]["run_0"]["difference"]["AvgLen"]["difference"]
    assert half == pytest.approx(-details["models"]["vague"]["difference"]["AvgLen"]["difference"])


def test_without_a_folder_the_table_is_all_there_is(evaluate, files, tmp_path):
    data, exact, vague = files
    before = sorted(tmp_path.rglob("*"))
    code, text, _ = evaluate(exact, vague, "--data", data, *QUICK, "--against", vague, "--all-columns")
    assert code == 0
    assert "other than vague" in text
    assert "GEG-Min" in text
    assert sorted(tmp_path.rglob("*")) == before


def test_captions_are_made_once_of_some_photos_that_are_drawn_alike_every_time(evaluate, files, small_model, tmp_path):
    data, exact, _ = files
    ids = []
    for out in (tmp_path / "a", tmp_path / "b"):
        request = (small_model, exact, "--data", data, "--photos", 5, *QUICK, "--self-retrieval", "--out", out)
        code, text, _ = evaluate(*request)
        assert (code, "self R@1" in text) == (0, True)
        (kept,) = (out / "captions").iterdir()
        assert kept.name == f"world.{small_model.name}.jsonl"
        ids.append([int(json.loads(line)["id"]) for line in kept.read_text().splitlines()])
    assert ids[0] == ids[1] == sorted(ids[0])  # in the order of the data
    assert len(set(ids[0])) == 5
    first = json.loads((out / "results.json").read_text())["world"][small_model.name]
    kept.write_text(kept.read_text().replace('"caption": "', '"caption": "KEPT '))
    assert evaluate(*request)[0] == 0
    second = json.loads((out / "results.json").read_text())["world"][small_model.name]
    assert second["AvgLen"] == pytest.approx(first["AvgLen"] + 1)


@pytest.mark.parametrize(
    ("log", "titled"),
    [('{"step": 2, "val/CIDEr-D": 0.5}\n{"step": 4, "val/CIDEr-D": 0.6}\n', True), ("no JSON", False), ("", False)],
)
def test_the_page_shows_how_a_run_was_trained_if_its_log_can_be_read(
    evaluate, files, small_model, tmp_path, log, titled
):
    data, _, vague = files
    run = shutil.copytree(small_model, tmp_path / "runs" / "trained")
    (run / "recipe.yaml").write_text("captioner: transformer\n")
    (run / "log.jsonl").write_text(log)
    assert evaluate(run, vague, "--data", data, *QUICK, "--out", tmp_path / "out")[0] == 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert ("Validation over steps" in page) is titled
    assert ("<title>trained, step 4: 60<" in page) is titled  # a point of the curve says what it is


def test_photos_that_cannot_be_used_are_named_and_the_rest_goes_on(evaluate, files, tmp_path):
    data, exact, vague = files
    (data.parent / "dog-street.png").unlink()
    said = json.loads(vague.read_text())
    del said["3"], said["4"]
    vague.write_text(json.dumps(said))
    code, _, err = evaluate(exact, vague, "--data", data, *QUICK, "--out", tmp_path / "out")
    assert code == 1
    assert "dog-street.png: there is no such file" in err
    assert "vague.json: no caption for 2 photos of world: '3', '4'" in err
    details = json.loads((tmp_path / "out" / "details.json").read_text())["world"]
    assert (details["photos"], details["measured"]) == (11, 9)


def test_what_reads_can_be_chosen_and_is_left_out_with_the_reason_where_it_is_missing(
    evaluate, files, monkeypatch, tmp_path
):
    data, exact, _ = files
    request = (exact, "--data", data, "--retriever", "text", "--metrics", "Rep", "--out", tmp_path / "out")
    assert evaluate(*request)[0] == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())["world"]["exact"]
    assert results.keys() == {"TT R@1[text]", "TT R@5[text]", "TT R@10[text]", "TT@6[text]", "Rep"}
    with monkeypatch.context() as patch:  # without the judge there is no group to be told apart in
        patch.setattr(run, "HERE", tmp_path)
        code, text, err = evaluate(exact, "--data", data, *QUICK)
        assert (code, "TT R@1" in text, "TT@6 is left out: " in err) == (0, True, True)

    def load(name, device="auto"):
        if name == "minilm":
            raise UserError("MiniLM is not installed.")
        return world.WordRetriever(name)

    monkeypatch.setattr(retrievers, "load", load)
    code, text, err = evaluate(exact, "--data", data, *QUICK)
    assert (code, "TT" in text) == (0, False)
    assert "world: TT is left out: MiniLM is not installed." in err


def test_captions_of_the_training_data_can_be_given(evaluate, files, tmp_path):
    """Of the exact captions one is a training caption; of people's, which have other words, none."""
    data, exact, _ = files
    (tmp_path / "training.json").write_text(json.dumps({"1": ["A cat on a street."], "2": ["a zebra"]}))
    asked = ("--metrics", "Novel", "--training", tmp_path / "training.json", "--out", tmp_path / "out")
    assert evaluate(exact, "human", "--data", data, "--retriever", "word", *asked)[0] == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())["world"]
    assert results["exact"]["Novel"] == pytest.approx(11 / 12)
    assert results["human"]["Novel"] == 1
