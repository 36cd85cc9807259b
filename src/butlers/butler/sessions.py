"""LLM (or local) sessions: bounded in number, timed, and recorded from start to end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from butlers.butler.activity import Report, unreported
from butlers.butler.runtime import Prompt, Runtime, RuntimeResult
from butlers.clock import Clock
from butlers.errors import ClassifiedError, InternalError
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger
from butlers.telemetry.catalogue import SESSIONS
from butlers.telemetry.telemetry import Telemetry

log = get_logger("butlers.sessions")


NO_MESSAGE = "(nobody wrote anything; carry out the task above)"
OWNER = "owner"  # who speaks where no sender is known


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSession:
    """A session that came to a good end, for whoever remembers it."""

    session_id: UUID
    trigger_source: str
    request_id: UUID | None
    runtime: str
    speaker: str
    text: str  # what somebody wrote, or the task of an operator
    answered: str


Observer = Callable[[EndedSession], Awaitable[None]]


class Spawner:
    """Runs prompts in the butler's runtime."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        instructions: str,
        database: Database,
        schema: str,
        clock: Clock,
        new_id: Callable[[], UUID],
        telemetry: Telemetry,
        max_concurrent: int,
        timeout_s: float,
        report: Report = unreported,
    ) -> None:
        self._runtime = runtime
        self.runtime_name = runtime.name
        self._instructions = instructions
        self._database = database
        self._queries = Queries.load("butlers.butler", schema=schema)
        self._clock = clock
        self._new_id = new_id
        self._telemetry = telemetry
        self._slots = asyncio.Semaphore(max_concurrent)
        self._timeout_s = timeout_s
        self._report = report
        self._observers: list[Observer] = []

    def observe(self, observer: Observer) -> None:
        """Tell it of every session that ends well."""
        self._observers.append(observer)

    async def instruct(self, task: str, *, trigger_source: str) -> RuntimeResult:
        """Carry out what an operator wrote: a schedule's prompt, or a trigger."""
        prompt = Prompt(system=f"{self._instructions}\n\n{task}".strip(), text=NO_MESSAGE)
        return await self._session(prompt, task, trigger_source)

    async def answer(self, text: str, *, trigger_source: str, request_id: UUID, speaker: str = OWNER) -> RuntimeResult:
        """Answer what somebody wrote. The text is data, whatever it says."""
        prompt = Prompt(system=self._instructions, text=text)
        return await self._session(prompt, text, trigger_source, speaker=speaker, request_id=request_id)

    async def ask(self, task: str, data: str, *, trigger_source: str) -> RuntimeResult:
        """A question of the program's own about data, without the instructions that are meant for conversations."""
        return await self._session(Prompt(system=task, text=data), data, trigger_source)

    async def _session(
        self, prompt: Prompt, text: str, trigger_source: str, *, speaker: str = OWNER, request_id: UUID | None = None
    ) -> RuntimeResult:
        async with self._slots:
            session_id = self._new_id()
            await self._database.execute(
                self._queries.start_session,
                session_id,
                trigger_source,
                request_id,
                self.runtime_name,
                None,
                self._clock.now(),
            )
            summary = {"session_id": str(session_id), "trigger_source": trigger_source, "runtime": self.runtime_name}
            summary |= {"request_id": str(request_id)} if request_id else {}
            try:
                result = await self._run(session_id, prompt)
            except ClassifiedError as error:
                description = f"{error.error_class.value}: {error.message}"
                self._report("session", summary, result="failed", error=description)
                raise
            self._report("session", summary, result="completed", error=None)
        ended = EndedSession(
            session_id=session_id,
            trigger_source=trigger_source,
            request_id=request_id,
            runtime=self.runtime_name,
            speaker=speaker,
            text=text,
            answered=result.text,
        )
        for observer in self._observers:
            try:
                await observer(ended)
            except Exception as error:  # the answer is there, and must not be spoilt
                log.error("session not remembered", error=error, session_id=session_id)
        return result

    async def _run(self, session_id: UUID, prompt: Prompt) -> RuntimeResult:
        started = self._clock.monotonic()
        try:
            result = await self._runtime.run(prompt, timeout_s=self._timeout_s)
        except ClassifiedError as error:
            await self._end_failed(session_id, started, error)
            raise
        except Exception as error:
            failure = InternalError(f"the runtime failed unexpectedly ({type(error).__name__})")
            await self._end_failed(session_id, started, failure)
            raise failure from error
        if result.tool_calls:
            # The programs get no tools; one that their user has configured may have slipped in.
            refused = InternalError(f"{self.runtime_name} used a tool, which sessions have none of; nothing was kept")
            await self._end_failed(session_id, started, refused)
            raise refused
        await self._end(session_id, started, status="completed", result=result)
        return result

    async def _end_failed(self, session_id: UUID, started: float, error: ClassifiedError) -> None:
        log.warning("session failed", session_id=session_id, error=error, error_class=error.error_class)
        await self._end(session_id, started, status="failed", error=error)

    async def _end(
        self,
        session_id: UUID,
        started: float,
        *,
        status: str,
        result: RuntimeResult | None = None,
        error: ClassifiedError | None = None,
    ) -> None:
        self._telemetry.count(SESSIONS, 1, outcome=status)
        await self._database.execute(
            self._queries.end_session,
            session_id,
            status,
            result.text if result else None,
            error.error_class.value if error else None,
            error.message if error else None,
            result.model if result else None,
            result.input_tokens if result else None,
            result.output_tokens if result else None,
            int((self._clock.monotonic() - started) * 1000),
            self._clock.now(),
        )

    async def close_lost(self) -> None:
        """Mark sessions that a dead process left running."""
        now = self._clock.now()
        await self._database.execute(
            self._queries.fail_lost_sessions, now - timedelta(seconds=self._timeout_s + 5), now
        )

    async def list(self, *, before: UUID | None, limit: int) -> list[dict[str, Any]]:
        rows = await self._database.fetch(self._queries.list_sessions, before, limit)
        return [dict(row) for row in rows]

    async def get(self, session_id: UUID) -> dict[str, Any] | None:
        row = await self._database.fetchrow(self._queries.get_session, session_id)
        return dict(row) if row else None
