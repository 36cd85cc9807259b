"""Who may write in, wired: the gate at the door in, the operators' tools, and the owner's code at start."""

from __future__ import annotations

from dataclasses import dataclass

from butlers.butler.module_config import PackageChannelModule
from butlers.channels.registry import written_names
from butlers.daemon.compose.base import Butler
from butlers.daemon.services import repeated
from butlers.storage.queries import Queries
from butlers.switchboard.notify import NotifyDispatcher
from butlers.switchboard.senders.gate import Policy, SenderGate, SenderPolicies, shown
from butlers.switchboard.senders.records import SenderRecords
from butlers.switchboard.senders.tools import SenderMessages, SenderTools

FORGET_EVERY_S = 3600.0
DRAIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Senders:
    gate: SenderGate
    tools: SenderTools


def add_senders(butler: Butler, notify: NotifyDispatcher) -> Senders:
    process = butler.process
    settings = process.settings
    records = SenderRecords(
        database=process.database,
        queries=Queries.load("butlers.switchboard.senders", schema=butler.config.schema_name),
        contacts=butler.contacts,
        clock=process.clock,
        new_id=process.new_id,
        owner_name=settings.owner_name,
    )
    policies = SenderPolicies(
        channels={channel: _policy(butler, channel) for channel in written_names()},
        mail_authenticated=settings.mail_authentication != "off",
        mail_server=settings.mail_authserv_id,
    )
    messages = SenderMessages(notifier=notify, told=records.told)
    butler.loops["refused senders"] = repeated(process.clock, FORGET_EVERY_S, records.forget_old)
    butler.drains.append(lambda: messages.drain(DRAIN_S))
    _announce_owner_code(butler, records, policies)
    gate = SenderGate(policies=policies, records=records, messages=messages, telemetry=butler.telemetry)
    return Senders(gate=gate, tools=SenderTools(records=records, policies=policies, report=butler.report))


def _policy(butler: Butler, channel: str) -> Policy:
    """The process's settings decide for the built-in channels, its module's table for one of another package."""
    module = getattr(butler.config.modules, channel, None)
    own = module.who_may_write if isinstance(module, PackageChannelModule) else None
    return Policy(own or butler.process.settings.who_may_write(channel))


def _announce_owner_code(butler: Butler, records: SenderRecords, policies: SenderPolicies) -> None:
    telegram = butler.config.modules.telegram
    if telegram is None or not telegram.bot.enabled or not policies.pairs_owner("telegram"):
        return

    async def notice() -> str | None:
        found = await records.owner_code("telegram")
        if found is None:
            return None
        code, expires_at = found
        return (
            f"The owner's Telegram chat is not known yet, so the bot answers nobody. Send it this code: {shown(code)}\n"
            "The chat that sends the code becomes the owner's. "
            f"It is good once, until {expires_at:%Y-%m-%d %H:%M} UTC; for a new one: butlers senders owner-code"
        )

    butler.notices.append(notice)
