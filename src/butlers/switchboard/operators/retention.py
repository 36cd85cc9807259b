"""How long the records about requests outlive the requests: a year, like Messenger's."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from butlers.clock import Clock
from butlers.storage.database import Database
from butlers.storage.pruning import AgingTable, forget

KEPT = timedelta(days=365)
BATCH = 1_000
RECORDS = (
    AgingTable(table="dead_letter"),
    AgingTable(table="operator_audit_log", moment="performed_at"),
    AgingTable(table="dashboard_audit_log"),
    AgingTable(table="routing_log"),
    AgingTable(table="routing_model_calls"),
    AgingTable(table="extraction_queue"),
    AgingTable(table="extraction_log"),
    AgingTable(table="extraction_runs", key="request_id"),
    AgingTable(table="butler_eligibility_log", moment="observed_at"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKeeper:
    database: Database
    schema: str
    clock: Clock
    batch: int = BATCH

    async def keep(self) -> None:
        """Forget what is older."""
        before = self.clock.now() - KEPT
        for aging in RECORDS:
            await forget(self.database, self.schema, aging, before=before, batch=self.batch)
