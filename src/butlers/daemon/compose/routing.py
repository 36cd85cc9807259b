"""Switchboard's routing, wired: threads, the model that is asked when unsure, and what is learned on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from butlers.butler.runtimes import build_runtime
from butlers.butler.toolbox import Tool
from butlers.daemon.compose.base import Butler
from butlers.daemon.services import Service
from butlers.storage.queries import Queries
from butlers.switchboard.extraction.extractor import Extractor
from butlers.switchboard.extraction.signals import EXTRACTOR, PROMPT_VERSION, ModelExtractor
from butlers.switchboard.routing.conversations import Conversations
from butlers.switchboard.routing.llm_router import (
    TRIAGE,
    Asker,
    ModelRouter,
    Skill,
    models_of,
    prompts_of,
)
from butlers.switchboard.routing.rollout import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    threads: Conversations
    llm: ModelRouter | None  # None: no model is asked
    extractor: Extractor
    tools: Sequence[Tool]


def add_routing(butler: Butler) -> Routing:
    process, settings = butler.process, butler.config.routing
    queries = Queries.load("butlers.switchboard.routing", schema=butler.config.schema_name)
    conversations = Conversations(database=process.database, queries=queries, follow_up_s=settings.follow_up_s)
    rollout = Rollout(
        settings=settings.llm,
        database=process.database,
        queries=queries,
        clock=process.clock,
        new_id=process.new_id,
    )
    askers = _askers(butler)
    llm = _model_router(butler, askers, conversations, rollout) if askers else None
    extractor = _extractor(butler, askers[None] if askers else None)
    butler.add(Service(name="extraction", run=extractor.run))
    runtime = butler.config.butler.runtime
    asked = {"runtime": runtime.type, "model": runtime.model} if askers else {"runtime": None, "model": None}
    return Routing(
        threads=conversations,
        llm=llm,
        extractor=extractor,
        tools=[*rollout.tools({"enabled": bool(askers), **asked}, butler.config.skills), *extractor.tools()],
    )


def _askers(butler: Butler) -> dict[str | None, Asker]:
    """By model, None for the runtime's own; empty when no model may be asked."""
    process, runtime, settings = butler.process, butler.config.butler.runtime, butler.config.routing
    if process.settings.llm != "on" or runtime.type == "local" or not settings.llm.enabled:
        return {}
    return {
        model: Asker(
            runtime=build_runtime(
                runtime.type,
                model or runtime.model,
                runtime.command,
                clock=process.clock,
                environ=process.environment,
                hidden=(process.places.root,),
            ),
            instructions="",
            database=process.database,
            schema=butler.config.schema_name,
            clock=process.clock,
            new_id=process.new_id,
            telemetry=butler.telemetry,
            max_concurrent=runtime.max_concurrent_sessions,
            timeout_s=settings.llm.timeout_s,
            report=butler.report,
        )
        for model in {None, *models_of(settings)}
    }


def _model_router(
    butler: Butler, askers: dict[str | None, Asker], conversations: Conversations, rollout: Rollout
) -> ModelRouter:
    settings = butler.config.routing
    return ModelRouter(
        settings=settings,
        skill=Skill.load(_folder(butler), TRIAGE, prompts_of(settings), key="routing.llm.prompt_version"),
        askers=askers,
        model=butler.config.butler.runtime.model,
        conversations=conversations,
        rollout=rollout,
        clock=butler.process.clock,
    )


def _extractor(butler: Butler, asker: Asker | None) -> Extractor:
    process = butler.process
    skill = Skill.load(_folder(butler), EXTRACTOR, [PROMPT_VERSION], key="skills") if asker else None
    model = ModelExtractor(skill=skill, asker=asker) if skill and asker else None
    return Extractor(
        database=process.database,
        queries=Queries.load("butlers.switchboard.extraction", schema=butler.config.schema_name),
        transport=butler.transport,
        clock=process.clock,
        new_id=process.new_id,
        model=model,
    )


def _folder(butler: Butler) -> Path:
    return Path(butler.config.source).parent
