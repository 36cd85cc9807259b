"""Senders: the policy of who may write in, who was refused, who has a code, and whom a code or an operator let in."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any
from uuid import UUID

from butlers.butler.activity import Report
from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, Tool
from butlers.channels.registry import channel_of
from butlers.clock import Clock
from butlers.contacts import Contacts
from butlers.contacts.people import People
from butlers.contracts.envelope import invalid
from butlers.errors import Conflict, NotFound
from butlers.operations import people as operations
from butlers.operations.people import (
    AllowArguments,
    ApproveArguments,
    OwnerCodeArguments,
    PairingsArguments,
    RefusedArguments,
    SenderArguments,
)
from butlers.storage.database import Database
from butlers.storage.queries import Queries

LETTERS = "23456789BCDFGHJKLMNPQRSTVWXZ"
LENGTH = 8
LIFETIME = timedelta(hours=24)
_LONGEST_COMMAND = 40  # characters


CODES_AN_HOUR = 10  # for strangers, all together: a crowd of them must not make the bot write to a crowd
REFUSAL_RETENTION = timedelta(days=90)  # a refused sender that is silent for so long is forgotten
MOST_REFUSED = 10_000  # rows
LONGEST_NAME = 200  # characters of a display name that a list shows


class Policy(StrEnum):
    OWNER = "owner"
    CONTACTS = "contacts"
    PAIRING = "pairing"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderPolicies:
    """What the settings say."""

    channels: Mapping[str, Policy]  # a channel that is not among them is open: its callers have tokens
    mail_authenticated: bool  # a mail counts for its From only when the receiving server vouches for it
    mail_server: str | None  # that server's authserv-id

    def pairs_owner(self, channel: str) -> bool:
        """Whether a chat may become the owner's by a code: only where a chat is one person's."""
        inbound = channel_of(channel).inbound
        return (
            inbound is not None and inbound.pairs_owner and self.channels.get(channel, Policy.OPEN) is not Policy.OPEN
        )


class Known(StrEnum):
    """What the contacts say about a sender."""

    OWNER = "owner"
    CONTACT = "contact"
    STRANGER = "stranger"


class Reason(StrEnum):
    """Why a sender is not served, as lists and metrics say it."""

    UNKNOWN = "unknown_sender"
    NOT_THE_OWNER = "not_the_owner"
    NOT_AUTHENTICATED = "not_authenticated"


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingSender:
    """Who wrote, and where."""

    channel: str
    endpoint: str
    identity: str
    display_name: str | None
    conversation: str  # where an answer would go
    is_private: bool  # only the sender reads an answer there

    @property
    def name(self) -> str:
        return (self.display_name or self.identity)[:LONGEST_NAME]


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderRecords:
    database: Database
    queries: Queries  # of butlers.switchboard.senders
    contacts: Contacts
    people: People
    clock: Clock
    new_id: Callable[[], UUID]
    owner_name: str
    policies: SenderPolicies
    report: Report  # what operators did

    def tools(self) -> list[AnyTool]:
        return [
            Tool.of(operations.REFUSED, self._refused),
            Tool.of(operations.PAIRINGS, self._pairings),
            Tool.of(operations.APPROVE, self._approve),
            Tool.of(operations.ALLOW, self._allow),
            Tool.of(operations.REMOVE, self._remove),
            Tool.of(operations.OWNER_CODE, self._owner_code),
        ]

    def _done(self, caller: Caller, operation: str, result: dict[str, Any]) -> dict[str, Any]:
        self.report(operation, {"channel": result["channel"]}, result="completed", error=None, actor=caller.name)
        return wire(result)

    async def known(self, channel: str, identity: str) -> Known:
        is_owner = await self.contacts.is_owner(channel, identity)
        if is_owner is None:
            return Known.STRANGER
        return Known.OWNER if is_owner else Known.CONTACT

    # --- refused -----------------------------------------------------------------------------------------------------

    async def refuse(self, sender: WritingSender, reason: str, *, event: str, wrong_codes: int) -> None:
        who = (sender.channel, sender.endpoint, sender.identity, sender.name)
        await self.database.execute(
            self.queries.record_refusal, self.new_id(), *who, reason, event, wrong_codes, self.clock.now()
        )

    async def wrong_codes(self, sender: WritingSender) -> int:
        who = (sender.channel, sender.endpoint, sender.identity)
        return int(await self.database.fetchval(self.queries.wrong_codes_of, *who) or 0)

    async def _refused(self, _caller: Caller, given: RefusedArguments) -> dict[str, Any]:
        rows = await self.database.fetch(self.queries.list_refused, given.cursor, given.channel, given.limit)
        cursor = rows[-1]["id"] if len(rows) == given.limit else None
        return wire({"senders": [dict(row) for row in rows], "next_cursor": cursor})

    async def forget_old(self) -> None:
        await self.database.execute(self.queries.forget_refusals, self.clock.now() - REFUSAL_RETENTION, MOST_REFUSED)

    # --- let in ------------------------------------------------------------------------------------------------------

    async def pairing(self, sender: WritingSender, choose: Callable[[str], str]) -> tuple[UUID, str] | None:
        """The pairing whose code this stranger is still to be told; None: it was told, or too many others were."""
        now = self.clock.now()
        await self.database.execute(
            self.queries.start_pairing,
            self.new_id(),
            sender.channel,
            sender.endpoint,
            sender.identity,
            sender.name,
            new_code(choose),
            now,
            now + LIFETIME,
            now - timedelta(hours=1),
            CODES_AN_HOUR,
        )
        who = (sender.channel, sender.endpoint, sender.identity)
        row = await self.database.fetchrow(self.queries.pairing_of_sender, *who)
        if row is None or row["told_at"] is not None or row["used_at"] is not None or row["expires_at"] <= now:
            return None
        return row["id"], row["code"]

    async def record_offer(self, pairing_id: UUID) -> None:
        await self.database.execute(self.queries.pairing_told, pairing_id, self.clock.now())

    async def approve(self, code: str, *, by: str, event: str | None = None) -> dict[str, Any] | None:
        """The stranger with this code becomes a contact; None when it is unknown, too old or used already."""
        now = self.clock.now()
        async with self.database.transaction() as connection:
            row = await connection.fetchrow(self.queries.open_pairing, code, now, by, event)
            if row is None:
                return None
            if row["used_at"] is not None:  # only the answer again: the sender may have been removed meanwhile
                again = await self.contacts.find(connection, row["channel"], row["sender"])
                return _let_in(row["channel"], row["sender"], row["display_name"], again) if again else None
            contact = await self.contacts.add(connection, row["channel"], row["sender"], row["display_name"])
            await connection.fetchval(self.queries.use_pairing, row["id"], now, by, None, event)
            await connection.execute(self.queries.forget_refusal, row["channel"], row["sender"])
        return _let_in(row["channel"], row["sender"], row["display_name"], contact)

    async def _approve(self, caller: Caller, given: ApproveArguments) -> dict[str, Any]:
        code = read_code(given.code)
        approved = await self.approve(code, by=caller.name) if code is not None else None
        if approved is None:
            raise NotFound.of("code", "no such code: it is unknown, was used, or is older than 24 hours")
        return self._done(caller, "senders.approve", approved)

    async def _allow(self, caller: Caller, given: AllowArguments) -> dict[str, Any]:
        """A person becomes a contact, or an identity the owner's, by an operator's word."""
        channel, identity = given.channel, _identity(given)
        name = self.owner_name if given.owner else given.name or identity
        add = self.contacts.add_to_owner if given.owner else self.contacts.add
        if given.person is not None:
            known = (await self.people.resolve_people([given.person]))[given.person]
            name, add = known.name, partial(self.contacts.add_to, known.id)
        async with self.database.transaction() as connection:
            if given.person is not None and await self.contacts.find(connection, channel, identity) not in (
                None,
                known.id,
            ):
                raise Conflict.of("identity", "is another contact's; remove it there first: butlers senders remove")
            contact = await add(connection, channel, identity, name)
            await connection.execute(self.queries.forget_refusal, channel, identity)
        return self._done(caller, "senders.allow", _let_in(channel, identity, name, contact))

    async def _remove(self, caller: Caller, given: SenderArguments) -> dict[str, Any]:
        """The identity is no contact's any more; the owner's stays, or no person could write in."""
        channel, identity = given.channel, _identity(given)
        match await self.contacts.is_owner(channel, identity):
            case None:
                raise NotFound.of("identity", "no such contact on this channel")
            case True:
                raise invalid("identity", "is the owner's; add another one with allow --owner before it can go")
        await self.contacts.remove(channel, identity)
        removed = {"channel": channel, "identity": identity, "removed": True}
        return self._done(caller, "senders.remove", removed)

    async def _pairings(self, _caller: Caller, given: PairingsArguments) -> dict[str, Any]:
        now = self.clock.now()
        rows = await self.database.fetch(self.queries.list_pairings, given.cursor, given.limit)
        listed = [dict(row) | {"code": shown(row["code"]), "state": _state(row, now)} for row in rows]
        return wire({"pairings": listed, "next_cursor": rows[-1]["id"] if len(rows) == given.limit else None})

    # --- the owner ---------------------------------------------------------------------------------------------------

    async def owner_code(self, channel: str) -> tuple[str, datetime] | None:
        """The code that makes a chat the owner's, renewed when it is too old; None when the owner is known there."""
        if await self.contacts.owner_writes_by(channel):
            return None
        now, code = self.clock.now(), new_code(secrets.choice)
        row = await self.database.fetchrow(
            self.queries.renew_owner_pairing, self.new_id(), channel, code, now, now + LIFETIME
        )
        return (row["code"], row["expires_at"]) if row is not None else None

    async def _owner_code(self, _caller: Caller, given: OwnerCodeArguments) -> dict[str, Any]:
        found = await self.owner_code(given.channel) if self.policies.pairs_owner(given.channel) else None
        code, expires_at = (shown(found[0]), found[1]) if found is not None else (None, None)
        return wire({"channel": given.channel, "code": code, "expires_at": expires_at})

    async def pair_owner(self, sender: WritingSender, code: str) -> bool:
        """Whether the code is the owner's; then it is used up, and the sender is the owner."""
        now = self.clock.now()
        if await self.contacts.owner_writes_by(sender.channel):
            return False
        async with self.database.transaction() as connection:
            row = await connection.fetchrow(self.queries.owner_pairing, sender.channel)
            if row is None or row["code"] != code or row["expires_at"] <= now:
                return False
            by = f"{sender.channel}:{sender.identity}"
            if await connection.fetchval(self.queries.use_pairing, row["id"], now, by, sender.identity, None) is None:
                return False
            await self.contacts.add_to_owner(connection, sender.channel, sender.identity, self.owner_name)
            await connection.execute(self.queries.forget_refusal, sender.channel, sender.identity)
        return True


