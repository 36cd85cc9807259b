"""Traces and metrics of real traffic reach a configured OTLP endpoint, as one trace from the door to the provider."""

from __future__ import annotations

from pathlib import Path

from butlers.storage.embedded import EmbeddedPostgres
from tests.collector import Collector, collector
from tests.system import running_system

__all__ = ["collector"]


async def test_one_request_is_one_trace_over_all_butlers(
    tmp_path: Path, postgres_server: EmbeddedPostgres, collector: Collector
) -> None:
    async with running_system(tmp_path, postgres_server, otlp_endpoint=collector.address) as running:
        reply = await running.ingest("I paid the electricity bill")
        await running.finished(reply["request_id"])
    spans = [span for span in collector.spans() if span.request_id == reply["request_id"]]
    names = {span.name for span in spans}
    assert names >= {
        "butlers.switchboard.request",
        "butlers.switchboard.dispatch",
        "butlers.butler.route_execute",
        "butlers.messenger.delivery",
        "butlers.messenger.provider_send",
    }
    assert len({span.trace_id for span in spans}) == 1
