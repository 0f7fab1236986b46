"""What a wheel of this package has in it."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import tellapart

ROOT = Path(__file__).parents[1]
BUILT = """
import sys
from setuptools import Distribution
distribution = Distribution({"script_name": "setup.py"})
distribution.parse_config_files()
distribution.get_command_obj("egg_info").egg_base = sys.argv[1]  # which it writes to, to know what there is
build = distribution.get_command_obj("build_py")
build.ensure_finalized()
print(*build.get_outputs(include_bytecode=False), sep="\\n")
"""


def test_a_wheel_has_types_and_recipes(tmp_path):
    """PEP 561: without py.typed, type checkers take nothing of the annotations.  Recipes are found by name."""
    done = subprocess.run(
        [sys.executable, "-c", BUILT, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    built = {Path(line) for line in done.stdout.splitlines() if line.startswith("build")}
    assert Path("build", "lib", "tellapart", "py.typed") in built
    assert Path("build", "lib", "tellapart", "recipe.py") in built  # or the list is of something else
    recipes = {file.relative_to(ROOT / "src") for file in (ROOT / "src" / "tellapart" / "recipes").glob("*/*.yaml")}
    assert len(recipes) > 50
    assert {Path("build", "lib") / file for file in recipes} <= built
    assert not os.path.lexists(ROOT / "build")  # nothing was built, only listed


SMALL = ("*.safetensors", "*.webp", "*.npz", "*.gz", "__pycache__", "*.egg-info", "commit.txt")  # left out: to be quick
BUILD = (
    "from setuptools.build_meta import *; names = build_sdist('out'), build_wheel('out'); print('', *names, sep='\\n')"
)


def git(folder, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b.org"]
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    """A small copy of this repository, with a commit of its own."""
    if shutil.which("git") is None:
        pytest.skip("no git here")
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns(*SMALL))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "all")
    return folder


def version_of(package):
    return runpy.run_path(str(package / "version.py"))


def test_a_working_copy_names_its_commit_and_a_build_the_one_it_was_made_of(checkout, tmp_path):
    package = checkout / "src" / "tellapart"
    assert version_of(package)["commit"]() == git(checkout, "rev-parse", "--short=12", "HEAD")
    (package / "errors.py").write_text("changed")
    assert version_of(package)["commit"]() == git(checkout, "rev-parse", "--short=12", "HEAD") + "-dirty"
    alone = tmp_path / "lib" / "site-packages" / "tellapart"  # installed somewhere, in somebody else's repository
    alone.mkdir(parents=True)
    git(tmp_path, "init", "--quiet")
    shutil.copy(package / "version.py", alone)
    assert version_of(alone)["commit"]() == ""
    (alone / "commit.txt").write_text("0123456789ab\n")
    assert version_of(alone)["commit"]() == "0123456789ab"


@pytest.mark.slow
def test_a_build_is_the_same_bytes_whenever_and_by_whom_it_is_made(checkout, tmp_path):
    other = tmp_path / "elsewhere" / "copy"
    shutil.copytree(checkout, other)
    for file in other.rglob("*.py"):
        os.utime(file, (10**9, 10**9))
        file.chmod(0o600)
    git(other, "config", "core.fileMode", "false")
    built = []
    for folder, umask in ((checkout, 0o022), (other, 0o077)):
        done = subprocess.run(
            [sys.executable, "-c", BUILD],
            cwd=folder,
            umask=umask,
            env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"},
            capture_output=True,
            text=True,
            check=True,
        )
        built.append({name: (folder / "out" / name).read_bytes() for name in done.stdout.splitlines()[-2:]})
    assert built[0].keys() == built[1].keys()
    assert built[0] == built[1]
    (wheel,) = [name for name in built[0] if name.endswith(".whl")]
    with zipfile.ZipFile(checkout / "out" / wheel) as archive:
        written = archive.read("tellapart/commit.txt").decode().strip()
    assert written == git(checkout, "rev-parse", "--short=12", "HEAD")


def test_the_page_of_licences_has_every_requirement():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: needs for name, needs in project["optional-dependencies"].items() if name != "dev"}
    page = (ROOT / "docs" / "licences.md").read_text()
    for needs in [project["dependencies"], *extras.values()]:
        for name in (re.match(r"[\w-]+", need)[0].lower().replace("_", "-") for need in needs):
            assert name == "tellapart" or f"\n| {name} | " in page, name
    assert all(f"\n| `{name}` | " in page for name in extras)


def test_each_extra_is_tried_by_a_command_or_by_tests_that_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    tried = runpy.run_path(str(ROOT / "scripts" / "check_package.py"))["TRIED"]
    assert set(tried) == set(extras) - {"dev"}
    for name, command in tried.items():
        first, *rest = command.split()
        if first != "tellapart":
            words = rest[1] if "-k" in rest else "test_"
            assert re.search(rf"def test_\w*{words.removeprefix('test_')}", (ROOT / first).read_text()), name
        assert f"`{command}`" in (ROOT / "docs" / "licences.md").read_text(), name


def test_the_citation_is_of_this_version():
    assert f"\nversion: {tellapart.__version__}\n" in (ROOT / "CITATION.cff").read_text()
