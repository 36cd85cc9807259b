"""New mail, a few at a time: read, handle, move the checkpoint, read on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from butlers.messenger.mailbox.checkpoints import Checkpoint, Checkpoints, first_unread
from butlers.messenger.mailbox.folder import Criteria, Fetched, Folder
from butlers.messenger.mailbox.imap import ImapClient

SIZE = 10  # mails in memory at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    uidvalidity: int
    mails: list[Fetched]
    covered: int  # everything up to this UID is in the batch or was not looked for
    last: bool  # nothing is left behind it


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
    """One reader of the inbox."""

    imap: ImapClient
    checkpoints: Checkpoints
    criteria: Criteria

    async def read(self, handle: Callable[[Fetched], Awaitable[None]], *, limit: int) -> None:
        """Hand over new mails, oldest first. What raises is not passed over: it comes again next time."""
        checkpoint, left = await self.checkpoints.load(), limit
        while left > 0:
            batch = await self._batch(checkpoint, min(left, SIZE))
            for mail in batch.mails:
                await handle(mail)
                await self.checkpoints.save(Checkpoint(uidvalidity=batch.uidvalidity, last_uid=mail.uid))
            covered = Checkpoint(uidvalidity=batch.uidvalidity, last_uid=batch.covered)
            if covered != checkpoint:
                await self.checkpoints.save(covered)
            if batch.last:
                return
            checkpoint, left = covered, left - len(batch.mails)

    async def _batch(self, checkpoint: Checkpoint | None, size: int) -> Batch:
        inbox = self.imap.account.inbox
        return await self.imap.read(inbox, lambda folder: next_batch(folder, checkpoint, self.criteria, size))
