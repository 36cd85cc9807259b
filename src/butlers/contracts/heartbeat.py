"""connector.heartbeat.v1: a connector says that it lives, and what it has done since its process started."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from pydantic import AfterValidator, Field, NonNegativeFloat

from butlers.contracts.envelope import Count, Envelope, Identity, Timestamp, Value

MAX_UPTIME_S = 100 * 365 * 86_400.0


def _has_a_limit(uptime_s: float) -> float:
    if not uptime_s <= MAX_UPTIME_S:
        raise ValueError("must be at most a hundred years")
    return uptime_s


# Not a `le` of the field: the published schema stays what it is.
Uptime = Annotated[NonNegativeFloat, AfterValidator(_has_a_limit)]
ConnectorState = Literal["healthy", "degraded", "error"]


class ConnectorIdentity(Value):
    connector_type: Identity = Field(description="the kind of connector, such as telegram")
    endpoint_identity: Identity = Field(description="the bot, mailbox or account that the connector watches")
    instance_id: UUID = Field(description="one UUID per process of the connector")
    version: Identity | None = Field(default=None, description="the version of the connector")


class ConnectorStatus(Value):
    state: ConnectorState = Field(description="how the connector is")
    error_message: str | None = Field(default=None, max_length=2_000, description="what is wrong, in words")
    uptime_s: Uptime = Field(description="seconds since the process started")


class ConnectorCounters(Value):
    """Monotonic since that process started."""

    messages_ingested: Count = Field(default=0, description="messages handed in since the process started")
    messages_failed: Count = Field(default=0, description="messages that could not be handed in")
    source_api_calls: Count = Field(default=0, description="calls of the source")
    checkpoint_saves: Count = Field(default=0, description="times the checkpoint was stored")
    dedupe_accepted: Count = Field(default=0, description="messages that the door knew already")


class ConnectorCheckpoint(Value):
    cursor: Identity = Field(description="where the connector goes on, in its own words")
    updated_at: Timestamp = Field(description="when the checkpoint was stored: RFC 3339 with an offset")


class ConnectorCapabilities(Value):
    backfill: bool = Field(default=False, description="whether it can fetch messages of the past")


class HeartbeatEnvelope(Envelope):
    VERSION = "connector.heartbeat.v1"

    schema_version: Literal["connector.heartbeat.v1"] = Field(
        default="connector.heartbeat.v1", description="which envelope this is"
    )
    connector: ConnectorIdentity = Field(description="who reports")
    status: ConnectorStatus = Field(description="how it is")
    counters: ConnectorCounters = Field(description="what it has done since its process started")
    checkpoint: ConnectorCheckpoint | None = Field(default=None, description="how far it has read")
    capabilities: ConnectorCapabilities | None = Field(default=None, description="what it can do")
    sent_at: Timestamp = Field(description="when the report was made: RFC 3339 with an offset")


class HeartbeatReply(Value):
    status: Literal["accepted"] = Field(default="accepted", description="the report is stored")
    server_time: Timestamp = Field(description="the clock of Switchboard")
