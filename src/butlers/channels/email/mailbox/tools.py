"""The mailbox as tools: look through it, read one mail, hand new mail on."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from butlers.butler.core_tools import StateStore
from butlers.butler.identity import Caller
from butlers.butler.toolbox import Tool
from butlers.butler.transport import Transport
from butlers.channels.email.mailbox.batches import ROUTE, Checkpoints, MailAttempts, NewMail, place_of
from butlers.channels.email.mailbox.imap import Criteria, Fetched, Folder, ImapClient
from butlers.channels.email.mailbox.mime import Mail
from butlers.channels.email.mailbox.reports import MailParser
from butlers.channels.email.mailbox.routing import REPORTS, Bounces, BounceWatch, InboxRouter
from butlers.clock import Clock
from butlers.contracts.envelope import Timestamp, Value, invalid
from butlers.messenger.receipts import ReceiptIntake
from butlers.messenger.tools.deliveries import decided_by
from butlers.operations import dead_letters as operations
from butlers.operations.dead_letters import QuarantinedArguments, RetryArguments
from butlers.operations.operation import BUTLERS, READS_OUTSIDE, Hints, Result, Row
from butlers.storage.database import Database

OWNER = "messenger"
_CURSOR = re.compile(r"(\d{1,10})-(\d{1,10})", re.ASCII)


def _one_line(text: str) -> str:
    if not text.isprintable() or not text.strip():
        raise ValueError("must be one line of text")
    return text


Phrase = Annotated[str, StringConstraints(max_length=200), AfterValidator(_one_line)]
MessageId = Annotated[str, StringConstraints(max_length=500, pattern=r"^<[!-;=?-~]+>$")]


class SearchArguments(Value):
    query: Phrase | None = Field(default=None, description="words anywhere in the mail")
    sender: Phrase | None = Field(default=None, description="part of the sender's name or address")
    subject: Phrase | None = Field(default=None, description="part of the subject")
    since: Timestamp | None = Field(default=None, description="arrived then or later")
    unseen: bool = Field(default=False, description="only what nobody has read")
    limit: int = Field(default=20, ge=1, le=100, description="at most so many, on one page")
    cursor: str | None = Field(default=None, max_length=40, description="next_cursor of the page before")


class ReadArguments(Value):
    uid: int | None = Field(
        default=None, ge=1, le=2**32 - 1, description="the mail, by its number in the inbox; instead of message_id"
    )
    message_id: MessageId | None = Field(
        default=None, description="the mail, by its Message-ID in angle brackets; instead of uid"
    )

    @model_validator(mode="after")
    def _one_name(self) -> Self:
        if (self.uid is None) == (self.message_id is None):
            raise ValueError("give uid or message_id, and not both")
        return self


class RouteArguments(Value):
    limit: int = Field(default=50, ge=1, le=500, description="mails to look at, oldest first")


class MailList(Result):
    next_cursor: str | None = Field(description="hand it back for the next page; null: this is the last one")
    messages: list[Row] = Field(description="the mails: uid, message_id, from, subject, date, seen and size")


class MailResult(Result):
    uid: int = Field(description="the mail's number in the inbox")
    message_id: str | None = Field(description="its Message-ID")
    subject: str | None = Field(description="its subject")
    headers: dict[str, list[str]] = Field(description="its headers, by name")
    text: str = Field(description="what it says, as plain text")
    truncated: bool = Field(description="whether something was left out")
    attachments: list[Row] = Field(description="filename, media_type and size_bytes of what is attached")


class MailRouted(Result):
    routed: int = Field(description="mails that were handed to Switchboard")
    duplicates: int = Field(description="mails that Switchboard knew already")
    bounces: int = Field(description="reports about our own mails, which became receipts")
    skipped: int = Field(description="mails that nobody answers, such as those of lists")
    refused: int = Field(description="mails whose senders may not write in")
    failed: int = Field(description="mails that could not be read or handed over")


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxTools:
    imap: ImapClient
    parser: MailParser
    router: InboxRouter
    attempts: MailAttempts

    def tools(self) -> list[Tool]:
        of_butlers = partial(Tool, roles=BUTLERS, owner=OWNER)
        return [
            of_butlers(
                name="email_search_inbox",
                description="Mails in the inbox, newest first.",
                arguments=SearchArguments,
                returns=MailList,
                hints=READS_OUTSIDE,
                handler=self._search,
            ),
            of_butlers(
                name="email_read_message",
                description="One mail: headers, plain text and what is attached. It stays unread.",
                arguments=ReadArguments,
                returns=MailResult,
                hints=READS_OUTSIDE,
                handler=self._read,
            ),
            of_butlers(
                name="email_check_and_route_inbox",
                description="Hand new mail to Switchboard; bounces become receipts.",
                arguments=RouteArguments,
                returns=MailRouted,
                hints=Hints(idempotent=True, open_world=True),
                handler=self._route,
            ),
            Tool.of(operations.QUARANTINED, self._quarantined),
            Tool.of(operations.RETRY, self._retry),
        ]

    async def _search(self, _caller: Caller, given: SearchArguments) -> dict[str, Any]:
        heads, cursor = await self.imap.read(self.imap.account.inbox, lambda folder: search(folder, given))
        return {"messages": [_known(head, await self.parser.mail(head.raw)) for head in heads], "next_cursor": cursor}

    async def _read(self, _caller: Caller, given: ReadArguments) -> dict[str, Any]:
        fetched = await self.imap.read(self.imap.account.inbox, lambda folder: read(folder, given))
        return _whole(fetched, await self.parser.mail(fetched.raw))

    async def _route(self, _caller: Caller, given: RouteArguments) -> dict[str, Any]:
        return dict(await self.router.check_and_route(limit=given.limit))

    async def _quarantined(self, _caller: Caller, given: QuarantinedArguments) -> dict[str, Any]:
        return await self.attempts.quarantined(cursor=given.cursor, limit=given.limit)

    async def _retry(self, caller: Caller, given: RetryArguments) -> dict[str, Any]:
        outcome = await self.router.retry(place_of(given.mail))
        return {"mail": given.mail, "retried_by": decided_by(caller, given), **outcome}


def search(folder: Folder, given: SearchArguments) -> tuple[list[Fetched], str | None]:
    """The heads of one page, newest first, and the cursor of the next."""
    criteria = Criteria(
        text=given.query, sender=given.sender, subject=given.subject, since=given.since, unseen=given.unseen
    )
    found = folder.uids(criteria, last=_before(folder, given.cursor))
    page = found[-given.limit :]
    heads = [head for head in reversed(folder.heads(page)) if _since(head, given.since)]
    return heads, f"{folder.uidvalidity}-{page[0]}" if len(found) > len(page) else None


def read(folder: Folder, given: ReadArguments) -> Fetched:
    # Of several mails with one Message-ID the first is the one that was meant; the others came again.
    uids = [given.uid] if given.uid is not None else folder.by_message_id(given.message_id or "")[:1]
    fetched = folder.mails(uids)
    if not fetched:
        raise invalid("uid" if given.uid is not None else "message_id", "names no message in the inbox")
    return fetched[0]


def _before(folder: Folder, cursor: str | None) -> int | None:
    if cursor is None:
        return None
    place = _CURSOR.fullmatch(cursor)
    if place is None or int(place[1]) != folder.uidvalidity:
        raise invalid("cursor", "is not of this mailbox as it is numbered now; begin with the first page")
    return int(place[2]) - 1


def _since(head: Fetched, since: datetime | None) -> bool:
    return since is None or head.arrived_at is None or head.arrived_at >= since.replace(microsecond=0)


def _known(fetched: Fetched, mail: Mail) -> dict[str, Any]:
    return {
        "uid": fetched.uid,
        "message_id": mail.header("Message-ID"),
        "from": mail.header("From"),
        "subject": mail.header("Subject"),
        # When it says it was written; when that is no date, when it arrived.
        "date": mail.written_at or (fetched.arrived_at.isoformat() if fetched.arrived_at else None),
        "seen": fetched.seen,
        "size": fetched.size,
    }


def _whole(fetched: Fetched, mail: Mail) -> dict[str, Any]:
    return _known(fetched, mail) | {
        "headers": {name: list(values) for name, values in mail.headers.items()},
        "text": mail.text,
        "truncated": mail.truncated or fetched.size > len(fetched.raw),
        "attachments": [asdict(attachment) for attachment in mail.attachments],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Mailbox:
    tools: list[Tool]
    watch: BounceWatch

    @classmethod
    def build(
        cls,
        *,
        imap: ImapClient,
        parser: MailParser,
        database: Database,
        schema: str,
        clock: Clock,
        receipts: ReceiptIntake,
        transport: Transport,  # to Switchboard
    ) -> Self:
        account, state = imap.account, StateStore(database=database, schema=schema, clock=clock)

        def reader(name: str, criteria: Criteria) -> NewMail:
            place = Checkpoints(state=state, reader=name, address=account.address, folder=account.inbox)
            attempts = MailAttempts(database=database, schema=schema, reader=name, account=account, clock=clock)
            return NewMail(imap=imap, checkpoints=place, attempts=attempts, criteria=criteria)

        bounces = Bounces(database=database, schema=schema, receipts=receipts)
        routed = reader(ROUTE, Criteria())
        router = InboxRouter(
            new_mail=routed,
            parser=parser,
            bounces=bounces,
            transport=transport,
            address=account.address,
            clock=clock,
        )
        return cls(
            tools=MailboxTools(imap=imap, parser=parser, router=router, attempts=routed.attempts).tools(),
            watch=BounceWatch(new_mail=reader("bounces", REPORTS), parser=parser, bounces=bounces),
        )
