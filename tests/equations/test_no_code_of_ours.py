"""What is tried in this folder is the papers' mathematics, not this project."""

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def imported(source):
    nodes = list(ast.walk(ast.parse(source)))
    modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return modules + [a.name for node in nodes if isinstance(node, ast.Import) for a in node.names]


@pytest.mark.parametrize("file", sorted(HERE.rglob("*.py")), ids=lambda file: file.stem)
def test_nothing_of_ours_is_imported(file):
    assert not any("twinsolve" in name for name in imported(file.read_text()))
