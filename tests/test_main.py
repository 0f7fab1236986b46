import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tellapart as package
from tellapart.__main__ import COMMANDS


def modules_after(code):
    """The modules that are loaded in a fresh interpreter after running some code."""
    script = f"{code}\nimport sys; print('LOADED', *sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    return set(out.split("LOADED")[1].split())


HEAVY = {"torch", "numpy", "PIL", "yaml", "safetensors"}


def test_help_lists_every_command_and_loads_nothing_heavy(tellapart):
    code, out, _ = tellapart("--help")
    assert code == 0
    assert all(f"  {name} " in out for name in COMMANDS)
    assert not HEAVY & modules_after("from tellapart.__main__ import main; main(['--help'])")


def test_the_package_is_light_until_it_is_used():
    assert not HEAVY & modules_after("import tellapart; tellapart.__version__")
    assert callable(package.load)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing  # noqa: B018


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_has_an_example_and_does_not_load_torch(command):
    call = f"main(['{command}', '--help'])"
    code = f"from tellapart.__main__ import main\ntry: {call}\nexcept SystemExit as end: print(end.code)"
    script = f"{code}\nimport sys; print('LOADED', 'torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    help_text, loaded = out.split("LOADED")
    assert f"tellapart {command}" in help_text.split("example")[-1]
    assert help_text.splitlines()[-1] == "0"
    assert command == "train" or loaded.strip() == "False"


def test_captioning_loads_no_compiler():
    """Loading numba takes longer than a caption, and only measures and nearest photos need it."""
    photo = next(Path(package.__file__).parent.glob("album/photos/*.webp"))
    code = f"from tellapart.__main__ import main; main(['caption', {str(photo)!r}])"
    assert not {"numba", "scipy", "torch._dynamo"} & modules_after(code)


def test_a_misspelt_command_is_guessed(tellapart):
    code, out, err = tellapart("capton")
    assert (code, out) == (2, "")
    assert err == "tellapart: there is no command 'capton'; did you mean caption?\n"


def test_version(tellapart):
    printed = tellapart("--version")[1]
    assert re.fullmatch(
        rf"tellapart {re.escape(package.__version__)}( \(commit [0-9a-f]{{7,40}}(-dirty)?\))?\n", printed
    )


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_what_the_output_cannot_write_is_written_out(tmp_path, encoding):
    name = "\xfcn\xef \u732b \udce9.webp"
    code = f"import sys; from tellapart.__main__ import main; print(main(['lint', {name!r}]), {name!r})"
    environment = dict(os.environ, PYTHONIOENCODING=encoding)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=tmp_path, env=environment, check=True)
    expected = {
        "ascii": rb"2 \xfcn\xef \u732b " + b"\xe9.webp",
        "cp1252": b"2 \xfcn\xef " + rb"\u732b " + b"\xe9.webp",
        "utf-8": "2 \xfcn\xef \u732b ".encode() + b"\xe9.webp",
    }
    assert run.stdout.strip() == expected[encoding]
    assert b"Traceback" not in run.stderr
