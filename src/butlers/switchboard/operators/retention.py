"""How long the records about requests outlive the requests: a year, like Messenger's.

They go in batches, each a transaction of its own: however much has gathered, nobody waits long behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from butlers.clock import Clock
from butlers.storage.database import Database
from butlers.storage.queries import Queries

KEPT = timedelta(days=365)
BATCH = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKeeper:
    database: Database
    queries: Queries  # of this package
    clock: Clock
    batch: int = BATCH

    async def keep(self) -> None:
        """Forget what is older."""
        before = self.clock.now() - KEPT
        for query in self._forgetting():
            await self._forget(query, before)

    async def _forget(self, query: str, before: datetime) -> None:
        while await self.database.fetchval(query, before, self.batch) == self.batch:
            pass

    def _forgetting(self) -> tuple[str, ...]:
        queries = self.queries
        return (
            queries.forget_letters,
            queries.forget_actions,
            queries.forget_activity,
            queries.forget_routing,
            queries.forget_model_calls,
            queries.forget_extractions,
            queries.forget_extraction_events,
            queries.forget_extraction_runs,
            queries.forget_eligibility,
        )
