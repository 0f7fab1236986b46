"""A file is an idea, and a function is a thought: neither grows past what one reads in a sitting."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted(
    file for part in ("src", "tests", "benchmarks", "scripts", "campaigns") for file in (ROOT / part).rglob("*.py")
)
MOST_LINES = 449  # of a file
MOST_LINES_OF_A_FUNCTION = 80  # from `def` to its last line


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("part", ["src", "tests", "benchmarks", "scripts", "campaigns"])
def test_no_file_and_no_function_is_too_long(part):
    long = []
    for file in FILES:
        name = file.relative_to(ROOT)
        if name.parts[0] != part:
            continue
        text = file.read_text()
        if (lines := len(text.splitlines())) > MOST_LINES:
            long.append(f"{name} has {lines} lines")
        for function in functions(ast.parse(text)):
            lines = function.end_lineno - function.lineno + 1
            if lines > MOST_LINES_OF_A_FUNCTION:
                long.append(f"{name}: {function.name} has {lines} lines")
    assert long == []


def test_there_are_files_to_measure():
    assert {file.relative_to(ROOT).parts[0] for file in FILES} == {"src", "tests", "benchmarks", "scripts", "campaigns"}
