"""connector.heartbeat.v1: a connector says that it lives, and what it has done since its process started."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from pydantic import Field, NonNegativeFloat

from butlers.contracts.envelope import Count, Envelope, Identity, Timestamp, Value

ConnectorState = Literal["healthy", "degraded", "error"]


class ConnectorIdentity(Value):
    connector_type: Identity
    endpoint_identity: Identity
    instance_id: UUID  # one per process
    version: Identity | None = None


class ConnectorStatus(Value):
    state: ConnectorState
    error_message: str | None = Field(default=None, max_length=2_000)
    uptime_s: NonNegativeFloat


class ConnectorCounters(Value):
    """Monotonic since that process started."""

    messages_ingested: Count = 0
    messages_failed: Count = 0
    source_api_calls: Count = 0
    checkpoint_saves: Count = 0
    dedupe_accepted: Count = 0


class ConnectorCheckpoint(Value):
    cursor: Identity
    updated_at: Timestamp


class ConnectorCapabilities(Value):
    backfill: bool = False


class HeartbeatEnvelope(Envelope):
    VERSION = "connector.heartbeat.v1"

    schema_version: Literal["connector.heartbeat.v1"] = "connector.heartbeat.v1"
    connector: ConnectorIdentity
    status: ConnectorStatus
    counters: ConnectorCounters
    checkpoint: ConnectorCheckpoint | None = None
    capabilities: ConnectorCapabilities | None = None
    sent_at: Timestamp


class HeartbeatReply(Value):
    status: Literal["accepted"] = "accepted"
    server_time: Timestamp
