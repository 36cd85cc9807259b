"""New mail, a few at a time: read, handle, move the checkpoint, read on.

Every mail has three attempts, each counted before it begins (`MailAttempts`). One that cannot be taken apart has all of
them at once, so that it holds up nobody behind it; what else goes wrong ends the look, and the next one tries again.
The same holds for a mail that the server lists and does not hand over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from butlers.butler.core_tools import StateStore
from butlers.channels.email.mailbox.imap import Criteria, Fetched, Folder, ImapAccount, ImapClient
from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.errors import ClassifiedError, NotFound
from butlers.isolation.isolate import IsolationFailed
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


SIZE = 10  # mails in memory at a time
Handle = Callable[[Fetched], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    uidvalidity: int
    mails: list[Fetched]
    covered: int  # everything up to this UID is in the batch or was not looked for
    last: bool  # nothing is left behind it
    passed_over: int = 0  # mails that the server does not hand over


def next_batch(folder: Folder, checkpoint: Checkpoint | None, criteria: Criteria, size: int) -> Batch:
    found = folder.uids(criteria, first=first_unread(checkpoint, folder.uidvalidity))
    taken, last = found[:size], len(found) <= size
    return Batch(
        uidvalidity=folder.uidvalidity,
        mails=folder.mails(taken),
        covered=folder.highest_uid if last else taken[-1],
        last=last,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMail:
    imap: ImapClient
    checkpoints: Checkpoints
    attempts: MailAttempts
    criteria: Criteria

    async def read(self, handle: Handle, *, limit: int) -> int:
        """Hand over new mails, oldest first; returns how many were passed over because they are quarantined."""
        checkpoint, left, quarantined = await self.checkpoints.load(), limit, 0
        while left > 0:
            batch = await self._batch(checkpoint, min(left, SIZE))
            quarantined += batch.passed_over
            for mail in batch.mails:
                quarantined += not await self._attempt(handle, (batch.uidvalidity, mail.uid), mail)
                await self.checkpoints.save(Checkpoint(uidvalidity=batch.uidvalidity, last_uid=mail.uid))
            covered = Checkpoint(uidvalidity=batch.uidvalidity, last_uid=batch.covered)
            if covered != checkpoint:
                await self.checkpoints.save(covered)
            if batch.last:
                break
            checkpoint, left = covered, left - len(batch.mails)
        return quarantined

    async def retry(self, handle: Handle, place: Place) -> bool:
        """Hand over one quarantined mail again; false when it stays quarantined, which it does until it was handled."""
        await self.attempts.must_be_quarantined(place)
        mail = await self.imap.read(self.imap.account.inbox, lambda folder: _one(folder, place))
        try:
            await handle(mail)
        except IsolationFailed as failed:
            await self.attempts.fail(place, _unreadable(failed))
            return False
        await self.attempts.release(place)
        return True

    async def _attempt(self, handle: Handle, place: Place, mail: Fetched) -> bool:
        """True when the mail was handled, false when it is quarantined; raises what ends the look."""
        while await self.attempts.begin(place, mail):
            try:
                await handle(mail)
            except IsolationFailed as failed:
                if await self.attempts.fail(place, _unreadable(failed)):
                    return False
            except BaseException as error:
                if await self._ends_for_good(place, error):
                    return False
                raise
            else:
                await self.attempts.end(place)
                return True
        return False

    async def _ends_for_good(self, place: Place, error: BaseException) -> bool:
        """Whether the mail is quarantined now. What passes, and a stop, are not the mail's fault."""
        if not isinstance(error, Exception) or (isinstance(error, ClassifiedError) and error.retryable):
            await self.attempts.give_back(place)
            return False
        return await self.attempts.fail(place, f"its handling raised {type(error).__name__}")

    async def _batch(self, checkpoint: Checkpoint | None, size: int) -> Batch:
        """The next mails; one alone when the server does not hand over several; none when not even that one."""
        inbox = self.imap.account.inbox
        try:
            return await self.imap.read(inbox, lambda folder: next_batch(folder, checkpoint, self.criteria, size))
        except ClassifiedError as error:
            if not error.retryable:
                raise
        try:
            return await self.imap.read(inbox, lambda folder: next_batch(folder, checkpoint, self.criteria, 1))
        except ClassifiedError as error:
            return await self._without_next(checkpoint, error)

    async def _without_next(self, checkpoint: Checkpoint | None, error: ClassifiedError) -> Batch:
        """Passes over the next mail when the server has refused it three times; until then raises `error`.

        It is the mail's fault only when the server hands over the one behind it; otherwise the server is unwell.
        """
        inbox = self.imap.account.inbox
        place = await self.imap.read(inbox, lambda folder: _refused_place(folder, checkpoint, self.criteria))
        if place is None:
            raise error
        uidvalidity, uid = place
        unseen = Fetched(uid=uid, size=0, seen=False, arrived_at=None, raw=b"")
        reason = f"the server does not hand it over: {error.message}"
        if await self.attempts.begin(place, unseen) and not await self.attempts.fail(place, reason):
            raise error
        return Batch(uidvalidity=uidvalidity, mails=[], covered=uid, last=False, passed_over=1)


def _refused_place(folder: Folder, checkpoint: Checkpoint | None, criteria: Criteria) -> Place | None:
    """The next mail, when there is one behind it that the server hands over."""
    found = folder.uids(criteria, first=first_unread(checkpoint, folder.uidvalidity))
    return (folder.uidvalidity, found[0]) if len(found) > 1 and folder.mails(found[1:2]) else None


def _unreadable(failed: IsolationFailed) -> str:
    return f"it could not be taken apart: {failed.message}"


def _one(folder: Folder, place: Place) -> Fetched:
    uidvalidity, uid = place
    found = folder.mails([uid]) if folder.uidvalidity == uidvalidity else []
    if not found:
        raise NotFound.of(
            "mail", "no such mail is in the mailbox any more: it was deleted, or the server numbered anew"
        )
    return found[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    uidvalidity: int
    last_uid: int


def first_unread(checkpoint: Checkpoint | None, uidvalidity: int) -> int:
    """The UID to go on from. New numbers mean that everything is looked at again, and recognised by its Message-ID."""
    if checkpoint is None or checkpoint.uidvalidity != uidvalidity:
        return 1
    return checkpoint.last_uid + 1


class Checkpoints:
    """One reader's place in one folder, kept in the butler's state."""

    def __init__(self, *, state: StateStore, reader: str, address: str, folder: str) -> None:
        self._state = state
        self._key = f"mailbox.{reader}:{address.lower()}:{folder}"

    async def load(self) -> Checkpoint | None:
        value = (await self._state.get(self._key))["value"]
        match value:
            case {"uidvalidity": int(uidvalidity), "last_uid": int(last_uid)}:
                return Checkpoint(uidvalidity=uidvalidity, last_uid=last_uid)
        return None

    async def save(self, checkpoint: Checkpoint) -> None:
        await self._state.set(self._key, {"uidvalidity": checkpoint.uidvalidity, "last_uid": checkpoint.last_uid})
