"""Asking the butler's runtime for a decision: sessions as all are, without tools (`butler/runtimes`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from uuid import UUID

from butlers.butler.activity import Report
from butlers.butler.config import RuntimeSection
from butlers.butler.runtime import Prompt, RuntimeResult
from butlers.butler.runtimes import build_runtime
from butlers.butler.sessions import Spawner, Wish
from butlers.clock import Clock
from butlers.storage.database import Database
from butlers.telemetry import Telemetry


class Asker(Spawner):
    """Sessions that answer one question each, recorded as all sessions are."""

    async def pose(self, prompt: Prompt, *, trigger_source: str, request_id: UUID | None) -> RuntimeResult:
        wish = Wish(prompt=prompt, said=prompt.text, trigger_source=trigger_source, request_id=request_id)
        return await self._session(wish)


def build_askers(
    section: RuntimeSection,
    models: Iterable[str | None],
    *,
    timeout_s: float,
    environ: Mapping[str, str],
    hidden: tuple[Path, ...],
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
            runtime=build_runtime(
                section.type,
                model or section.model,
                section.command,
                clock=clock,
                environ=environ,
                hidden=hidden,
            ),
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
