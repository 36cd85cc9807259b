"""Operators' side of Switchboard, wired: their actions, what failed for good, and the record of both."""

from __future__ import annotations

from uuid import UUID

from butlers.butler.toolbox import AnyTool
from butlers.daemon.compose.base import Butler
from butlers.daemon.services import repeated
from butlers.storage.queries import Queries
from butlers.switchboard.ingress.buffer import DurableBuffer
from butlers.switchboard.ingress.ingress import MessageRef
from butlers.switchboard.operators.audit import AuditLog, OperatorAudit, RecordKeeper
from butlers.switchboard.operators.dead_letters import DeadLetters
from butlers.switchboard.operators.overrides import OnEnd, Operators
from butlers.switchboard.operators.tools import OperatorTools
from butlers.switchboard.registry import Registry
from butlers.switchboard.requests.lifecycle import RequestProcessor
from butlers.switchboard.requests.signals import Signals, ended_of

RETENTION_CHECK_S = 3600.0


def operator_audit(butler: Butler) -> OperatorAudit:
    process = butler.process
    return OperatorAudit(database=process.database, schema=butler.config.schema_name, new_id=process.new_id)


def add_operators(
    butler: Butler,
    *,
    registry: Registry,
    dead_letters: DeadLetters,
    audit: OperatorAudit,
    processor: RequestProcessor,
    buffer: DurableBuffer,
    signals: Signals,
) -> list[AnyTool]:
    """The tools; the loops are added to the butler."""
    process, schema = butler.process, butler.config.schema_name
    queries = Queries.load("butlers.switchboard.operators", schema=schema)
    log = AuditLog(database=process.database, schema=schema, clock=process.clock, new_id=process.new_id)
    operators = Operators(
        database=process.database,
        queries=queries,
        registry=registry,
        dead_letters=dead_letters,
        audit=audit,
        log=log,
        clock=process.clock,
        offer=buffer.offer,
        stop_now=processor.abort,
        on_end=_aftermath(butler, queries, buffer, signals),
    )
    keeper = RecordKeeper(database=process.database, schema=schema, clock=process.clock)
    butler.loops["audit log"] = log.run
    butler.loops["operators' records"] = repeated(process.clock, RETENTION_CHECK_S, keeper.keep)
    butler.closes.append(log.close)
    return OperatorTools(operators=operators, dead_letters=dead_letters, audit=audit, log=log).tools()


def _aftermath(butler: Butler, queries: Queries, buffer: DurableBuffer, signals: Signals) -> OnEnd:
    """Who hears of a request that an operator ended: its author, and whoever waits behind it in its thread."""
    process = butler.process
    inbox_queries = Queries.load("butlers.switchboard", schema=butler.config.schema_name)

    async def ended(request_id: UUID, _state: str) -> None:
        row = await process.database.fetchrow(queries.ended_request, request_id)
        if row is None:
            return
        signals.ended(ended_of(row))
        following = await process.database.fetchrow(
            inbox_queries.next_in_thread, row["thread_key"], process.clock.now()
        )
        if following is not None:
            buffer.offer(MessageRef(**dict(following)))

    return ended
