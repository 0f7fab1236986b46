"""What a wheel of this package has in it."""

import os
import subprocess
import sys
from pathlib import Path

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
