"""How far a mailbox has been read: (folder, UIDVALIDITY, last UID)."""

from __future__ import annotations

from dataclasses import dataclass

from butlers.butler.state import StateStore


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
