"""Traces: lineage across envelopes, and no content in them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from butlers.clock import ManualClock
from butlers.telemetry import spans
from butlers.telemetry.telemetry import Telemetry


class Traced:
    """A telemetry whose finished spans can be looked at."""

    def __init__(self, butler: str) -> None:
        self.clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
        self._exporter = InMemorySpanExporter()
        processor = SimpleSpanProcessor(self._exporter)
        self.telemetry = Telemetry.create(butler, "test", clock=self.clock, span_processors=[processor])

    def finished(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._exporter.get_finished_spans()}


@pytest.fixture
def switchboard() -> Iterator[Traced]:
    traced = Traced("switchboard")
    yield traced
    traced.telemetry.shutdown()


@pytest.fixture
def finance() -> Iterator[Traced]:
    traced = Traced("finance")
    yield traced
    traced.telemetry.shutdown()


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def test_span_carries_request_id_and_the_time_of_the_clock(switchboard: Traced) -> None:
    request_id = uuid4()
    with switchboard.telemetry.span(spans.INGEST, request_id=request_id, source_channel="telegram"):
        switchboard.clock.advance(1.5)

    span = switchboard.finished()["butlers.switchboard.ingest"]
    assert span.attributes == {"request_id": str(request_id), "source_channel": "telegram"}
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time == 1_500_000_000


def test_trace_context_joins_two_butlers(switchboard: Traced, finance: Traced) -> None:
    with switchboard.telemetry.span(spans.DISPATCH):
        trace_context = switchboard.telemetry.inject()
    assert set(trace_context) == {"traceparent"}

    with finance.telemetry.span(spans.ROUTE_EXECUTE, parent=trace_context):
        pass

    sender = switchboard.finished()["butlers.switchboard.dispatch"]
    receiver = finance.finished()["butlers.butler.route_execute"]
    assert ids(receiver)[0] == ids(sender)[0]
    assert receiver.parent is not None
    assert receiver.parent.span_id == ids(sender)[1]


def test_given_parent_wins_over_the_current_span(switchboard: Traced, finance: Traced) -> None:
    with switchboard.telemetry.span(spans.DISPATCH):
        trace_context = switchboard.telemetry.inject()
    with finance.telemetry.span(spans.DELIVERY), finance.telemetry.span(spans.ROUTE_EXECUTE, parent=trace_context):
        pass
    sender = switchboard.finished()["butlers.switchboard.dispatch"]
    assert ids(finance.finished()["butlers.butler.route_execute"])[0] == ids(sender)[0]


def test_nested_span_is_a_child(switchboard: Traced) -> None:
    with switchboard.telemetry.span(spans.REQUEST), switchboard.telemetry.span(spans.DISPATCH):
        inner_trace = switchboard.telemetry.trace_id()
    finished = switchboard.finished()
    outer, inner = finished["butlers.switchboard.request"], finished["butlers.switchboard.dispatch"]
    assert inner.parent is not None
    assert inner.parent.span_id == ids(outer)[1]
    assert inner_trace == f"{ids(outer)[0]:032x}"


@pytest.mark.parametrize("garbage", [{}, {"traceparent": "no"}, {"traceparent": 7}, {"other": "x"}])
def test_unreadable_trace_context_starts_a_trace_of_its_own(finance: Traced, garbage: dict[str, object]) -> None:
    with finance.telemetry.span(spans.ROUTE_EXECUTE, parent=garbage):
        pass
    assert finance.finished()["butlers.butler.route_execute"].parent is None


def test_outside_of_a_span_there_is_nothing_to_inject(switchboard: Traced) -> None:
    assert switchboard.telemetry.inject() == {}
    assert switchboard.telemetry.trace_id() is None


def test_failure_is_recorded_by_type_and_never_by_message(switchboard: Traced) -> None:
    with (
        pytest.raises(KeyError),
        switchboard.telemetry.span(spans.REQUEST),
    ):
        raise KeyError("my salary is 5000")

    span = switchboard.finished()["butlers.switchboard.request"]
    assert not span.status.is_ok
    assert span.attributes == {"error.type": "KeyError"}
    assert "salary" not in span.to_json()


def test_undeclared_attribute_is_refused(switchboard: Traced) -> None:
    with pytest.raises(ValueError, match="text"), switchboard.telemetry.span(spans.REQUEST, text="hello"):
        pass


def test_span_names_are_unique_and_messengers_are_those_of_its_seed() -> None:
    names = [span.name for span in spans.SPANS]
    assert len(names) == len(set(names))
    assert {span.name.removeprefix("butlers.messenger.") for span in spans.MESSENGER} == {
        "delivery",
        "validate",
        "idempotency_check",
        "rate_limit_check",
        "provider_send",
        "persistence_write",
    }
