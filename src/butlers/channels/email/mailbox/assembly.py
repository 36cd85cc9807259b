"""The mailbox, put together: one client, two readers of the inbox with a place of their own each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from butlers.butler.state import StateStore
from butlers.butler.surface import Tool
from butlers.butler.transport import Transport
from butlers.channels.email.mailbox.attempts import ROUTE, MailAttempts
from butlers.channels.email.mailbox.batches import Checkpoints, NewMail
from butlers.channels.email.mailbox.bounces import REPORTS, Bounces, BounceWatch
from butlers.channels.email.mailbox.folder import Criteria
from butlers.channels.email.mailbox.imap import ImapClient
from butlers.channels.email.mailbox.parser import MailParser
from butlers.channels.email.mailbox.routing import InboxRouter
from butlers.channels.email.mailbox.tools import MailboxTools
from butlers.clock import Clock
from butlers.messenger.receipts import ReceiptIntake
from butlers.storage.database import Database


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
