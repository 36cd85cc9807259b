"""Every log call of the source, looked at without running it.

The event is a constant, so nothing that people wrote can be built into it, and the fields are listed ones, so no call
waits to raise on a path that no test walks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import butlers
from butlers.telemetry.log_fields import FIELDS

SOURCE = Path(butlers.__file__).parent
LEVELS = {"debug", "info", "warning", "error"}
LOGGERS = {"log", "_log"}


def log_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls such as `log.info(...)` and `self._log.info(...)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
            receiver = node.func.value
            name = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
            if name in LOGGERS:
                yield node


def is_constant(event: ast.expr) -> bool:
    if isinstance(event, ast.IfExp):
        return is_constant(event.body) and is_constant(event.orelse)
    return isinstance(event, ast.Constant)


def complaint(call: ast.Call) -> str | None:
    if not call.args or not is_constant(call.args[0]):
        return "the event is not a constant"
    unknown = {keyword.arg for keyword in call.keywords if keyword.arg} - FIELDS - {"error", "exc_info"}
    return f"not a log field: {', '.join(sorted(unknown))}" if unknown else None


def complaints(source: str) -> list[str]:
    found = ((call.lineno, complaint(call)) for call in log_calls(ast.parse(source)))
    return [f"{line}: {what}" for line, what in found if what]


def test_every_log_call_has_a_constant_event_and_listed_fields() -> None:
    offenders = [
        f"{path.relative_to(SOURCE)}:{found}"
        for path in sorted(SOURCE.rglob("*.py"))
        for found in complaints(path.read_text(encoding="utf-8"))
    ]
    assert offenders == []


def test_the_check_sees_a_built_event_and_a_stray_field() -> None:
    assert complaints('self._log.info(f"got {text}")') == ["1: the event is not a constant"]
    assert complaints('log.info("got " + text if x else "none")') == ["1: the event is not a constant"]
    assert complaints('log.info("got", payload=1)') == ["1: not a log field: payload"]
    assert complaints('log.error("a" if x else "b", error=e, request_id=1)') == []
