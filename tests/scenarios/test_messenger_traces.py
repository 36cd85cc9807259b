"""One trace per delivery, and log lines beside it: both join the tables by request and delivery."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from butlers.storage.embedded import EmbeddedPostgres
from butlers.telemetry import configure_logging
from tests.collector import Collector, collector
from tests.scenarios.messenger_door import attempts, deliver, execute, fault, quick, route, rows, wish
from tests.system import running_system

__all__ = ["collector"]  # fixture


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, str]


def spans_of(collector: Collector) -> list[Span]:
    export = ExportTraceServiceRequest.FromString(collector.received.get("/v1/traces", b""))
    return [
        Span(
            name=span.name.removeprefix("butlers.messenger."),
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            attributes={a.key: a.value.string_value or str(a.value.int_value) for a in span.attributes},
        )
        for resource in export.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        if span.name.startswith("butlers.messenger.")
    ]


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """The process's logging as `butlers up` sets it, and back again."""
    root = logging.getLogger()
    level = root.level
    handler = configure_logging(path)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
        root.setLevel(level)
        logging.captureWarnings(capture=False)


@pytest.mark.scenario("M1-053")
async def test_spans_logs_and_tables_join_by_request_and_delivery(
    tmp_path: Path, postgres_server: EmbeddedPostgres, collector: Collector
) -> None:
    path = tmp_path / "butlers.log"
    with logging_to(path):
        async with running_system(
            tmp_path, postgres_server, roster_dir=quick(tmp_path), otlp_endpoint=collector.address
        ) as running:
            await fault(running, "error_5xx", status=502)
            request = (await running.ingest("I paid the electricity bill"))["request_id"]
            await running.finished(request)
            [row] = [row for row in await rows(running) if row["intent"] != "react"]
            made = await attempts(running, row["id"])
    delivery = str(row["id"])
    assert (str(row["request_id"]), row["status"], len(made)) == (request, "delivered", 2)

    # One trace: the root of the delivery, its steps below it, and an attempt for each row of the attempts' table.
    ours = [span for span in spans_of(collector) if span.attributes.get("request_id") == request]
    named: dict[str, list[Span]] = {}
    for span in ours:
        named.setdefault(span.name, []).append(span)
    assert named.keys() == {
        "delivery",
        "validate",
        "idempotency_check",
        "rate_limit_check",
        "persistence_write",
        "provider_send",
    }
    [root], [validate] = named["delivery"], named["validate"]
    [key], [rate], [write] = named["idempotency_check"], named["rate_limit_check"], named["persistence_write"]
    assert (validate.parent_id, key.parent_id) == (root.span_id, root.span_id)
    assert (rate.parent_id, write.parent_id) == (key.span_id, rate.span_id)
    assert len({span.trace_id for span in ours}) == 1
    assert {name: root.attributes[name] for name in ("channel", "intent", "identity_scope", "origin_butler")} == {
        "channel": row["channel"],
        "intent": row["intent"],
        "identity_scope": row["identity_scope"],
        "origin_butler": row["origin_butler"],
    }
    assert write.attributes["delivery_id"] == delivery
    assert {span.attributes["delivery_id"] for span in named["provider_send"]} == {delivery}
    assert sorted(span.attributes["attempt"] for span in named["provider_send"]) == ["1", "2"]
    assert row["message"] not in str([span.attributes for span in ours])

    # The log lines name the same request, delivery and attempts.
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    mine = [line for line in lines if line.get("request_id") == request and line.get("delivery_id") == delivery]
    assert [line["event"] for line in mine] == ["delivery recorded", "delivery attempted", "delivery attempted"]
    attempted = [(line["attempt"], line["outcome"], line.get("error_class")) for line in mine[1:]]
    assert attempted == [(1, "awaiting_retry", made[0]["error_class"]), (2, "delivered", None)]


@pytest.mark.scenario("M1-053")
async def test_what_was_not_asked_for_joins_by_its_delivery_id(
    tmp_path: Path, postgres_server: EmbeddedPostgres, collector: Collector
) -> None:
    path = tmp_path / "butlers.log"
    with logging_to(path):
        async with running_system(
            tmp_path, postgres_server, names=["messenger"], otlp_endpoint=collector.address
        ) as running:
            answer = await deliver(running, wish("unasked", recipient="431"))
            refused = await execute(running, route(running, wish("to nobody", channel="pigeon", recipient="431")))
            assert refused["status"] == "error"
    delivery = answer["delivery"]["delivery_id"]
    named = {span.name: span for span in spans_of(collector) if span.attributes.get("delivery_id") == delivery}
    assert named.keys() >= {"persistence_write", "provider_send"}
    assert "request_id" not in named["provider_send"].attributes
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    mine = [line for line in lines if line.get("delivery_id") == delivery]
    assert [line["event"] for line in mine] == ["delivery recorded", "delivery attempted"]
