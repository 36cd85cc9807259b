"""The approvals of one butler, wired. Without the module nothing is gated."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from butlers.butler.approvals import ActionRunner, Approvals, ApprovalTools, RunnerPolicy, gate_tools, migrations
from butlers.butler.approvals.values import EXPIRY
from butlers.butler.config import ButlerConfig
from butlers.butler.toolbox import AnyTool
from butlers.daemon.compose.process import Process
from butlers.storage.migrations import MigrationSet

if TYPE_CHECKING:
    from butlers.daemon.compose.base import Butler

EXPIRE_S, RECOVER_S = 5.0, 2.0


def approval_migrations(config: ButlerConfig) -> list[MigrationSet]:
    """The tables, where the module is on."""
    return [migrations(config.schema_name)] if config.modules.approvals is not None else []


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


def gated(butler: Butler, tools: Iterable[AnyTool]) -> list[AnyTool]:
    """A butler's tools, the gated ones behind the gate, with the tools that decide. Messenger gates its own way."""
    process, config = butler.process, butler.config
    if config.modules.approvals is None:
        return list(tools)
    approvals = build_approvals(process, config)
    runner = ActionRunner(approvals=approvals, owner=process.instance, policy=RunnerPolicy(lease=process.lease))

    async def drain() -> None:
        await runner.drain(config.butler.shutdown.timeout_s)

    butler.before_loops += [approvals.expire, runner.recover]
    butler.timers |= {"approval expiry": (EXPIRE_S, approvals.expire), "approved actions": (RECOVER_S, runner.recover)}
    butler.drains.append(drain)
    return [
        *gate_tools(tools, approvals=approvals, runner=runner),
        *ApprovalTools(approvals=approvals, runner=runner).tools(),
    ]
