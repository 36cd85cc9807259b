"""Entitlements and preferences in Switchboard's process: caches, their listener, tools, chat commands, unsubscribe."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from butlers.butler.toolbox import AnyTool
from butlers.contacts.people import People
from butlers.daemon.compose.base import Butler
from butlers.daemon.services import Service
from butlers.outbound.change_log import ChangeLog
from butlers.outbound.changes import ChangeListener
from butlers.outbound.entitlements import (
    EntitlementService,
    PermissionGate,
    StoredEntitlements,
    load_entitlement_service,
)
from butlers.outbound.preference_chat import MUTE_USAGE, QUIET_USAGE, UNMUTE_USAGE, PreferenceChat
from butlers.outbound.preference_tools import EntitlementTools, PreferenceTools
from butlers.outbound.preferences import PreferenceCache, PreferenceStore
from butlers.outbound.unsubscribe import UnsubscribeDoor, UnsubscribeLinks, load_key
from butlers.storage.database import Connection, open_connection
from butlers.switchboard.chat_commands import ChatCall, ChatCommand, ChatCommands

APPLICATION = "butlers changes"  # as the database shows the listening connection
ACK_USAGE = "/ack"

# The contact who says that messages have been seen, when that was received, and the request's id -> the answer.
Acknowledge = Callable[[UUID, datetime, UUID], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceParts:
    people: People
    listener: ChangeListener
    entitlements: EntitlementService  # the stored ones, or the company's own
    gate: PermissionGate
    preferences: PreferenceCache
    store: PreferenceStore  # `store.on_change` is told of every person whose preferences changed
    links: UnsubscribeLinks
    commands: ChatCommands
    tools: list[AnyTool]

    def add_acknowledge(self, acknowledge: Acknowledge) -> None:
        """`/ack` in a chat."""

        async def run(call: ChatCall) -> str:
            return await acknowledge(call.person.id, call.received_at, call.request_id)

        self.commands.add(ChatCommand(name="ack", usage=ACK_USAGE, run=run))


def add_preferences(butler: Butler) -> PreferenceParts:
    process, clock, database = butler.process, butler.process.clock, butler.process.database

    async def connect() -> Connection:
        return await open_connection(process.dsn, wait=0.0, application_name=APPLICATION, clock=clock)

    listener = ChangeListener(connect=connect, clock=clock)
    butler.add(Service(name="preference changes", before_doors=True, run=listener.run))
    people, history = People(database=database), ChangeLog(database=database, new_id=process.new_id)
    stored = StoredEntitlements(database=database, clock=clock, log=history, listener=listener)
    named = process.settings.entitlement_service
    entitlements = load_entitlement_service(named) if named else stored
    cache = PreferenceCache(database=database, clock=clock, listener=listener)
    store = PreferenceStore(database=database, clock=clock, log=history, listener=listener)
    links = UnsubscribeLinks(key=load_key(process.places.unsubscribe_key), public_url=process.settings.public_url)
    butler.routes += UnsubscribeDoor(links=links, store=store, cache=cache, clock=clock).routes()
    return PreferenceParts(
        people=people,
        listener=listener,
        entitlements=entitlements,
        gate=PermissionGate(entitlements=entitlements, clock=clock, listener=listener),
        preferences=cache,
        store=store,
        links=links,
        commands=_commands(people, PreferenceChat(store=store, clock=clock)),
        tools=[
            *PreferenceTools(
                people=people, store=store, cache=cache, log=history, clock=clock, report=butler.report
            ).tools(),
            *EntitlementTools(
                people=people,
                stored=stored,
                effective=entitlements,
                names=lambda: {*process.roster, *(token.name for token in process.tokens.tokens())},
                report=butler.report,
            ).tools(),
        ],
    )


def _commands(people: People, chat: PreferenceChat) -> ChatCommands:
    return ChatCommands(
        people,
        [
            ChatCommand(name="mute", usage=MUTE_USAGE, run=chat.mute),
            ChatCommand(name="unmute", usage=UNMUTE_USAGE, run=chat.unmute),
            ChatCommand(name="quiet", usage=QUIET_USAGE, run=chat.quiet),
        ],
    )
