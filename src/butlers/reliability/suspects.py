"""Work that has seen its worker die: how often is too often, and why it runs alone.

A process that dies takes everything in hand with it, and only one piece of work may be to blame. What has died with its
worker `SUSPECT_AFTER` times runs alone among its like: if it is to blame, it dies alone at its last attempt; if not, it
finishes.
"""

from __future__ import annotations

from uuid import UUID

MOST_DEATHS = 3  # attempts that never ended; the next claim gives the work up
SUSPECT_AFTER = 2  # of them


class SuspectGate:
    """Lets the suspects of one process in one request at a time. Parts of the same request may be in together."""

    def __init__(self) -> None:
        self._request_id: UUID | None = None
        self._inside = 0

    def enter(self, request_id: UUID) -> bool:
        """False: another suspect is inside; ask again later."""
        if self._inside and self._request_id != request_id:
            return False
        self._request_id = request_id
        self._inside += 1
        return True

    def leave(self) -> None:
        self._inside -= 1
