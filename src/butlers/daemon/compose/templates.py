"""Templates of messages, wired into Switchboard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from butlers.butler.toolbox import AnyTool
from butlers.daemon.compose.base import Butler
from butlers.daemon.services import Service
from butlers.outbound import SCHEMA
from butlers.outbound.templates.renderer import Renderer
from butlers.outbound.templates.store import Templates, TemplateTools
from butlers.storage.queries import Queries


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateParts:
    templates: Templates
    tools: Sequence[AnyTool]


def add_templates(butler: Butler) -> TemplateParts:
    process = butler.process
    templates = Templates(
        database=process.database,
        queries=Queries.load("butlers.outbound.templates", schema=SCHEMA),
        clock=process.clock,
        renderer=Renderer(),
    )
    butler.add(Service(name="templates", stop=templates.close))
    return TemplateParts(templates=templates, tools=TemplateTools(templates=templates, report=butler.report).tools())
