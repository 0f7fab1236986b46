"""What `import tellapart` gives: names that completion shows, documentation whose examples work."""

import doctest
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import capscore
import tellapart
from tellapart import album


@pytest.fixture
def holiday(tmp_path, own_cache, monkeypatch):
    """Two photos that look alike and a copy of one, and a data file of them, as the examples name them."""
    (tmp_path / "holiday").mkdir()
    for number, name in (("205577", "a.jpg"), ("397404", "b.jpg"), ("205577", "copy of a.jpg")):
        shutil.copy(album.HERE / "photos" / f"coco_000000{number}.webp", tmp_path / "holiday" / name)
    records = [
        {"id": name, "file": f"holiday/{name}", "captions": [f"a red bus on street {name[0]}"] * 3, "split": split}
        for name, split in (("a.jpg", "train"), ("b.jpg", "val"))
    ]
    (tmp_path / "holiday.json").write_text(json.dumps({"dataset": "holiday", "images": records}))
    monkeypatch.chdir(tmp_path)


def in_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_completion_shows_the_public_names_before_any_was_used():
    shown = in_python("import sys, tellapart; print(*dir(tellapart)); print('torch' in sys.modules)").splitlines()
    assert set(tellapart.__all__) <= set(shown[0].split())
    assert shown[1] == "False"


@pytest.mark.slow
def test_all_names_can_be_imported_at_once():
    names = in_python("from tellapart import *; print(*globals())").split()
    assert set(tellapart.__all__) - {"__version__"} <= set(names)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="captoin"):
        _ = tellapart.captoin


def test_type_checkers_see_what_is_loaded_when_it_is_used():
    """Every public name is imported under TYPE_CHECKING from the module that it is loaded from."""
    text = Path(tellapart.__file__).read_text()
    for name, home in tellapart._HOME.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"    from {home} import ") and name in line]
        assert name in line.split(" import ")[1].split(", ")
    assert {*tellapart._HOME, "__version__"} == set(tellapart.__all__)


def documented():
    found = {name: getattr(tellapart, name) for name in tellapart.__all__ if name != "__version__"}
    for name in ("caption", "from_pretrained", "save_pretrained"):
        found[f"PhotoCaptioner.{name}"] = getattr(tellapart.PhotoCaptioner, name)
    from tellapart.neighbours.groups import Groups

    return found | {"Groups.sets": Groups.sets}


@pytest.mark.parametrize("name", documented())
def test_every_public_name_has_an_example_that_works(name, holiday):
    text = documented()[name].__doc__
    example = doctest.DocTestParser().get_doctest(
        text, {"capscore": capscore, "tellapart": tellapart}, name, None, None
    )
    assert example.examples
    output = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    failed, _ = runner.run(example, out=output.append)
    assert not failed, "".join(output)
