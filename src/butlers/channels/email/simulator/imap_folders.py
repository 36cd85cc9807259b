"""The shared store as pymap sees it: folders and messages.

pymap's session asks a set of mailboxes for a mailbox and that for messages. Each is thin here, because the store owns
all state:

    Folders (one account) -> Folder (one mailbox) -> Message

A folder's `mailbox_id` is made of its address, name and UIDVALIDITY. When the UIDVALIDITY changes under a session, or
the store is reset, the folder that it selected is gone and the session ends with BYE: a client must never use its old
UIDs on new numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime

from pymap.backend.mailbox import MailboxDataInterface, MailboxSetInterface
from pymap.concurrent import Event
from pymap.exceptions import NotAllowedError
from pymap.flags import FlagOp
from pymap.interfaces.message import CachedMessage
from pymap.listtree import ListTree
from pymap.mailbox import MailboxSnapshot
from pymap.message import BaseLoadedMessage, BaseMessage
from pymap.mime import MessageBody, MessageContent, MessageHeader
from pymap.parsing.message import AppendMessage
from pymap.parsing.specials import FetchRequirement, ObjectId
from pymap.parsing.specials.flag import Flag, Recent, Seen
from pymap.selected import SelectedMailbox, SelectedSet

from butlers.channels.email.simulator.messages import is_costly
from butlers.channels.email.simulator.store import INBOX, Mailbox, MailStore, StoredMessage

_DELIMITER = "/"
_MAX_LINES = 50_000


class Message(BaseMessage):
    __slots__ = ["_parsed", "generation", "stored"]

    def __init__(self, stored: StoredMessage, *, generation: int, expunged: bool = False) -> None:
        super().__init__(
            stored.uid,
            stored.internal_date,
            [Flag(flag) for flag in stored.flags],
            email_id=ObjectId.new_email_id(hashlib.sha256(stored.raw).digest()[:16]),
            expunged=expunged,
        )
        self.stored = stored
        self._parsed: MessageContent | None = None
        self.generation = generation  # the UIDVALIDITY under which the UID means this message

    async def load_content(self, requirement: FetchRequirement) -> BaseLoadedMessage:
        if self._parsed is None:
            self._parsed = _parsed(self.stored.raw)
        return BaseLoadedMessage(self, requirement, self._parsed)


def _parsed(raw: bytes) -> MessageContent:
    """pymap's view of a message. One that was made to keep a parser busy has a head and a body, and no parts."""
    if not is_costly(raw) and raw.count(b"\n") <= _MAX_LINES:
        return MessageContent.parse(raw)
    end = raw.find(b"\r\n\r\n") + 4
    end = end if end > 3 else len(raw)
    view = memoryview(raw)
    header = MessageHeader._parse(raw, view, MessageContent._find_lines(raw[:end])[:-1])
    body = MessageBody._parse(raw, view, [(end, len(raw), len(raw))], None)
    return MessageContent(raw, header, body)


