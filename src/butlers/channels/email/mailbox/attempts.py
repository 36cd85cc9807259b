"""How often each mail was tried, and those that are quarantined because no attempt at them ended.

    begin (counted, durable) -> work -> end        forgotten
                                     -> fail       the reason is noted; after MOST_ATTEMPTS the mail is quarantined
                                     -> give_back  not the mail's fault: Switchboard or the database is away, a stop
                                     -> the process dies: the next one finds the count

A quarantined mail stays in the mailbox, and the reader goes on behind it. It stays quarantined until an operator has it
tried again and that attempt ends well.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from butlers.channels.email.mailbox.folder import Fetched
from butlers.channels.email.mailbox.imap import ImapAccount
from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.errors import ClassifiedError, NotFound
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger

log = get_logger("butlers.channels.email.mailbox")

MOST_ATTEMPTS = 3
ROUTE = "route"  # the reader that hands mail in; its quarantined mails are the ones that operators see
DIED = "the process that worked on it ended before it was done"

Place = tuple[int, int]  # UIDVALIDITY, UID


class MailAttempts:
    """The attempts of one reader at the mails of a mailbox's inbox."""

    def __init__(self, *, database: Database, schema: str, reader: str, account: ImapAccount, clock: Clock) -> None:
        self._database = database
        self._queries = Queries.load("butlers.channels.email.mailbox", schema=schema)
        of_reader = "" if reader == ROUTE else f":{reader}"
        self._mailbox = f"{account.address.lower()}:{account.inbox}{of_reader}"
        self._clock = clock
        self._owed: set[Place] = set()  # given back while the database was away

    async def begin(self, place: Place, mail: Fetched) -> bool:
        """Count an attempt; false when the mail is quarantined and must not be tried."""
        for owed in list(self._owed):
            await self._give_back(owed)
        now = self._clock.now()
        values = (mail.size, mail.arrived_at, DIED, now, MOST_ATTEMPTS)
        may_begin: bool = await self._database.fetchval(self._queries.begin_mail, self._mailbox, *place, *values)
        if not may_begin:
            log.warning("mail is quarantined", reason="died")
        return may_begin

    async def end(self, place: Place) -> None:
        await self._database.execute(self._queries.end_mail, self._mailbox, *place, self._clock.now())

    async def fail(self, place: Place, reason: str) -> bool:
        """Note why; true when the mail is quarantined now."""
        values = (reason, self._clock.now(), MOST_ATTEMPTS)
        quarantined = bool(await self._database.fetchval(self._queries.fail_mail, self._mailbox, *place, *values))
        if quarantined:
            log.warning("mail is quarantined", reason="failed")
        return quarantined

    async def give_back(self, place: Place) -> None:
        """The attempt does not count. A database that is away hears of it before the next attempt."""
        self._owed.add(place)
        try:
            await self._give_back(place)
        except ClassifiedError:
            log.warning("an attempt at a mail is given back later", reason="database_away")

    async def _give_back(self, place: Place) -> None:
        await self._database.execute(self._queries.give_mail_back, self._mailbox, *place, self._clock.now())
        self._owed.discard(place)

    async def must_be_quarantined(self, place: Place) -> None:
        if not await self._database.fetchval(self._queries.quarantined_mail, self._mailbox, *place):
            raise NotFound.of("mail", "no such mail is quarantined")

    async def release(self, place: Place) -> None:
        """A quarantined mail was handled after all."""
        await self._database.execute(self._queries.release_mail, self._mailbox, *place)

    async def quarantined(self, *, cursor: str | None, limit: int) -> dict[str, Any]:
        rows = await self._database.fetch(self._queries.quarantined_mails, self._mailbox, *_after(cursor), limit + 1)
        mails = [_shown(dict(row)) for row in rows[:limit]]
        more = len(rows) > limit
        return {"mails": mails, "next_cursor": f"{mails[-1]['quarantined_at']}/{mails[-1]['mail']}" if more else None}


def place_of(mail: str) -> Place:
    """`17-4` as UIDVALIDITY and UID."""
    uidvalidity, _, uid = mail.partition("-")
    if not (uidvalidity.isdecimal() and uid.isdecimal() and mail.isascii()) or len(mail) > 21:
        raise invalid("mail", "must be UIDVALIDITY-UID, as the listing prints it")
    return int(uidvalidity), int(uid)


def _after(cursor: str | None) -> tuple[datetime | None, int | None, int | None]:
    if cursor is None:
        return None, None, None
    moment, _, mail = cursor.partition("/")
    try:
        return datetime.fromisoformat(moment), *place_of(mail)
    except ValueError:
        raise invalid("cursor", "is not the next_cursor of an earlier page") from None


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    mail = f"{row.pop('uidvalidity')}-{row['uid']}"
    moments = {name: row[name].isoformat() if row[name] else None for name in ("arrived_at", "quarantined_at")}
    return {"mail": mail, **row, **moments}
