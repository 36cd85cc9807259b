"""No module needs itself: whatever is imported first, everything can be imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.architecture.source import SourceFile, source_files


def imported_modules(source: SourceFile, modules: frozenset[str]) -> Iterator[str]:
    """What a file imports when it is imported itself, the packages above included."""
    for node in source.tree.body:
        if not isinstance(node, ast.ImportFrom) or node.module is None or node.level:
            continue
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        found = [name if name in modules else node.module for name in names]
        for name in found:
            parts = name.split(".")
            yield from (".".join(parts[:end]) for end in range(2, len(parts) + 1))


def import_graph() -> dict[str, set[str]]:
    modules = frozenset(source.module for source in source_files())
    # A package is imported before its modules, and may import them: only what reaches back from outside is a cycle.
    return {
        source.module: {
            name
            for name in imported_modules(source, modules)
            if name in modules and not source.module.startswith(f"{name}.") and name != source.module
        }
        for source in source_files()
    }


def first_cycle(graph: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_by_a_detour():
    assert first_cycle(import_graph()) == []


@pytest.mark.parametrize(
    ("graph", "cycle"),
    [({"a": {"b"}, "b": {"c"}, "c": set()}, False), ({"a": {"b"}, "b": {"c"}, "c": {"a"}}, True)],
)
def test_a_cycle_is_found(graph: dict[str, set[str]], cycle: bool):
    assert bool(first_cycle(graph)) is cycle
