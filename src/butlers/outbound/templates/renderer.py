"""The parent's side of the template engine: one worker process, bounded in time, memory and size.

    sources + values  ->  Isolate  ->  engine.render_document  ->  JSON  ->  checked sizes  ->  parts

Whatever the worker does not survive is the fault of what it was given, so it becomes a `ValidationError`: it would fail
again. Only a worker that could not start is `TargetUnavailable`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import pydantic
from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic_core import to_json

from butlers.contracts.envelope import MAX_IDENTITY, MAX_TEXT, invalid
from butlers.errors import TargetUnavailable, ValidationError
from butlers.isolation.isolate import FailureKind, Isolate, IsolationFailed, IsolationLimits

# Honest templates take about a millisecond; a hostile one keeps the next caller waiting for this long at most.
LIMITS: Final = IsolationLimits(
    deadline_s=15.0, cpu_s=2, memory_bytes=256 * 1024 * 1024, answer_bytes=8 * 1024 * 1024, calls=10_000
)
_ENGINE: Final = "butlers.outbound.templates.engine"
_LONGEST: Final[Mapping[str, int]] = {"subject": MAX_IDENTITY, "text": MAX_TEXT, "html": MAX_TEXT}  # characters
_FAILURES: Final[Mapping[FailureKind, str]] = {
    FailureKind.DEADLINE: "takes too long to render",
    FailureKind.MEMORY: "needs too much memory to render",
    FailureKind.CRASHED: "cannot be rendered: it is nested too deeply or otherwise breaks the engine",
}


class _Refusal(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)
    part: str
    problem: str


class _Answer(BaseModel):
    """What the worker says; exactly one of the three."""

    model_config = ConfigDict(frozen=True, strict=True)
    parts: dict[str, str] | None = None
    names: dict[str, list[str]] | None = None
    refused: _Refusal | None = None


class Renderer:
    """Renders and examines sources; refusals name the part below `field`."""

    def __init__(self, limits: IsolationLimits = LIMITS) -> None:
        self._limits = limits
        self._isolate: Isolate | None = None
        self._engine: Any = None
        self._closed = False
        self._answer = TypeAdapter(_Answer)

    async def names(
        self, parts: Mapping[str, str], types: Mapping[str, str] | None, *, field: str
    ) -> dict[str, frozenset[str]]:
        """The names that each part takes from outside; with types of variables, the parts are also tried."""
        answer = await self._call("examine_document", {"parts": parts, "types": types}, field=field)
        if answer.names is None:
            raise invalid(field, _FAILURES[FailureKind.CRASHED])
        return {part: frozenset(names) for part, names in answer.names.items()}

    async def render(self, parts: Mapping[str, str], variables: Mapping[str, Any], *, field: str) -> dict[str, str]:
        """The parts with these values: subject, text, html. A text is never blank."""
        answer = await self._call("render_document", {"parts": parts, "variables": variables}, field=field)
        if answer.parts is None:
            raise invalid(field, _FAILURES[FailureKind.CRASHED])
        for part, text in answer.parts.items():
            if len(text) > _LONGEST[part]:
                raise invalid(f"{field}.{part}", f"is longer than {_LONGEST[part]} characters with these values")
        if not answer.parts["text"].strip():
            raise invalid(f"{field}.text", "is empty with these values")
        return answer.parts

    async def close(self) -> None:
        self._closed = True
        if self._isolate is not None:
            await self._isolate.close()

    async def _call(self, function: str, document: Mapping[str, Any], *, field: str) -> _Answer:
        isolate = await self._ready()
        try:
            answered = await isolate.run(getattr(self._engine, function), to_json(document))
            answer = self._answer.validate_json(answered)
        except IsolationFailed as failure:
            raise invalid(field, _FAILURES[failure.kind]) from failure
        except pydantic.ValidationError:
            raise invalid(field, _FAILURES[FailureKind.CRASHED]) from None
        if answer.refused is not None:
            raise _refused(field, answer.refused)
        return answer

    async def _ready(self) -> Isolate:
        """The engine's libraries take a fifth of a second to load: off the event loop, and only where they are used."""
        if self._isolate is None and self._closed:
            raise TargetUnavailable("the system is stopping")
        if self._isolate is None:
            engine: Any = await asyncio.to_thread(import_module, _ENGINE)
            if self._isolate is None:  # another caller may have been faster
                self._engine = engine
                self._isolate = Isolate((engine.render_document, engine.examine_document), limits=self._limits)
        return self._isolate


def _refused(field: str, refusal: _Refusal) -> ValidationError:
    return invalid(f"{field}.{refusal.part}", refusal.problem)
