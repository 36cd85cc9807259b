"""Connectors: their heartbeats, all that ever reported, and forgetting one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pydantic import Field

from butlers.contracts.envelope import Identity, Value
from butlers.contracts.heartbeat import HeartbeatEnvelope, HeartbeatReply
from butlers.errors import ClassifiedError
from butlers.operations.operation import (
    ADDS_ONCE,
    CHANGES,
    CONNECTORS,
    OPERATORS,
    READS,
    Command,
    Document,
    Operation,
    Option,
    Result,
    Row,
    System,
    get,
    post,
    when,
)


class ConnectorArguments(Value):
    connector_type: Identity = Field(description="the kind of connector, such as telegram")
    endpoint_identity: Identity = Field(description="the bot, mailbox or account that the connector watches")


class ConnectorList(Result):
    connectors: list[Row] = Field(description="the connectors: state, liveness, last heartbeat and today's counts")


class ConnectorGone(Result):
    connector_type: str = Field(description="the kind of connector")
    endpoint_identity: str = Field(description="the bot, mailbox or account")
    deregistered: bool = Field(description="true")


def _list(system: System, _given: Document) -> dict[str, Any]:
    """With the connectors of Switchboard's own process that are not well: one whose source refuses it never gets to a
    report.
    """
    found = system.get("/api/connectors")
    try:
        parts = system.get("/readyz").get("parts", [])
    except ClassifiedError:
        parts = []
    unwell = [part for part in parts if part["part"].endswith(" connector") and part["state"] != "ok"]
    return found | {"not_reporting": unwell}


def _connectors(document: Document) -> Iterator[str]:
    for row in document["connectors"]:
        name = f"{row['connector_type']}:{row['endpoint_identity']}"
        today = row["today"]
        yield (
            f"{name:<32} {row['liveness']:<7}  {row['state']:<8}  up {row['uptime_s']:.0f} s"
            f"  seen {when(row['last_heartbeat_at'])}"
            f"  today {today['messages_ingested']} taken in, {today['messages_failed']} failed"
        )
        if row["error_message"]:
            yield f"    {row['error_message']}"
    for part in document["not_reporting"]:
        words = " ".join(part[key] for key in ("sentence", "remedy") if key in part)
        yield f"{part['part']:<32} {part['state']}: {words}"


def _gone(document: Document) -> Iterator[str]:
    yield f"{document['connector_type']}:{document['endpoint_identity']} is forgotten"


HEARTBEAT: Final = Operation(
    name="connector.heartbeat",
    description="A connector says that it lives and what it has done (connector.heartbeat.v1).",
    arguments=HeartbeatEnvelope,
    returns=HeartbeatReply,
    hints=ADDS_ONCE,
    roles=CONNECTORS,
    routes=(
        post(
            "/connectors/heartbeat",
            "A connector's sign of life (connector.heartbeat.v1)",
            body_is="",
            decides=False,
            status=202,
        ),
    ),
)
LIST: Final = Operation(
    name="connectors.list",
    description="All connectors that ever reported: whether they are there, and what they did today.",
    returns=ConnectorList,
    hints=READS,
    routes=(get("/connectors", "All connectors, and whether they are there"),),
    commands=(
        Command(
            "connectors list",
            "Every connector that ever reported.",
            _connectors,
            none="no connector has reported yet",
            asks=_list,
            alone=True,
        ),
    ),
)
DEREGISTER: Final = Operation(
    name="connectors.deregister",
    description="Forget a connector; its next heartbeat registers it anew.",
    arguments=ConnectorArguments,
    returns=ConnectorGone,
    hints=CHANGES,
    roles=OPERATORS,
    routes=(post("/connectors/deregister", "Forget a connector"),),
    commands=(
        Command(
            "connectors deregister",
            "Forget a connector; its next heartbeat registers it anew.",
            _gone,
            (
                Option("connector_type", "A connector's type, like telegram.", positional=True, metavar="TYPE"),
                Option(
                    "endpoint_identity",
                    "Which end of the source, like the bot's name.",
                    positional=True,
                    metavar="ENDPOINT",
                ),
            ),
        ),
    ),
)

OPERATIONS: Final = (HEARTBEAT, LIST, DEREGISTER)
