"""Which package may import which: data flows one way, and the folder names say so (docs/architecture.md)."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src" / "tellapart"
# Each line may import itself and the lines above it.
ORDER = (
    "errors version telemetry paths parallel numerics hub html plugins journals distributed",
    "onnx databases web",
    "data",
    "recipe recipe_files",
    "encoders",
    "features detectors",
    "captioners retrievers metrics taggers",
    "album",
    "models",
    "decoding neighbours",
    "rewards",
    "objectives trainers protocols",
    "captioning",
    "training",
    "evaluation",
    "adapting",
    "desk study",
    "commands __init__ __main__",
)
LEVEL = {name: level for level, line in enumerate(ORDER) for name in line.split()}


def part(module):
    """The package or module of ours right below the top."""
    return module.split(".")[1] if "." in module else "__init__"


def imports(file):
    """What a file imports of ours at its top and inside functions; types alone do not count."""
    tree = ast.parse(file.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tellapart":
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "tellapart" else [node.module]
            )
            yield from names
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "tellapart")


def test_a_module_imports_only_what_stands_above_it():
    wrong = []
    for file in sorted(ROOT.rglob("*.py")):
        own = part("tellapart." + ".".join(file.relative_to(ROOT).with_suffix("").parts))
        assert own in LEVEL, f"{own} has no place in the order"
        wrong += [f"{file.relative_to(ROOT)}: {name}" for name in imports(file) if LEVEL[part(name)] > LEVEL[own]]
    assert wrong == []


def test_the_scorer_imports_neither_us_nor_torch():
    scorer = ROOT.parents[1] / "packages" / "capscore" / "src" / "capscore"
    allowed = {"capscore", "numba", "numpy", *sys.stdlib_module_names}
    wrong = []
    for file in sorted(scorer.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            wrong += [f"{file.name}: {name}" for name in names if name and name.split(".")[0] not in allowed]
    assert wrong == []
