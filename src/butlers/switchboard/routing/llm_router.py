"""Asks a model who should get a message, when no step before it in the cascade is sure.

    version of prompt and model -> instructions (skill, prompt, registry) + data (message, conversation) -> runtime
        -> answer, checked -> spans and butlers

Only the skill, its prompt and the registry are instructions. The message and the conversation are data, fenced off and
encoded (`data.py`); the answer can only name spans of the message and butlers that may take it (`answer.py`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

from butlers.butler.runtime import Prompt, RuntimeResult, Turn
from butlers.butler.sessions import Spawner
from butlers.clock import Clock
from butlers.errors import ClassificationError, ClassifiedError, ConfigurationError, ErrorClass
from butlers.switchboard.config import RoutingSection, TierSection
from butlers.switchboard.registry import RegisteredButler
from butlers.switchboard.routing.conversations import Conversations
from butlers.switchboard.routing.decision import Decision, RoutingQuestion, Segment
from butlers.switchboard.routing.llm_answer import as_data, message_data, read_segments
from butlers.switchboard.routing.rollout import ModelCall, Rollout, Version

TRIAGE = "message-triage"
TRIGGER = "routing"  # as the sessions show where they come from
MAX_TEXT = 40_000  # characters of a message that a model is asked about
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Asker(Spawner):
    """Sessions that answer one question each, recorded as all sessions are."""

    async def pose(self, prompt: Prompt, *, trigger_source: str, request_id: UUID | None) -> RuntimeResult:
        return await self._session(prompt, prompt.text, trigger_source, request_id=request_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    name: str
    rules: str
    prompts: Mapping[str, str]  # by version

    @classmethod
    def load(cls, folder: Path, name: str, versions: Iterable[str], *, key: str) -> Skill:
        """Read the skill and these versions of its prompt; `key` is where butler.toml names them."""
        home = folder / "skills" / name
        prompts = {version: _read(_prompt(home, version, key), key) for version in sorted(set(versions))}
        rules = _FRONT_MATTER.sub("", _read(home / "SKILL.md", key)).strip()
        return cls(name=name, rules=rules, prompts=prompts)

    def system(self, version: str, *more: str) -> str:
        """The instructions: nothing else that a model reads is to be obeyed."""
        return "\n\n".join([self.rules, self.prompts[version].strip(), *more])


def registry_text(butlers: Sequence[RegisteredButler]) -> str:
    """Who is there now and what each says of itself; one line of JSON per butler."""
    lines = (
        as_data(
            {
                "name": butler.name,
                "description": butler.description,
                "triggers": butler.triggers,
                "required_information": butler.required_information,
                "capabilities": butler.capabilities,
            }
        )
        for butler in sorted(butlers, key=lambda butler: butler.name)
    )
    return "\n".join(["# Butlers", "", *lines])


def _prompt(home: Path, version: str, key: str) -> Path:
    if not _VERSION.fullmatch(version):
        raise _missing(home / "prompts", key, "use letters, digits, dots and dashes")
    return home / "prompts" / f"{version}.md"


def _read(path: Path, key: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise _missing(path, key, "write the file, or name a version that is there") from None


def _missing(path: Path, key: str, remedy: str) -> ConfigurationError:
    return ConfigurationError("there is no such prompt", source=str(path), key=key, remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRouter:
    settings: RoutingSection
    skill: Skill
    askers: Mapping[str | None, Asker]  # by model; None: the runtime's own
    model: str | None  # the runtime's own, by name
    conversations: Conversations
    rollout: Rollout
    clock: Clock

    async def route(self, question: RoutingQuestion, butlers: Sequence[RegisteredButler]) -> Decision:
        """Raises a `ClassifiedError` when there is no usable answer; it carries the versions in `partial`."""
        version = await self.rollout.version_for(question.request_id)
        model = version.model or self._tier(question).model
        call = ModelCall(request_id=question.request_id, version=version, model_version=self._named(model, None))
        started = self.clock.monotonic()
        try:
            result, segments = await self._ask(question, butlers, version, model)
        except ClassifiedError as error:
            error.partial = {"prompt_version": version.prompt, "model_version": call.model_version}
            failed = replace(call, error_class=error.error_class.value, duration_ms=self._since(started))
            await self.rollout.record(failed)
            raise
        except asyncio.CancelledError:
            spent = replace(call, error_class=ErrorClass.TIMEOUT.value, duration_ms=self._since(started))
            if used_up_time(self._tier(question), spent.duration_ms / 1000):
                await asyncio.shield(self.rollout.record(spent))
            raise
        decision = Decision(
            router="llm",
            segments=segments,
            why=f"the model chose {', '.join(segment.butler for segment in segments)}",
            prompt_version=version.prompt,
            model_version=self._named(model, result.model),
            tokens=result.tokens,
        )
        answered = replace(
            call,
            model_version=self._named(model, result.model),
            outcome="answered" if decision.confidence >= self.settings.confidence_threshold else "unsure",
            input_tokens=result.input_tokens,
            output_tokens=result.output_tokens,
            duration_ms=self._since(started),
        )
        await self.rollout.record(answered)
        return decision

    async def _ask(
        self,
        question: RoutingQuestion,
        butlers: Sequence[RegisteredButler],
        version: Version,
        model: str | None,
    ) -> tuple[RuntimeResult, tuple[Segment, ...]]:
        if len(question.text) > MAX_TEXT:
            raise ClassificationError(f"the message is longer than {MAX_TEXT} characters")
        prompt = Prompt(
            system=self.skill.system(version.prompt, registry_text(butlers)),
            text=message_data(question.text),
            history=await self._history(question),
        )
        result = await self.askers[model].pose(prompt, trigger_source=TRIGGER, request_id=question.request_id)
        names = frozenset(butler.name for butler in butlers)
        return result, read_segments(result.text, question.text, names)

    async def _history(self, question: RoutingQuestion) -> tuple[Turn, ...]:
        turns = tuple(question.history) or await self.conversations.before(question)
        return tuple(Turn(speaker=turn.speaker, text=as_data(turn.text)) for turn in turns)

    def _tier(self, question: RoutingQuestion) -> TierSection:
        tiers = self.settings.tier
        tier = {"interactive": tiers.interactive, "high_priority": tiers.high_priority}.get(question.policy_tier)
        return tier or tiers.default

    def _named(self, model: str | None, reported: str | None) -> str:
        """A model by its program and by the name that the program, or else the configuration, gives it."""
        runtime, name = self.askers[model].runtime_name, reported or model or self.model
        return f"{runtime}:{name}" if name else runtime

    def _since(self, started: float) -> int:
        return int((self.clock.monotonic() - started) * 1000)


def used_up_time(tier: TierSection, seconds: float) -> bool:
    """Whether a question that was cut short had taken most of what its request may take: that is the model's fault, and
    an operator who stops the request, or the end of this process, is not.
    """
    return tier.wall_clock_s is not None and seconds >= tier.wall_clock_s / 2


def models_of(settings: RoutingSection) -> set[str | None]:
    """Every model that some request may be asked with, besides the runtime's own."""
    tiers = settings.tier
    canary = settings.llm.canary
    return {tier.model for tier in (tiers.default, tiers.interactive, tiers.high_priority)} | {
        canary.model if canary else None
    }


def prompts_of(settings: RoutingSection) -> set[str]:
    canary = settings.llm.canary
    return {settings.llm.prompt_version, *([canary.prompt_version] if canary and canary.prompt_version else [])}
