"""One trace per delivery, and log lines beside it: both join the tables by request and delivery."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from butlers.storage.embedded import EmbeddedPostgres
from butlers.telemetry import configure_logging
from tests.collector import Collector, collector
from tests.scenarios.messenger_door import (
    attempts,
    changed_roster,
    deliver,
    execute,
    fault,
    hurry,
    quick,
    route,
    rows,
    wish,
)
from tests.system import running_system

__all__ = ["collector"]  # fixture


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    began: int  # nanoseconds
    ended: int
    attributes: dict[str, str]


def spans_of(collector: Collector) -> list[Span]:
    export = ExportTraceServiceRequest.FromString(collector.received.get("/v1/traces", b""))
    return [
        Span(
            name=span.name.removeprefix("butlers.messenger."),
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            began=span.start_time_unix_nano,
            ended=span.end_time_unix_nano,
            attributes={a.key: a.value.string_value or str(a.value.int_value) for a in span.attributes},
        )
        for resource in export.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def by_name(spans: list[Span]) -> dict[str, list[Span]]:
    named: dict[str, list[Span]] = {}
    for span in spans:
        named.setdefault(span.name, []).append(span)
    return named


def one_after_another(*spans: Span) -> bool:
    """Whether none of them times what another one times."""
    return all(first.began <= first.ended <= then.began <= then.ended for first, then in pairwise(spans))


STEPS = {"delivery", "validate", "idempotency_check", "rate_limit_check", "persistence_write", "provider_send"}


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
    traced = [span for span in spans_of(collector) if span.attributes.get("request_id") == request]
    ours = [span for span in traced if span.name in STEPS]
    named = by_name(ours)
    assert named.keys() == STEPS
    [root], [validate] = named["delivery"], named["validate"]
    [key], [rate], [write] = named["idempotency_check"], named["rate_limit_check"], named["persistence_write"]
    first, second = sorted(named["provider_send"], key=lambda span: span.began)
    assert {span.parent_id for span in (validate, key, rate, write, first, second)} == {root.span_id}
    # Each step is timed by one span: what the database took is not what the provider took.
    assert one_after_another(validate, key, rate, write, first, second)
    assert root.began <= validate.began
    assert key.ended > key.began
    assert write.ended > write.began
    # The same trace as the request's own, from Switchboard on.
    assert len({span.trace_id for span in traced}) == 1
    known = {span.span_id: span for span in traced}
    assert "butlers.switchboard.request" in {span.name for span in traced}
    assert root.parent_id in known
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
            kept = await rows(running)
            refused = await execute(running, route(running, wish("to nobody", channel="pigeon", recipient="431")))
            assert refused["status"] == "error"
    delivery = answer["delivery"]["delivery_id"]
    spans = spans_of(collector)
    named = {span.name: span for span in spans if span.attributes.get("delivery_id") == delivery}
    assert named.keys() >= {"persistence_write", "provider_send"}
    assert "request_id" not in named["provider_send"].attributes
    # Its attempts hang below its root, like those of an answer.
    [root] = [span for span in spans if span.span_id == named["provider_send"].parent_id]
    assert (root.name, root.span_id) == ("delivery", named["persistence_write"].parent_id)
    (row,) = kept
    assert row["request_id"] is None
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    mine = [line for line in lines if line.get("delivery_id") == delivery]
    assert [line["event"] for line in mine] == ["delivery recorded", "delivery attempted"]


@pytest.mark.scenario("M1-053")
async def test_a_step_that_a_delivery_does_not_come_to_has_no_span(
    tmp_path: Path, postgres_server: EmbeddedPostgres, collector: Collector
) -> None:
    async with running_system(
        tmp_path, postgres_server, names=["messenger"], otlp_endpoint=collector.address
    ) as running:
        once = wish("once", recipient="441", idempotency_key="once")
        for _ in range(2):
            assert (await deliver(running, once))["delivery"]["status"] == "delivered"
        await running.control("POST", "/users/442/block")
        for text in ("unwanted", "still unwanted"):
            assert (await execute(running, route(running, wish(text, recipient="442"))))["status"] == "error"
        assert len(await rows(running)) == 2
    named = by_name(spans_of(collector))
    assert len(named["delivery"]) == 4
    assert [span.attributes["outcome"] for span in named["idempotency_check"]] == ["new", "known", "new", "new"]
    judged = [(span.attributes["outcome"], span.attributes.get("rule")) for span in named["rate_limit_check"]]
    assert judged == [("admitted", None), ("admitted", None), ("refused", "suppressed")]
    assert len(named["persistence_write"]) == len(named["provider_send"]) == 2


@pytest.mark.scenario("M1-053")
async def test_an_attempt_after_a_restart_belongs_to_the_same_trace(
    tmp_path: Path, postgres_server: EmbeddedPostgres, collector: Collector
) -> None:
    impatient = changed_roster(tmp_path, "messenger", (r"route_timeout_s = 20\.0", "route_timeout_s = 0.5"))
    async with running_system(
        tmp_path, postgres_server, names=["messenger"], roster_dir=impatient, otlp_endpoint=collector.address
    ) as running:
        await fault(running, "too_many_requests", retry_after=300)
        told = await deliver(running, wish("later", recipient="451"))
        assert told["delivery"]["status"] == "awaiting_retry"
        await running.restart()
        await hurry(running)

        async def delivered() -> bool:
            return [row["status"] for row in await rows(running)] == ["delivered"]

        await running.until(delivered)
    named = by_name(spans_of(collector))
    [root], sends = named["delivery"], named["provider_send"]
    assert sorted(span.attributes["attempt"] for span in sends) == ["1", "2"]
    assert {(span.trace_id, span.parent_id) for span in sends} == {(root.trace_id, root.span_id)}