def _let_in(channel: str, identity: str, name: str, contact: UUID) -> dict[str, Any]:
    return {"channel": channel, "identity": identity, "name": name, "contact_id": contact}


def _state(row: Any, now: datetime) -> str:
    if row["used_at"] is not None:
        return "approved"
    return "expired" if row["expires_at"] <= now else "waiting"


def new_code(choose: Callable[[str], str]) -> str:
    """`choose` takes one letter at random: `secrets.choice`."""
    return "".join(choose(LETTERS) for _ in range(LENGTH))


def shown(code: str) -> str:
    """As people read it: K7QF-2M9X."""
    return f"{code[: LENGTH // 2]}-{code[LENGTH // 2 :]}"


def read_code(text: str) -> str | None:
    """The code that a text is, however it is spelled; None when it is none."""
    if len(text) > _LONGEST_COMMAND:
        return None
    code = "".join(letter for letter in text.strip().upper() if letter not in "- ")
    return code if len(code) == LENGTH and all(letter in LETTERS for letter in code) else None


def read_approval(text: str) -> str | None:
    """The code of "approve CODE"; None for everything else that people say."""
    if len(text) > _LONGEST_COMMAND:
        return None
    verb, _, rest = text.strip().partition(" ")
    return read_code(rest) if verb.casefold() in ("approve", "/approve") else None


def decide(policy: Policy, known: Known, *, authenticated: bool = True) -> Reason | None:
    """Why a sender is not served; None: it is. A stranger is given a code where the policy is pairing."""
    if not authenticated and (policy is not Policy.OPEN or known is not Known.STRANGER):
        return Reason.NOT_AUTHENTICATED
    if policy is Policy.OPEN or known is Known.OWNER:
        return None
    if known is Known.STRANGER:
        return Reason.UNKNOWN
    return Reason.NOT_THE_OWNER if policy is Policy.OWNER else None


def _identity(given: SenderArguments) -> str:
    """The identity as messages carry it; raises for what no message can carry."""
    try:
        return channel_of(given.channel).address.person(given.identity)
    except ValueError as error:
        raise invalid("identity", str(error)) from error
