"""What a butler records, and what a scrape of its port shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import uuid4

import pytest
from opentelemetry import metrics, trace
from prometheus_client.parser import text_string_to_metric_families

from butlers.clock import ManualClock
from butlers.telemetry import catalogue
from butlers.telemetry.catalogue import CATALOGUE, Kind, Metric
from butlers.telemetry.telemetry import Telemetry


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    created = Telemetry.create("finance", "test-1", clock=ManualClock())
    yield created
    created.shutdown()


def samples(telemetry: Telemetry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(telemetry.prometheus_text().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_counter_sums_by_attributes(telemetry: Telemetry) -> None:
    telemetry.count(catalogue.MESSAGE_RECEIVED, source_channel="telegram", policy_tier="default")
    telemetry.count(catalogue.MESSAGE_RECEIVED, 2, source_channel="telegram", policy_tier="default")
    telemetry.count(catalogue.MESSAGE_RECEIVED, source_channel="email", policy_tier="default")

    name = "butlers_switchboard_message_received_total"
    seen = samples(telemetry)
    assert seen[name, (("policy_tier", "default"), ("source_channel", "telegram"))] == 3
    assert seen[name, (("policy_tier", "default"), ("source_channel", "email"))] == 1


def test_counter_that_ends_in_total_keeps_its_name(telemetry: Telemetry) -> None:
    telemetry.count(catalogue.BUFFER_ENQUEUE, path="hot")
    assert samples(telemetry)["butlers_buffer_enqueue_total", (("path", "hot"),)] == 1


def test_histogram_shows_cumulative_buckets_without_a_unit_suffix(telemetry: Telemetry) -> None:
    for value in (3, 7, 700, 10_000_000):
        telemetry.observe(catalogue.BUFFER_PROCESS_LATENCY, value, outcome="ok")

    name, seen = "butlers_buffer_process_latency_ms", samples(telemetry)
    assert seen[f"{name}_bucket", (("le", "5.0"), ("outcome", "ok"))] == 1
    assert seen[f"{name}_bucket", (("le", "10.0"), ("outcome", "ok"))] == 2
    assert seen[f"{name}_bucket", (("le", "1000.0"), ("outcome", "ok"))] == 3
    assert seen[f"{name}_bucket", (("le", "+Inf"), ("outcome", "ok"))] == 4
    assert seen[f"{name}_count", (("outcome", "ok"),)] == 4
    assert seen[f"{name}_sum", (("outcome", "ok"),)] == 10_000_710


def test_gauge_shows_the_last_value_and_up_down_the_balance(telemetry: Telemetry) -> None:
    telemetry.gauge(catalogue.BUFFER_QUEUE_DEPTH, 4, policy_tier="default")
    telemetry.gauge(catalogue.BUFFER_QUEUE_DEPTH, 1, policy_tier="default")
    telemetry.count(catalogue.INFLIGHT_REQUESTS, 3)
    telemetry.count(catalogue.INFLIGHT_REQUESTS, -1)

    seen = samples(telemetry)
    assert seen["butlers_buffer_queue_depth", (("policy_tier", "default"),)] == 1
    assert seen["butlers_switchboard_inflight_requests", ()] == 2


def test_attribute_left_out_is_an_empty_label_and_true_is_lower_case(telemetry: Telemetry) -> None:
    telemetry.count(catalogue.DEQUEUE_BY_TIER, policy_tier=None, starvation_override=True)
    labels = (("policy_tier", ""), ("starvation_override", "true"))
    assert samples(telemetry)["butlers_switchboard_queue_dequeue_by_tier_total", labels] == 1


def test_undeclared_attribute_is_refused(telemetry: Telemetry) -> None:
    with pytest.raises(ValueError, match="request_id"):
        telemetry.count(catalogue.MESSAGE_RECEIVED, request_id=str(uuid4()))
    with pytest.raises(ValueError, match="chat"):
        telemetry.observe(catalogue.ROUTE_LATENCY, 1, chat="42")
    with pytest.raises(ValueError, match="chat"):
        telemetry.gauge(catalogue.BUFFER_QUEUE_DEPTH, 1, chat="42")


def test_metric_outside_of_the_catalogue_or_of_another_kind_is_refused(telemetry: Telemetry) -> None:
    stray = Metric(name="butlers.stray", kind=Kind.COUNTER, unit="", description="")
    with pytest.raises(ValueError, match="not in the catalogue"):
        telemetry.count(stray)
    with pytest.raises(ValueError, match="histogram"):
        telemetry.count(catalogue.ROUTE_LATENCY)
    with pytest.raises(ValueError, match="cannot go down"):
        telemetry.count(catalogue.MESSAGE_RECEIVED, -1)


def test_every_butler_shows_only_its_own_numbers() -> None:
    finance = Telemetry.create("finance", "one", clock=ManualClock())
    travel = Telemetry.create("travel", "one", clock=ManualClock())
    finance.count(catalogue.ROUTE_EXECUTED, outcome="ok")

    assert b"butlers_butler_route_executed_total" in finance.prometheus_text()
    assert b"butlers_butler_route_executed_total" not in travel.prometheus_text()
    assert b'service_name="travel"' in travel.prometheus_text()
    assert b"finance" not in travel.prometheus_text()
    finance.shutdown()
    travel.shutdown()


def test_global_providers_stay_untouched(telemetry: Telemetry) -> None:
    telemetry.count(catalogue.ROUTE_EXECUTED)
    assert type(metrics.get_meter_provider()).__module__.startswith("opentelemetry.metrics")
    assert type(trace.get_tracer_provider()).__module__.startswith("opentelemetry.trace")


def test_shutdown_twice_is_quiet(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    telemetry.shutdown()
    telemetry.shutdown()
    assert caplog.records == []


def test_catalogue_names_are_unique_and_well_formed() -> None:
    names = [metric.name for metric in CATALOGUE]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"butlers(\.[a-z][a-z_]*)+", name) for name in names)
    assert all(metric.description and metric.unit for metric in CATALOGUE)


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_every_metric_can_be_recorded_with_all_its_attributes(telemetry: Telemetry, metric: Metric) -> None:
    attributes = dict.fromkeys(metric.attributes, "x")
    record = {Kind.HISTOGRAM: telemetry.observe, Kind.GAUGE: telemetry.gauge}.get(metric.kind, telemetry.count)
    record(metric, 1, **attributes)
    assert any(name.startswith(metric.prometheus_name) for name, _ in samples(telemetry))


# Seed 001, section 14.1.
CORE_COUNTERS = {
    *(f"delivery_{deed}" for deed in ("requested", "deduplicated", "sent", "failed")),
    *("retry_attempt", "rate_limited", "admission_rejected"),
}
CORE_HISTOGRAMS = {"delivery_latency_ms", "provider_latency_ms", "queue_wait_ms"}
SEED_ATTRIBUTES = {"channel", "intent", "identity_scope", "outcome", "error_class", "origin_butler"}
KNOWN_FROM_THE_START = SEED_ATTRIBUTES - {"outcome", "error_class"}
# Whatever else a metric of Messenger may be cut by has a handful of values.
FURTHER_ATTRIBUTES = {"rule", "receipt_type", "decision", "status", "record"}


def messengers(names: set[str]) -> list[Metric]:
    return [metric for metric in catalogue.MESSENGER if metric.name.removeprefix("butlers.messenger.") in names]


def test_messenger_has_the_counters_and_histograms_of_its_seed() -> None:
    counters, histograms = messengers(CORE_COUNTERS), messengers(CORE_HISTOGRAMS)
    assert (len(counters), len(histograms)) == (7, 3)
    assert {metric.kind for metric in counters} == {Kind.COUNTER}
    assert {metric.kind for metric in histograms} == {Kind.HISTOGRAM}


def test_core_metrics_carry_the_attributes_of_the_seed_and_a_refusal_its_rule() -> None:
    for metric in messengers(CORE_COUNTERS | CORE_HISTOGRAMS):
        assert metric.attributes >= KNOWN_FROM_THE_START, metric.name
        assert metric.attributes - {"rule"} <= SEED_ATTRIBUTES, metric.name
    ended = messengers({"delivery_failed", "delivery_latency_ms", "provider_latency_ms"})
    assert all(metric.attributes == SEED_ATTRIBUTES for metric in ended)
    refused = messengers({"rate_limited", "admission_rejected"})
    assert all(metric.attributes == SEED_ATTRIBUTES | {"rule"} for metric in refused)


def test_messenger_uses_the_attributes_of_its_seed_and_a_few_with_few_values() -> None:
    used = {attribute for metric in catalogue.MESSENGER for attribute in metric.attributes}
    assert used == SEED_ATTRIBUTES | FURTHER_ATTRIBUTES
