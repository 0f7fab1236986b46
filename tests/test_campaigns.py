"""The campaigns in short, and every input that one of them failed on."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from campaigns import fuzz, network
from campaigns.__main__ import CAMPAIGNS
from campaigns.kinds import KINDS

from support import browser
from tellapart.__main__ import COMMANDS

ROOT = Path(__file__).parent.parent
pytest.importorskip("av", reason="clips")
pytest.importorskip("onnx", reason="graphs")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Valid files of each kind, made once."""
    made = {}

    def of(kind):
        if kind.name not in made:
            made[kind.name] = tmp_path_factory.mktemp("kind")
            kind.seeds(made[kind.name])
        return made[kind.name]

    return of


def test_modules_that_readers_need_are_there():
    assert all(find_spec(kind.needs) for kind in KINDS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_files_made_wrong_at_random_are_taken_or_refused_in_one_sentence(kind, whole, tmp_path):
    names = sorted(path.name for path in whole(kind).iterdir())
    assert names
    if kind.name not in ("caption files", "tables"):  # which are forms that several readers share
        for name in names[:4]:
            kind.read(fuzz.place(kind, whole(kind), tmp_path / "work", name, (whole(kind) / name).read_bytes()))
    wrong = []
    for number in range(12):
        path = fuzz.place(kind, whole(kind), tmp_path / "work", *fuzz.made(kind, whole(kind), 1, number))
        wrong += [(number, sentence)] if (sentence := fuzz.wrong_with(kind.read, path)) else []
    assert wrong == []


def kept():
    by_name = {kind.name.replace(" ", "_"): kind for kind in KINDS}
    return [pytest.param(by_name[path.parent.name], path, id=path.name) for path in sorted(fuzz.SEEDS.glob("*/*"))]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "path"), kept())
def test_inputs_that_failed_once_do_not_fail_again(kind, path, whole, tmp_path):
    name = path.name.partition("-")[2]
    assert fuzz.wrong_with(kind.read, fuzz.place(kind, whole(kind), tmp_path / "work", name, path.read_bytes())) == ""


def test_an_input_is_made_again_by_its_number_and_differs_from_what_it_was_made_of(whole):
    kind = KINDS[0]
    made = [fuzz.made(kind, whole(kind), 0, number) for number in range(30)]
    assert made == [fuzz.made(kind, whole(kind), 0, number) for number in range(30)]
    assert sum(data != (whole(kind) / name).read_bytes() for name, data in made) > 20
    assert len({data for _, data in made}) > 20


def test_the_usual_size_is_that_of_a_release():
    counts = dict(zip((kind.name for kind in KINDS), fuzz.shared(KINDS, CAMPAIGNS["fuzz"][1]), strict=True))
    assert CAMPAIGNS["kill"][1] == 300
    assert counts["photos"] + counts["photos that are written into"] == 10_000
    assert 5_000 <= sum(counts.values()) - 10_000 < 5_000 + len(KINDS)


def test_failures_are_failures(tmp_path):
    from capscore.errors import UserError

    def refuse(sentence):
        def read(_):
            raise UserError(sentence)

        return read

    assert fuzz.wrong_with(refuse("a.jpg: is damaged"), tmp_path) == ""
    assert "a refusal of 2 lines" in fuzz.wrong_with(refuse("a.jpg: is\ndamaged"), tmp_path)
    assert fuzz.wrong_with(lambda _: {}["key"], tmp_path).startswith("KeyError at test_campaigns.py:")


def test_every_command_is_asked_whether_it_turns_to_the_network():
    assert set(network.requests(Path("w"), Path("out"))) == set(COMMANDS)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits and guards are Linux's")
@pytest.mark.parametrize(
    "request_",
    [
        ("kill", "--count", "4", "--only", "write in-file,pool --serve"),
        ("fuzz", "--count", "60", "--only", "sidecars"),
        ("load", "--count", "8"),
        ("senders", "--count", "3"),
        ("resources", "--count", "12", "--only", "broken"),
        ("network", "--only", "models,serve"),
        ("links", "--count", "3", "--only", "write"),
        pytest.param(
            ("pages", "--count", "100"), marks=pytest.mark.skipif(browser.CHROMIUM is None, reason="needs Chromium")
        ),
    ],
    ids=lambda request_: request_[0],
)
def test_a_campaign_finds_its_planted_faults_and_nothing_else(request_):
    done = subprocess.run([sys.executable, "-m", "campaigns", *request_], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    table = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert any("planted" in line and "| found |" in line for line in table)
    assert "NOT FOUND" not in done.stdout
