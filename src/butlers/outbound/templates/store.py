"""Templates in versions, and the seam of the delivery runtime.

    templates = Templates(database=..., queries=..., clock=..., renderer=Renderer())
    version = await templates.check("invoice", {"name": "Ann"})                    # when a message is taken in
    rendered = await templates.render("invoice", version=version, locale="de-CH", channel="email", variables=...)

A message is queued with the version that its variables were checked against, and rendered with that version later,
whatever was stored since. No version ever changes, so what was read once is held.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from butlers.butler.activity import Report
from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, Tool
from butlers.channels.registry import channel_of, channels
from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.errors import NotFound
from butlers.operations import templates as operations
from butlers.operations.templates import (
    DEFAULT_CHANNEL,
    ListArguments,
    PreviewArguments,
    ShowArguments,
    TemplateContent,
    TemplateDocument,
)
from butlers.outbound.templates.locales import canonical_tag, fallbacks
from butlers.outbound.templates.renderer import Renderer
from butlers.outbound.templates.variables import Use, check_declarations, check_inline, check_uses, check_variables
from butlers.storage.database import Database, Record
from butlers.storage.queries import Queries

HELD_VERSIONS: Final = 256
SHOWN_VERSIONS: Final = 100
LARGEST_DOCUMENT: Final = 600_000  # characters of all sources


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateVersion:
    id: str
    version: int
    document: TemplateDocument
    created_by: str
    created_at: datetime
    created: bool = False  # by the call that returns it

    def to_wire(self) -> dict[str, Any]:
        shown = {name: getattr(self, name) for name in ("id", "version", "created_by", "created_at")}
        return shown | {"document": self.document.to_wire()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    subject: str | None  # one line
    text: str
    html: str | None  # None: the channel shows none, or the template has none
    locale: str  # whose text was used


class Templates:
    """Stores, checks and renders templates. Every refusal is a `ValidationError` and leaves nothing behind."""

    def __init__(self, *, database: Database, queries: Queries, clock: Clock, renderer: Renderer) -> None:
        self._database = database
        self._queries = queries
        self._clock = clock
        self._renderer = renderer
        self._held: OrderedDict[tuple[str, int], TemplateVersion] = OrderedDict()

    async def put(self, document: TemplateDocument, *, by: str) -> TemplateVersion:
        """The stored version: a new one, or the latest if that says the same."""
        document = checked_shape(document)
        check_declarations(document)
        await self._check_sources(document)
        async with self._database.transaction() as connection:
            await connection.execute(self._queries.lock_template, document.id)
            latest = await connection.fetchrow(self._queries.latest_template, document.id)
            if latest is not None and latest["document"] == document.to_wire():
                return _version_of(latest)
            number, now = (latest["version"] if latest is not None else 0) + 1, self._clock.now()
            await connection.execute(self._queries.insert_template, document.id, number, document.to_wire(), by, now)
        return TemplateVersion(
            id=document.id, version=number, document=document, created_by=by, created_at=now, created=True
        )

    async def get(self, template_id: str, version: int | None = None) -> TemplateVersion:
        """One version, or the latest. Raises `NotFound`."""
        number = version or await self._database.fetchval(self._queries.latest_version, template_id)
        if number is None:
            raise NotFound.of("template_id", "no such template")
        if (held := self._held.get((template_id, number))) is not None:
            self._held.move_to_end((template_id, number))
            return held
        row = await self._database.fetchrow(self._queries.template_version, template_id, number)
        if row is None:
            raise NotFound.of("version", "no such version of this template")
        return self._hold(_version_of(row))

    async def list(self, *, after: str | None = None, limit: int) -> Sequence[dict[str, Any]]:
        """Templates behind a name in their latest version, without their texts."""
        rows = await self._database.fetch(self._queries.list_templates, after, limit)
        return [_summary(row) for row in rows]

    async def versions(self, template_id: str) -> Sequence[int]:
        rows = await self._database.fetch(self._queries.versions_of, template_id, SHOWN_VERSIONS)
        return [row["version"] for row in rows]

    async def check(self, template_id: str, variables: Mapping[str, Any], *, version: int | None = None) -> int:
        """The version that these variables fit, to be rendered later. Raises `ValidationError` naming every misfit."""
        template = await self.get(template_id, version)
        check_variables(template.document, variables)
        return template.version

    async def render(
        self, template_id: str, *, version: int, locale: str | None, channel: str, variables: Mapping[str, Any]
    ) -> Rendered:
        """The message for one channel in one language, or in the nearest one that the template has."""
        template = await self.get(template_id, version)
        values = check_variables(template.document, variables)
        tag, name, content = chosen_content(template.document, locale, channel)
        parts = await self._renderer.render(
            content.parts(with_html=channel_of(channel).has_html), values, field=f"{template_id}.locales.{tag}.{name}"
        )
        return Rendered(subject=parts.get("subject") or None, text=parts["text"], html=parts.get("html"), locale=tag)

    async def render_text(self, body: str, variables: Mapping[str, Any]) -> str:
        """A message's own text with its variables; without variables the text as it is, braces and all."""
        if not variables:
            return body
        names = await self._renderer.names({"text": body}, None, field="body")
        check_inline(names["text"], variables)
        return (await self._renderer.render({"text": body}, variables, field="body"))["text"]

    async def close(self) -> None:
        await self._renderer.close()

    async def _check_sources(self, document: TemplateDocument) -> None:
        types = {name: declaration.type for name, declaration in document.variables.items()}
        uses = [
            Use(locale=locale, channel=channel, part=part, names=names)
            for locale, contents in document.locales.items()
            for channel, content in contents.items()
            for part, names in (await self._names(content, types, field=f"locales.{locale}.{channel}")).items()
        ]
        check_uses(document, uses)

    async def _names(
        self, content: TemplateContent, types: Mapping[str, str], *, field: str
    ) -> dict[str, frozenset[str]]:
        return await self._renderer.names(content.parts(), types, field=field)

    def _hold(self, template: TemplateVersion) -> TemplateVersion:
        self._held[template.id, template.version] = template
        if len(self._held) > HELD_VERSIONS:
            self._held.popitem(last=False)
        return template


