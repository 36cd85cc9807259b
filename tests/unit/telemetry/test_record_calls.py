"""Every recording of a metric or span in the source, looked at without running it.

An attribute that is not declared raises when it is recorded; this finds it on paths that no test walks, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import butlers
from butlers.telemetry import catalogue, spans

SOURCE = Path(butlers.__file__).parent
RECORDERS = {"count": catalogue, "observe": catalogue, "gauge": catalogue, "span": spans}
OWN_PARAMETERS = {"n", "value", "request_id", "parent", "between"}


def recordings(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Calls such as `self._telemetry.count(ROUTE_EXECUTED, outcome=...)`, with the metrics or spans they name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in RECORDERS:
            receiver = node.func.value
            name = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
            if name.lstrip("_") == "telemetry" and node.args:
                for constant in constants(node.args[0]):
                    yield node, constant


def constants(expression: ast.expr) -> list[str]:
    if isinstance(expression, ast.IfExp):
        return constants(expression.body) + constants(expression.orelse)
    name = expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")
    return [name] if name.isupper() else []


def complaints(source: str) -> list[str]:
    found = []
    for call, name in recordings(ast.parse(source)):
        assert isinstance(call.func, ast.Attribute)
        declared = getattr(RECORDERS[call.func.attr], name).attributes
        given = {keyword.arg for keyword in call.keywords if keyword.arg}
        found += [f"{call.lineno}: {name} does not declare {a}" for a in given - declared - OWN_PARAMETERS]
    return found


def test_every_recording_uses_declared_attributes() -> None:
    offenders = [
        f"{path.relative_to(SOURCE)}:{found}"
        for path in sorted(SOURCE.rglob("*.py"))
        for found in complaints(path.read_text(encoding="utf-8"))
    ]
    assert offenders == []


def test_the_check_sees_an_undeclared_attribute() -> None:
    assert complaints("self._telemetry.count(ROUTE_EXECUTED, 1, chat=7)") == ["1: ROUTE_EXECUTED does not declare chat"]
    assert complaints("telemetry.count(MESSAGE_RECEIVED if x else MESSAGE_DEDUPLICATED, policy_tier=t)") == [
        "1: MESSAGE_DEDUPLICATED does not declare policy_tier"
    ]
    assert complaints("with telemetry.span(spans.REQUEST, request_id=r, text=t): pass") == [
        "1: REQUEST does not declare text"
    ]
    assert complaints("telemetry.observe(ROUTE_LATENCY, 5, outcome='ok')") == []
