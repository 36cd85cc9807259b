"""Connectors in numbers: one in detail, its time series, all of them together, and where their messages went.

Every answer says until when its numbers count and how old that is; where there are none yet, it says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

from pydantic import Field

from butlers.contracts.envelope import Value
from butlers.operations import operation as op
from butlers.operations.connectors import ConnectorArguments

PeriodName = Literal["24h", "7d", "30d"]
_NONE_YET = "no data yet"
_NAMED = (
    op.Option("connector_type", "A connector's type, as `butlers connectors` prints it.", positional=True),
    op.Option("endpoint_identity", "Which end of the source, as printed there.", positional=True),
)
_PERIOD = op.Option("period", "How far back.", choices=True)


class StatsArguments(ConnectorArguments):
    period: PeriodName = Field(default="24h", description="how far back: 24h and 7d by the hour, 30d by the day")


class SummaryArguments(Value):
    period: PeriodName = Field(default="24h", description="how far back: 24h and 7d by the hour, 30d by the day")


class FanoutArguments(Value):
    period: Literal["7d", "30d"] = Field(default="7d", description="how far back, in whole days")


class ConnectorShown(op.Result):
    connector_type: str = Field(description="the kind of connector")
    endpoint_identity: str = Field(description="the bot, mailbox or account")
    instance_id: str = Field(description="the process that reported last")
    registered_via: str = Field(description="how it became known")
    liveness: str = Field(description="online, stale or offline, by its last heartbeat")
    state: str = Field(description="what it said of itself: healthy, degraded or error")
    last_heartbeat_at: str = Field(description="when it reported last")
    age_s: float = Field(description="seconds since then: all numbers here are so old")
    checkpoint: op.Row | None = Field(description="cursor and updated_at; null: it has reported none")
    counters: dict[str, int] = Field(description="all counters since its process started")


class RolledUp(op.Result):
    period: str = Field(description="how far back")
    since: str = Field(description="the beginning of the period")
    rolled_up_until: str | None = Field(description="until when the numbers count; null: there are none yet")
    age_s: float | None = Field(description="seconds since then; null: there are none yet")


class ConnectorStats(RolledUp):
    connector_type: str = Field(description="the kind of connector")
    endpoint_identity: str = Field(description="the bot, mailbox or account")
    bucket: str = Field(description="hour or day")
    totals: op.Row | None = Field(description="all buckets together; null: no data yet")
    buckets: list[op.Row] = Field(description="volume and health by bucket; one without data is not there")


class ConnectorSummary(RolledUp):
    bucket: str = Field(description="hour or day")
    connectors_by_liveness: dict[str, int] = Field(description="how many are online, stale and offline now")
    totals: op.Row | None = Field(description="all connectors together; null: no data yet")
    connectors: list[op.Row] = Field(description="each connector: liveness, state and totals (null: no data yet)")


class ConnectorFanout(RolledUp):
    messages: int | None = Field(description="messages to butlers in all; null: no data yet")
    butlers: list[str] = Field(description="the butlers that got messages")
    connectors: list[op.Row] = Field(description="each connector with its messages and shares by butler")


def _age(document: op.Document) -> str:
    if document["rolled_up_until"] is None:
        return f"{_NONE_YET}: nothing was rolled up"
    return f"rolled up until {op.when(document['rolled_up_until'])}, {document['age_s'] / 60:.0f} minutes ago"


def _figures(totals: Any) -> str:
    if totals is None:
        return _NONE_YET
    failed = f" ({totals['failed_pct']}%)" if totals["failed_pct"] is not None else ""
    healthy = f", healthy {totals['healthy_pct']}%" if totals["healthy_pct"] is not None else ""
    return f"{totals['messages_ingested']} taken in, {totals['messages_failed']} failed{failed}{healthy}"


def _shown(document: op.Document) -> Iterator[str]:
    yield f"{document['connector_type']}:{document['endpoint_identity']}  {document['liveness']}  {document['state']}"
    yield f"reported {op.when(document['last_heartbeat_at'])}, {document['age_s']:.0f} s ago"
    yield f"process {document['instance_id']}, registered via {document['registered_via']}"
    checkpoint = document["checkpoint"]
    yield f"checkpoint {checkpoint['cursor']} of {checkpoint['updated_at']}" if checkpoint else "no checkpoint"
    yield "  ".join(f"{name} {number}" for name, number in document["counters"].items())


def _stats(document: op.Document) -> Iterator[str]:
    yield f"{document['connector_type']}:{document['endpoint_identity']} in {document['period']}: " + _figures(
        document["totals"]
    )
    yield _age(document)
    for bucket in document["buckets"]:
        healthy = f"  healthy {bucket['healthy_pct']}%" if bucket["healthy_pct"] is not None else ""
        yield (
            f"{op.when(bucket['start'])}  {bucket['messages_ingested']} taken in"
            f"  {bucket['messages_failed']} failed{healthy}"
        )


def _summary(document: op.Document) -> Iterator[str]:
    yield "  ".join(f"{name} {number}" for name, number in document["connectors_by_liveness"].items())
    yield f"{document['period']}: {_figures(document['totals'])}"
    yield _age(document)
    for row in document["connectors"]:
        name = f"{row['connector_type']}:{row['endpoint_identity']}"
        yield f"{name:<32} {row['liveness'] or 'deregistered':<12}  {_figures(row['totals'])}"


def _fanout(document: op.Document) -> Iterator[str]:
    yield _age(document)
    for row in document["connectors"]:
        yield f"{row['source_channel']}:{row['source_endpoint_identity']}  {row['messages']} messages"
        for butler, cell in row["targets"].items():
            yield f"    {butler:<16} {cell['messages']}  {cell['share_pct']}%"


SHOW: Final = op.Operation(
    name="connectors.show",
    description="One connector in detail: its process, checkpoint and all counters.",
    arguments=ConnectorArguments,
    returns=ConnectorShown,
    hints=op.READS,
    routes=(op.get("/connectors/{connector_type}/{endpoint_identity}", "One connector in detail"),),
    commands=(op.Command("connectors show", "One connector in detail.", _shown, _NAMED),),
)
STATS: Final = op.Operation(
    name="connectors.stats",
    description="Volume and health of one connector over time, by hour (24h, 7d) or by day (30d).",
    arguments=StatsArguments,
    returns=ConnectorStats,
    hints=op.READS,
    routes=(op.get("/connectors/{connector_type}/{endpoint_identity}/stats", "One connector over time"),),
    commands=(op.Command("connectors stats", "One connector over time.", _stats, (*_NAMED, _PERIOD)),),
)
SUMMARY: Final = op.Operation(
    name="connectors.summary",
    description="All connectors: how many are online, stale and offline, and what they did.",
    arguments=SummaryArguments,
    returns=ConnectorSummary,
    hints=op.READS,
    routes=(op.get("/connectors/summary", "All connectors together"),),
    commands=(op.Command("connectors summary", "All connectors together.", _summary, (_PERIOD,)),),
)
FANOUT: Final = op.Operation(
    name="connectors.fanout",
    description="Which connector's messages went to which butler.",
    arguments=FanoutArguments,
    returns=ConnectorFanout,
    hints=op.READS,
    routes=(op.get("/connectors/fanout", "Which connector's messages went to which butler"),),
    commands=(
        op.Command("connectors fanout", "Which connector's messages went to which butler.", _fanout, (_PERIOD,)),
    ),
)

OPERATIONS: Final = (SHOW, STATS, SUMMARY, FANOUT)