def _version_of(row: Record) -> TemplateVersion:
    return TemplateVersion(
        id=row["id"],
        version=row["version"],
        document=TemplateDocument.model_validate(row["document"]),
        created_by=row["created_by"],
        created_at=row["created_at"],
    )


def _summary(row: Record) -> dict[str, Any]:
    document = row["document"]
    shown = {name: row[name] for name in ("id", "version", "created_at", "created_by")}
    return shown | {
        "default_locale": document["default_locale"],
        "locales": sorted(document["locales"]),
        "variables": sorted(document["variables"]),
    }


def checked_shape(document: TemplateDocument) -> TemplateDocument:
    """The document with its tags in one spelling. Refuses what could not be rendered for every channel and language."""
    locales: dict[str, dict[str, TemplateContent]] = {}
    for tag, contents in document.locales.items():
        spelled = canonical_tag(tag, field=f"locales.{tag}")
        if spelled in locales:
            raise invalid(f"locales.{spelled}", "stands there twice, in two spellings")
        locales[spelled] = contents
        for channel, content in contents.items():
            _check_channel(f"locales.{spelled}.{channel}", channel, content)
    default = canonical_tag(document.default_locale, field="default_locale")
    if DEFAULT_CHANNEL not in locales.get(default, {}):
        raise invalid(f"locales.{default}.{DEFAULT_CHANNEL}", "is required: it is for all that have no other text")
    sources = (
        len(s) for contents in locales.values() for content in contents.values() for s in content.parts().values()
    )
    if sum(sources) > LARGEST_DOCUMENT:
        raise invalid("locales", f"must hold at most {LARGEST_DOCUMENT} characters")
    return document.model_copy(update={"default_locale": default, "locales": locales})


def _check_channel(field: str, channel: str, content: TemplateContent) -> None:
    part = "mjml" if content.mjml is not None else "html"
    if getattr(content, part) is not None and channel != DEFAULT_CHANNEL and not channel_of(channel).has_html:
        able = [DEFAULT_CHANNEL, *(name for name, installed in channels().items() if installed.has_html)]
        raise invalid(f"{field}.{part}", f"is not shown on {channel}; it goes with {', '.join(able)}")


def chosen_content(document: TemplateDocument, locale: str | None, channel: str) -> tuple[str, str, TemplateContent]:
    """The locale, the channel and the content that a message gets.

    The nearest language comes first, and within it the channel before the default channel.
    """
    for tag in fallbacks(locale, default=document.default_locale):
        contents = document.locales.get(tag, {})
        for name in (channel, DEFAULT_CHANNEL):
            if name in contents:
                return tag, name, contents[name]
    raise invalid("channel", f"template {document.id} has no text for it")


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateTools:
    """What butlers and operators call."""

    templates: Templates
    report: Report  # what operators did

    def tools(self) -> list[AnyTool]:
        return [
            Tool.of(operations.LIST, self._list),
            Tool.of(operations.SHOW, self._show),
            Tool.of(operations.PUT, self._put),
            Tool.of(operations.PREVIEW, self._preview),
        ]

    async def _list(self, _caller: Caller, given: ListArguments) -> dict[str, Any]:
        rows = await self.templates.list(after=given.cursor, limit=given.limit)
        return wire({"templates": rows, "next_cursor": rows[-1]["id"] if len(rows) == given.limit else None})

    async def _show(self, _caller: Caller, given: ShowArguments) -> dict[str, Any]:
        template = await self.templates.get(given.template_id, given.version)
        versions = await self.templates.versions(given.template_id)
        return wire({"template": template.to_wire(), "versions": versions})

    async def _put(self, caller: Caller, given: TemplateDocument) -> dict[str, Any]:
        stored = await self.templates.put(given, by=caller.name)
        names = {"template": stored.id, "version": stored.version}
        self.report("templates.put", names, result="completed", error=None, actor=caller.name)
        return {"id": stored.id, "version": stored.version, "created": stored.created}

    async def _preview(self, _caller: Caller, given: PreviewArguments) -> dict[str, Any]:
        version = await self.templates.check(given.template_id, given.variables, version=given.version)
        rendered = await self.templates.render(
            given.template_id, version=version, locale=given.locale, channel=given.channel, variables=given.variables
        )
        return {
            "id": given.template_id,
            "version": version,
            "channel": given.channel,
            "locale": rendered.locale,
            "subject": rendered.subject,
            "text": rendered.text,
            "html": rendered.html,
        }
