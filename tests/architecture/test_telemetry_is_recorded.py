"""A metric or span that nothing records is a promise that `/metrics` and the traces do not keep."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import ModuleType

from butlers.telemetry import catalogue, spans
from butlers.telemetry.catalogue import CATALOGUE, Metric
from butlers.telemetry.spans import SPANS, SpanName
from tests.architecture.source import last_name, source_files

RECORDERS = ("count", "observe", "gauge")


def recorded(tree: ast.AST, *recorders: str) -> Iterator[str]:
    """Names of constants that stand in the first argument of `...telemetry.count(...)` and the like."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_recording(node.func, recorders) and node.args:
            yield from (name for part in ast.walk(node.args[0]) if (name := _name(part)).isupper())


def _is_recording(called: ast.expr, recorders: tuple[str, ...]) -> bool:
    """On the telemetry of a butler, or on Messenger's observer, which adds the labels of a delivery."""
    on_telemetry = isinstance(called, ast.Attribute) and last_name(called.value).lstrip("_") in (
        "telemetry",
        "observer",
    )
    return on_telemetry and last_name(called) in recorders


def _name(node: ast.AST) -> str:
    return last_name(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def recorded_anywhere(*recorders: str) -> set[str]:
    return {name for file in source_files() for name in recorded(file.tree, *recorders)}


def declared(module: ModuleType, kind: type) -> dict[str, object]:
    return {name: thing for name, thing in vars(module).items() if isinstance(thing, kind)}


def test_every_metric_is_recorded() -> None:
    assert declared(catalogue, Metric).keys() - recorded_anywhere(*RECORDERS) == set()


def test_every_span_is_opened() -> None:
    assert declared(spans, SpanName).keys() - recorded_anywhere("span") == set()


def test_everything_declared_is_in_the_catalogue() -> None:
    assert {id(metric) for metric in CATALOGUE} == set(map(id, declared(catalogue, Metric).values()))
    assert {id(span) for span in SPANS} == set(map(id, declared(spans, SpanName).values()))


def test_the_check_sees_a_recording() -> None:
    code = "self._telemetry.count(ONE if new else TWO, n)\ntelemetry.span(spans.THREE)\nother.count(FOUR)"
    assert set(recorded(ast.parse(code), *RECORDERS, "span")) == {"ONE", "TWO", "THREE"}
