"""A stand-in for an OpenTelemetry collector, on a port of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedSpan:
    name: str
    trace_id: str
    request_id: str | None


class Collector(ThreadingHTTPServer):
    """A stand-in for an OpenTelemetry collector that keeps what it was sent, by path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CollectorHandler)
        self.received: dict[str, bytes] = {}

    def spans(self) -> list[CollectedSpan]:
        # Protocol buffers that stand one behind the other are one message with all their parts.
        export = ExportTraceServiceRequest.FromString(self.received.get("/v1/traces", b""))
        return [
            CollectedSpan(
                name=span.name,
                trace_id=span.trace_id.hex(),
                request_id=next((a.value.string_value for a in span.attributes if a.key == "request_id"), None),
            )
            for resource in export.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

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
