"""Files and functions stay short enough to be read at once."""

from __future__ import annotations

import ast

from tests.architecture.source import SourceFile, source_files

FILE_LINES = 500
FUNCTION_LINES = 60


def long_functions(file: SourceFile, limit: int = FUNCTION_LINES) -> list[str]:
    return [
        f"{file.path}:{node.lineno} {node.name} has {length} lines"
        for node in ast.walk(file.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > limit
    ]


def test_files_are_short() -> None:
    lengths = {file.path: len(file.text.splitlines()) for file in source_files()}
    assert {path: length for path, length in lengths.items() if length > FILE_LINES} == {}


def test_functions_are_short() -> None:
    assert [found for file in source_files() for found in long_functions(file)] == []


def test_the_check_sees_a_long_function() -> None:
    code = "def f():\n" + "    x = 1\n" * 3
    file = SourceFile(path="x.py", text=code, tree=ast.parse(code))
    assert long_functions(file, limit=3) == ["x.py:1 f has 4 lines"]
