"""The approvals of one butler, wired. Without the module nothing is gated, and what is parked still has its table."""

from __future__ import annotations

from datetime import timedelta

from butlers.butler.approvals import migrations
from butlers.butler.approvals.approvals import Approvals
from butlers.butler.approvals.values import EXPIRY
from butlers.butler.config import ButlerConfig
from butlers.daemon.compose.process import Process
from butlers.storage.migrations import MigrationSet


def approval_migrations(schema: str) -> MigrationSet:
    return migrations(schema)


def build_approvals(process: Process, config: ButlerConfig) -> Approvals:
    module = config.modules.approvals
    return Approvals(
        database=process.database,
        schema=config.schema_name,
        clock=process.clock,
        new_id=process.new_id,
        gated=frozenset(module.gated_tools) if module is not None else frozenset(),
        expiry=timedelta(hours=module.expiry_hours) if module is not None else EXPIRY,
    )
