"""OTLP leaves the process only when an endpoint is configured."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from butlers.clock import SystemClock
from butlers.telemetry import Telemetry, catalogue, spans


class Collector(ThreadingHTTPServer):
    """A stand-in for an OpenTelemetry collector that keeps what it was sent, by path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CollectorHandler)
        self.received: dict[str, bytes] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class CollectorHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received[self.path] = self.server.received.get(self.path, b"") + body
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


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
