"""A mailbox that is read, in this process or in one of its own that may die: `python -m ... ARGUMENTS`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from butlers.butler.identity import Caller
from butlers.butler.toolbox import ToolBox
from butlers.channels.email.mailbox.imap import ImapAccount, ImapClient
from butlers.channels.email.mailbox.mail_server import MailServer
from butlers.channels.email.mailbox.reports import MailParser
from butlers.channels.email.mailbox.tools import Mailbox
from butlers.clock import SystemClock
from butlers.errors import ClassifiedError
from butlers.ids import Uuid7Factory
from butlers.isolation.isolate import IsolationLimits
from butlers.messenger.receipts import ReceiptIntake
from butlers.operations.operation import Role
from butlers.storage.database import Database
from tests.integration.channels.receipt_rows import SCHEMA
from tests.integration.simulators.mail_state import ACCOUNTS, BUTLER

OPERATOR = Caller(name="operator", role=Role.OPERATOR)
POISON = "poison"
SMALL = IsolationLimits(memory_bytes=64 * 1024 * 1024)


@dataclass(slots=True)
class Door:
    """Switchboard's ingest door: takes mail, is away, waits without end, or ends this process."""

    accepted: list[str] = field(default_factory=list)
    refusal: ClassifiedError | Exception | None = None
    deadly: bool = False
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opens: asyncio.Event | None = None  # None: it is open

    async def call(self, _butler: str, _tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        text = arguments["payload"]["normalized_text"]
        self.reached.set()
        if self.deadly and POISON in text:
            os._exit(9)
        if self.opens is not None:
            await self.opens.wait()
        if self.refusal is not None:
            raise self.refusal
        self.accepted.append(text.splitlines()[0])
        return {"duplicate": False}

    async def close(self) -> None:
        return


@asynccontextmanager
async def mail_reader(database: Database, imap_port: int, door: Door) -> AsyncIterator[ToolBox]:
    """The mailbox tools of Messenger, with a parser that has little memory."""
    clock, parser = SystemClock(), MailParser(SMALL)
    server = MailServer(protocol="imap", host="127.0.0.1", port=imap_port, tls="none")
    mailbox = Mailbox.build(
        imap=ImapClient(ImapAccount(server=server, address=BUTLER, password=ACCOUNTS[BUTLER])),
        parser=parser,
        database=database,
        schema=SCHEMA,
        clock=clock,
        receipts=ReceiptIntake(database=database, schema=SCHEMA, clock=clock, new_id=Uuid7Factory(clock)),
        transport=door,
    )
    yield ToolBox(mailbox.tools)
    await parser.close()


async def _read_once(dsn: str, imap_port: int) -> None:
    async with await Database.connect(dsn) as database, mail_reader(database, imap_port, Door(deadly=True)) as tools:
        await tools.call("email_check_and_route_inbox", OPERATOR, {})


if __name__ == "__main__":
    asyncio.run(_read_once(*json.loads(sys.argv[1])))