class Folder(MailboxDataInterface[Message]):
    def __init__(self, store: MailStore, mailbox: Mailbox) -> None:
        self._store = store
        self._mailbox = mailbox
        self._where = (mailbox.address, mailbox.name)
        self._views: dict[int, Message] = {}
        self._first_recent = 1
        self._selected_set = SelectedSet()
        self._changed = Event.for_asyncio()
        self._announced = self._state

    def announce(self) -> None:
        """Wake idling sessions when something changed here."""
        if self._state != self._announced:
            self._announced = self._state
            self._changed.set()

    @property
    def _state(self) -> tuple[int, int] | None:
        """Differs after every change; None when the store no longer has this mailbox."""
        if not self._store.holds(self._mailbox):
            return None
        return self._mailbox.uidvalidity, self._mailbox.revision

    @property
    def mailbox_id(self) -> ObjectId:
        identity = f"{self._mailbox.address}\0{self._mailbox.name}\0{self._mailbox.uidvalidity}"
        return ObjectId.new_mailbox_id(hashlib.sha256(identity.encode()).digest()[:16])

    @property
    def readonly(self) -> bool:
        return False

    @property
    def uid_validity(self) -> int:
        return self._mailbox.uidvalidity

    @property
    def selected_set(self) -> SelectedSet:
        return self._selected_set

    async def update_selected(self, selected: SelectedMailbox, *, wait_on: Event | None = None) -> SelectedMailbox:
        # What changed while the last news was being written must not be slept through.
        if wait_on is not None and selected.mod_sequence == self._state:
            await wait_on.or_event(self._changed).wait()
        if self._state is None or selected.mailbox_id != self.mailbox_id:
            selected.set_deleted()
            return selected
        if not selected.readonly:
            await self.claim_recent(selected)
        selected.mod_sequence = self._state
        selected.set_messages([self._view(message) for message in self._mailbox.messages.values()])
        return selected

    async def append(self, append_msg: AppendMessage, *, recent: bool = False) -> Message:
        stored = self._store.append(
            *self._where,
            append_msg.literal,
            flags=_names(append_msg.flag_set),
            internal_date=_aware(append_msg.when),
        )
        if not recent:
            self._first_recent = stored.uid + 1
        return self._view(stored)

    async def copy(self, uid: int, destination: Folder, *, recent: bool = False) -> int | None:
        stored = self._mailbox.messages.get(uid)
        if stored is None:
            return None
        copied = self._store.append(
            *destination._where, stored.raw, flags=stored.flags, internal_date=stored.internal_date
        )
        return copied.uid

    async def move(self, uid: int, destination: Folder, *, recent: bool = False) -> int | None:
        moved = await self.copy(uid, destination, recent=recent)
        self._store.expunge(*self._where, [uid])
        return moved

    async def get(self, uid: int, cached_msg: CachedMessage) -> Message:
        if not isinstance(cached_msg, Message):
            raise TypeError(cached_msg)
        stored = self._mailbox.messages.get(uid)
        if stored is None or cached_msg.generation != self.uid_validity:
            return Message(cached_msg.stored, generation=cached_msg.generation, expunged=True)
        return self._view(stored)

    async def update(self, uid: int, cached_msg: CachedMessage, flag_set: frozenset[Flag], mode: FlagOp) -> Message:
        message = await self.get(uid, cached_msg)
        flags = mode.apply(message.permanent_flags, flag_set)
        if message.expunged or flags == message.permanent_flags:
            return message
        return self._view(self._store.set_flags(*self._where, uid, _names(flags)))

    async def delete(self, uids: Iterable[int]) -> None:
        self._store.expunge(*self._where, uids)

    async def claim_recent(self, selected: SelectedMailbox) -> None:
        for uid in self._recent_uids():
            selected.session_flags.add_recent(uid)
        self._first_recent = self._mailbox.uidnext

    async def cleanup(self) -> None:
        self._views = {uid: view for uid, view in self._views.items() if uid in self._mailbox.messages}

    async def snapshot(self) -> MailboxSnapshot:
        messages = list(self._mailbox.messages.values())
        unseen = [i for i, m in enumerate(messages, start=1) if str(Seen) not in m.flags]
        return MailboxSnapshot(
            self.mailbox_id,
            self.readonly,
            self.uid_validity,
            self.permanent_flags,
            self.session_flags,
            len(messages),
            len(self._recent_uids()),
            len(unseen),
            unseen[0] if unseen else None,
            self._mailbox.uidnext,
        )

    def _recent_uids(self) -> list[int]:
        return [uid for uid in self._mailbox.messages if uid >= self._first_recent]

    def _view(self, stored: StoredMessage) -> Message:
        view = self._views.get(stored.uid)
        if view is None or view.stored is not stored:
            view = self._views[stored.uid] = Message(stored, generation=self.uid_validity)
        return view


class Folders(MailboxSetInterface[Folder]):
    """All mailboxes of one account, shared by its sessions."""

    def __init__(self, store: MailStore, address: str) -> None:
        self._store = store
        self._address = address
        self._folders: dict[str, Folder] = {}
        self._unsubscribed: set[str] = set()

    def announce(self) -> None:
        for folder in self._folders.values():
            folder.announce()

    @property
    def delimiter(self) -> str:
        return _DELIMITER

    async def set_subscribed(self, name: str, subscribed: bool) -> None:
        (self._unsubscribed.discard if subscribed else self._unsubscribed.add)(name)

    async def list_subscribed(self) -> ListTree:
        return self._tree(name for name in self._names() if name not in self._unsubscribed)

    async def list_mailboxes(self) -> ListTree:
        return self._tree(self._names())

    async def get_mailbox(self, name: str) -> Folder:
        mailbox = self._store.mailbox(self._address, name)
        folder = self._folders.get(mailbox.name)
        if folder is None or folder._mailbox is not mailbox:
            folder = self._folders[mailbox.name] = Folder(self._store, mailbox)
        return folder

    async def add_mailbox(self, name: str) -> ObjectId:
        self._store.create_mailbox(self._address, name)
        return (await self.get_mailbox(name)).mailbox_id

    async def delete_mailbox(self, name: str) -> None:
        self._store.delete_mailbox(self._address, name)
        self._folders.pop(name, None)

    async def rename_mailbox(self, before: str, after: str) -> None:
        raise NotAllowedError("This server does not rename mailboxes.")

    def _names(self) -> Sequence[str]:
        return tuple(self._store.mailboxes(self._address))

    def _tree(self, names: Iterable[str]) -> ListTree:
        return ListTree(_DELIMITER).update(INBOX, *names)


def _names(flags: Iterable[Flag]) -> list[str]:
    return [str(flag) for flag in flags if flag != Recent]


def _aware(when: datetime | None) -> datetime | None:
    return None if when is None else when.astimezone()
