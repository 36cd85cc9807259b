"""House rules that no linter carries: no hidden state, no hidden input, no hidden output, nothing left undone."""

from __future__ import annotations

import ast
import importlib
import logging
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import is_dataclass
from datetime import date, timedelta
from enum import Enum
from pathlib import PurePath
from struct import Struct
from types import GenericAlias, MappingProxyType, ModuleType, UnionType
from typing import Any, TypeVar

import pyarrow as pa
import typer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pyspark.sql.types import DataType

from butlers.telemetry.logs import Logger
from tests.architecture.source import PACKAGE, ROOT, SourceFile, source_files

MAY_PRINT = {
    "daemon/cli/": "commands speak to people",
    "daemon/serve.py": "the system says its steps and its addresses to whoever started it",
    "pipeline/progress.py": "how far a job is, for whoever started it",
    "daemon/simulator_servers.py": "one line that the parent process waits for",
}
MAY_READ_ENVIRONMENT = {
    "daemon/": "the composition root reads it and hands it on",
    "pipeline/process.py": "a job's process inherits it; the database's address comes that way",
    "pipeline/session.py": "Spark's Java and its Python workers take their settings from it",
    "storage/server_programs.py": "the embedded server's programs inherit it, without the caller's PG* variables",
}
# Objects at module level that are neither values nor constants.
MAY_LIVE_IN_A_MODULE = (
    Logger,  # a name; where lines go is set by the process
    logging.Logger,
    typer.Typer,  # the command line is declared, as typer wants it
    TraceContextTextMapPropagator,  # has no state, only methods
    DataType,  # Spark's and Arrow's description of a column; nobody adds to one
    pa.DataType,
    ContextVar,  # a name; what it holds belongs to whoever is running
)
PLAIN = (str, int, float, bytes, type(None), re.Pattern, Struct, date, timedelta, PurePath, Enum)
TYPES = (type, TypeVar, GenericAlias, UnionType, ModuleType)
CHANGES = frozenset(
    {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}
)
UNFINISHED = re.compile(r"\b(TO" + "DO|FIX" + "ME|XX" + "X|HA" + r"CK)\b")


# --- state -----------------------------------------------------------------------------------------------------------


def assigned_names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def is_value(thing: Any) -> bool:
    """Whether nobody can change it; containers count as values as long as nobody does (see below)."""
    if isinstance(thing, PLAIN + TYPES + MAY_LIVE_IN_A_MODULE) or callable(thing):
        return True
    if isinstance(thing, Mapping | MappingProxyType):
        return all(map(is_value, thing.values()))
    if isinstance(thing, list | tuple | set | frozenset):
        return all(map(is_value, thing))
    if is_dataclass(thing):
        return bool(getattr(thing, "__dataclass_params__").frozen)  # noqa: B009 - has no public name
    return type(thing).__module__ == "typing"


def living_things(file: SourceFile) -> Iterator[str]:
    module = importlib.import_module(file.module)
    for name in assigned_names(file.tree):
        if not is_value(thing := getattr(module, name)):
            yield f"{file.path}: {name} is a {type(thing).__qualname__}"


def test_modules_hold_values_and_nothing_that_lives() -> None:
    importable = [file for file in source_files() if not file.path.endswith("__main__.py")]
    assert [thing for file in importable for thing in living_things(file)] == []


def changes(file: SourceFile) -> Iterator[str]:
    names = set(assigned_names(file.tree))
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Global):
            yield f"{file.path}:{node.lineno}: global {', '.join(node.names)}"
        if isinstance(changed := _changed(node), ast.Name) and changed.id in names:
            yield f"{file.path}:{changed.lineno}: {changed.id} is changed"


def _changed(node: ast.AST) -> ast.expr | None:
    """`x` of `x[1] = 2`, `del x[1]` and `x.append(2)`."""
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
        return node.func.value
    return None


def test_nobody_changes_what_a_module_holds() -> None:
    assert [change for file in source_files() for change in changes(file)] == []


def test_the_checks_see_state() -> None:
    code = "SEEN = {}\nclass Box: pass\nBOX = Box()\ndef see(x):\n    global BOX\n    SEEN[x] = 1\n    SEEN.pop(x)"
    file = SourceFile(path="x.py", text=code, tree=ast.parse(code))
    assert list(changes(file)) == ["x.py:5: global BOX", "x.py:6: SEEN is changed", "x.py:7: SEEN is changed"]
    assert is_value(MAY_PRINT)
    assert not is_value(object())
    assert not is_value({"key": object()})


# --- input and output ------------------------------------------------------------------------------------------------


def uses_of(name: str) -> set[str]:
    return {file.path for file in source_files() if name in {seen for _, seen in file.references}}


def prints(file: SourceFile) -> bool:
    calls = (node.func for node in ast.walk(file.tree) if isinstance(node, ast.Call))
    return any(isinstance(called, ast.Name) and called.id in ("print", "input") for called in calls)


def outside(paths: set[str], allowed: Mapping[str, str]) -> set[str]:
    return {path for path in paths if not path.startswith(tuple(allowed))}


def test_only_commands_print() -> None:
    printing = {file.path for file in source_files() if prints(file)}
    assert outside(printing, MAY_PRINT) == set()
    assert {place for place in MAY_PRINT if not any(path.startswith(place) for path in printing)} == set()


def test_only_the_composition_root_reads_the_environment() -> None:
    reading = uses_of("os.environ") | uses_of("os.getenv") | uses_of("os.environb")
    assert outside(reading, MAY_READ_ENVIRONMENT) == set()
    assert {place for place in MAY_READ_ENVIRONMENT if not any(path.startswith(place) for path in reading)} == set()


# --- nothing left undone ---------------------------------------------------------------------------------------------


def test_nothing_is_left_for_later() -> None:
    folders = (PACKAGE, ROOT / "tests", ROOT / "scripts", ROOT / "roster")
    paths = [path for folder in folders for path in folder.rglob("*") if path.suffix in ("", ".py", ".sql", ".toml")]
    left = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in paths
        if path.is_file()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if UNFINISHED.search(line)
    ]
    assert left == []


def test_nothing_is_a_stub() -> None:
    assert [file.path for file in source_files() if "NotImplemented" + "Error" in file.text] == []


def test_the_check_sees_what_is_left() -> None:
    assert UNFINISHED.search("# TO" + "DO: later")
    assert not UNFINISHED.search("# todos are named in prose")
