"""How long the records about requests outlive the requests: a year, like Messenger's."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from butlers.clock import Clock
from butlers.storage.database import Database
from butlers.storage.queries import Queries

KEPT = timedelta(days=365)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKeeper:
    database: Database
    queries: Queries  # of this package
    clock: Clock

    async def keep(self) -> None:
        """Forget what is older."""
        before = self.clock.now() - KEPT
        for query in (self.queries.forget_letters, self.queries.forget_actions, self.queries.forget_activity):
            await self.database.execute(query, before)
