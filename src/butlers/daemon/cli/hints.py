"""Lines that name the commands to go on with.

Whoever said where the system is (`--data-dir`, `--config`) must say it again in the next command, so it is put into
every command that such a line names. Only lines that we wrote ourselves are hints: what others wrote stays as it is.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import typer

from butlers.operations.operation import Hint

_COMMAND = re.compile(
    r"\bbutlers (?:approvals rules [a-z-]+|(?:deliveries|dead-letters|approvals) [a-z-]+"
    r"|requests [a-z][a-z-]*|why|trace|requests)\b"
)
_WHERE = {"data_dir": "--data-dir", "config": "--config"}


def located(line: str, where: str) -> str:
    """The line with the whereabouts in each of its commands."""
    if not where or not isinstance(line, Hint):
        return line
    return _COMMAND.sub(lambda found: f"{found[0]} {where}", line)


def where_given(context: typer.Context) -> str:
    """The options that said where the system is, as they were given."""
    return " ".join(_given(context))


def _given(context: typer.Context) -> Iterator[str]:
    for name, option in _WHERE.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            yield f"{option} {shlex.quote(str(context.params[name]))}"
