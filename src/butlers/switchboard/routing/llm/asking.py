"""Asking the butler's runtime without giving it tools.

The runtimes are those of every butler; what is added here takes their tools away, each in the words of its program. As
a program may know tools that these words do not reach (a server that its user has configured), an answer that was made
with a tool does not count either.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from uuid import UUID

from butlers.butler.activity import Report
from butlers.butler.config import RuntimeSection
from butlers.butler.runtime import Prompt, RuntimeResult
from butlers.butler.runtimes import DIALECTS, build_runtime
from butlers.butler.runtimes.cli import CliRuntime, Dialect
from butlers.butler.sessions import Spawner, Wish
from butlers.clock import Clock
from butlers.errors import ClassificationError
from butlers.storage.database import Database
from butlers.telemetry import Telemetry

_CLAUDE = ("--tools", "", "--strict-mcp-config")
_CODEX = ("--sandbox", "read-only", "--config", "features.shell_tool=false", "--config", 'web_search="disabled"')
_OPENCODE = {"OPENCODE_CONFIG_CONTENT": json.dumps({"permission": {"*": "deny"}})}


class Asker(Spawner):
    """Sessions that answer one question each, recorded as all sessions are."""

    async def pose(self, prompt: Prompt, *, trigger_source: str, request_id: UUID | None) -> RuntimeResult:
        wish = Wish(prompt=prompt, said=prompt.text, trigger_source=trigger_source, request_id=request_id)
        result = await self._session(wish)
        if result.tool_calls:
            raise ClassificationError("the model used tools, which it has none of")
        return result


def build_askers(
    section: RuntimeSection,
    models: Iterable[str | None],
    *,
    timeout_s: float,
    environ: Mapping[str, str],
    database: Database,
    schema: str,
    clock: Clock,
    new_id: Callable[[], UUID],
    telemetry: Telemetry,
    report: Report,
) -> dict[str | None, Asker]:
    """One per model; None stands for the runtime's own."""
    return {
        model: Asker(
            runtime=_runtime(section, model or section.model, environ, clock),
            instructions="",
            database=database,
            schema=schema,
            clock=clock,
            new_id=new_id,
            telemetry=telemetry,
            max_concurrent=section.max_concurrent_sessions,
            timeout_s=timeout_s,
            report=report,
        )
        for model in {None, *models}
    }


def without_tools(dialect: Dialect) -> Dialect:
    match dialect.name:
        case "claude":
            return replace(dialect, arguments=lambda model: [*dialect.arguments(model), *_CLAUDE])
        case "codex":  # what ends its arguments says where the prompt is
            return replace(dialect, arguments=lambda model: _before_last(dialect.arguments(model), _CODEX))
        case _:
            fixed = dict(dialect.fixed_environment) | _OPENCODE
            return replace(dialect, fixed_environment=tuple(fixed.items()))


def _runtime(section: RuntimeSection, model: str | None, environ: Mapping[str, str], clock: Clock) -> CliRuntime:
    build_runtime(section.type, model, section.command, clock=clock, environ=environ)  # refuses what cannot be
    return CliRuntime(
        dialect=without_tools(DIALECTS[section.type]),
        model=model,
        command=section.command,
        clock=clock,
        environ=environ,
    )


def _before_last(arguments: list[str], more: tuple[str, ...]) -> list[str]:
    return [*arguments[:-1], *more, arguments[-1]]
