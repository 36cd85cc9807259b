"""OTLP leaves the process only when an endpoint is configured."""

from __future__ import annotations

import pytest

from butlers.clock import SystemClock
from butlers.telemetry import catalogue, spans
from butlers.telemetry.telemetry import Telemetry
from tests.collector import Collector, collector

__all__ = ["collector"]


def work(telemetry: Telemetry) -> None:
    with telemetry.span(spans.ROUTE_EXECUTE):
        telemetry.count(catalogue.ROUTE_EXECUTED, outcome="ok")
    telemetry.shutdown()


def test_metrics_and_traces_reach_the_configured_endpoint(collector: Collector) -> None:
    work(Telemetry.create("finance", "one", clock=SystemClock(), otlp_endpoint=f"{collector.address}/"))
    assert set(collector.received) == {"/v1/metrics", "/v1/traces"}
    assert b"butlers.butler.route_executed" in collector.received["/v1/metrics"]
    assert b"butlers.butler.route_execute" in collector.received["/v1/traces"]
    assert all(b"finance" in body for body in collector.received.values())


def test_nothing_leaves_without_an_endpoint(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    work(Telemetry.create("finance", "one", clock=SystemClock()))
    assert collector.received == {}


def test_dead_endpoint_does_not_hold_up_the_stop() -> None:
    clock = SystemClock()
    telemetry = Telemetry.create("finance", "one", clock=clock, otlp_endpoint="http://127.0.0.1:1")
    started = clock.monotonic()
    work(telemetry)
    assert clock.monotonic() - started < 10
