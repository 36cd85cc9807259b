"""Every metric there is, as data.

A metric that is not listed here cannot be recorded, and an attribute that is not listed beside it is refused: the
number of time series is a contract, and an id or a sentence as an attribute value would break it.

In Prometheus text the dots become underscores and a counter ends in `_total`:

    butlers.messenger.delivery_sent         butlers_messenger_delivery_sent_total
    butlers.buffer.enqueue_total            butlers_buffer_enqueue_total
    butlers.buffer.process_latency_ms       butlers_buffer_process_latency_ms_bucket, _sum, _count
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# Of the six attributes that every delivery metric has to offer, the last two exist only once something has ended.
_DELIVERY = "channel intent identity_scope origin_butler"
_ENDED = f"{_DELIVERY} outcome error_class"
# Which rule of admission refused or put off: one of a handful of names, never a recipient or a bucket.
_REFUSED = f"{_ENDED} rule"
_TARGET = "channel identity_scope"


class Kind(StrEnum):
    COUNTER = "counter"  # only ever grows
    UP_DOWN = "up_down"  # a sum of steps in both directions
    HISTOGRAM = "histogram"  # a distribution of measured values
    GAUGE = "gauge"  # the last value seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What is measured, in which unit, and by which attributes it may be cut."""

    name: str  # dotted, as the seeds spell it
    kind: Kind
    unit: str  # UCUM: "ms", or an annotation such as "{message}"
    description: str
    attributes: frozenset[str] = frozenset()

    @property
    def prometheus_name(self) -> str:
        """The family name in the text exposition, without the suffixes that the format adds by itself."""
        return self.name.replace(".", "_")


def _metric(kind: Kind, name: str, unit: str, description: str, attributes: str) -> Metric:
    allowed = frozenset(attributes.split())
    return Metric(name=name, kind=kind, unit=unit, description=description, attributes=allowed)


def _counter(name: str, unit: str, description: str, attributes: str = "") -> Metric:
    return _metric(Kind.COUNTER, name, unit, description, attributes)


def _latency(name: str, description: str, attributes: str = "") -> Metric:
    return _metric(Kind.HISTOGRAM, name, "ms", description, attributes)


def _gauge(name: str, unit: str, description: str, attributes: str = "") -> Metric:
    return _metric(Kind.GAUGE, name, unit, description, attributes)


def _up_down(name: str, unit: str, description: str, attributes: str = "") -> Metric:
    return _metric(Kind.UP_DOWN, name, unit, description, attributes)


# --- Switchboard -----------------------------------------------------------------------------------------------------

MESSAGE_RECEIVED = _counter(
    "butlers.switchboard.message_received",
    "{message}",
    "Messages that reached the ingress, duplicates included",
    "source_channel policy_tier",
)
MESSAGE_DEDUPLICATED = _counter(
    "butlers.switchboard.message_deduplicated",
    "{message}",
    "Messages that were known already and returned the first request_id",
    "source_channel strategy",
)
MESSAGE_REJECTED = _counter(
    "butlers.switchboard.message_rejected",
    "{message}",
    "Messages that were refused at the door",
    "source_channel error_class",
)
SENDER_REFUSED = _counter(
    "butlers.switchboard.sender_refused",
    "{message}",
    "Messages that were not taken in because of who wrote them",
    "source_channel reason",
)
ADMISSION = _counter(
    "butlers.switchboard.admission_total",
    "{message}",
    "New messages at the door by what was done with them: accepted, deferred, shed or rejected",
    "source_channel policy_tier outcome",
)
SUBROUTE_DISPATCHED = _counter(
    "butlers.switchboard.subroute_dispatched",
    "{subroute}",
    "Segments handed to a butler",
    "target_butler router fanout_mode",
)
SUBROUTE_RESULT = _counter(
    "butlers.switchboard.subroute_result",
    "{subroute}",
    "Segments that came to an end",
    "target_butler outcome error_class",
)
ROUTING_FALLBACK = _counter(
    "butlers.switchboard.routing_fallback",
    "{message}",
    "Messages that went to the general butler because no better decision was safe",
    "reason",
)
REQUEST_FINISHED = _counter(
    "butlers.switchboard.request_finished",
    "{request}",
    "Requests that reached a terminal lifecycle state",
    "source_channel lifecycle_state",
)
DEQUEUE_BY_TIER = _counter(
    "butlers.switchboard.queue.dequeue_by_tier",
    "{message}",
    "Messages taken from the buffer, by tier and by whether starvation protection chose them",
    "policy_tier starvation_override",
)
INGRESS_ACCEPT_LATENCY = _latency(
    "butlers.switchboard.ingress_accept_latency_ms",
    "From the request's arrival to the durable accept",
    "source_channel",
)
ROUTING_DECISION_LATENCY = _latency(
    "butlers.switchboard.routing_decision_latency_ms", "Time taken to choose the targets", "router"
)
SUBROUTE_LATENCY = _latency(
    "butlers.switchboard.subroute_latency_ms",
    "From the dispatch of a segment to its result",
    "target_butler outcome",
)
END_TO_END_LATENCY = _latency(
    "butlers.switchboard.end_to_end_latency_ms",
    "From the accept to the terminal state, the whole fanout included",
    "source_channel policy_tier lifecycle_state",
)
INTERACTIVE_LATENCY = _latency(
    "butlers.switchboard.interactive_terminal_latency_ms",
    "From PROGRESS to PARSED or ERRORED, where somebody waits: in a chat, or in the tier interactive",
    "source_channel lifecycle_state",
)
SWITCHBOARD_QUEUE_DEPTH = _gauge(
    "butlers.switchboard.queue_depth", "{request}", "Requests that have not come to their end", "source_channel"
)
INFLIGHT_REQUESTS = _up_down("butlers.switchboard.inflight_requests", "{request}", "Requests that a worker has in hand")
CIRCUIT_TRANSITION = _counter(
    "butlers.switchboard.circuit_transition",
    "{transition}",
    "Changes of a target's circuit, by the state it changed to: closed, open or half-open",
    "target_butler circuit_state",
)
CIRCUIT_OPEN_TARGETS = _gauge(
    "butlers.switchboard.circuit_open_targets", "{butler}", "Butlers whose circuit is open or half-open"
)


# --- Durable buffer --------------------------------------------------------------------------------------------------

BUFFER_QUEUE_DEPTH = _gauge("butlers.buffer.queue_depth", "{message}", "Messages in the memory queue", "policy_tier")
BUFFER_ENQUEUE = _counter(
    "butlers.buffer.enqueue_total",
    "{message}",
    "Messages put into the buffer: hot at ingress, cold by the scanner",
    "path",
)
BUFFER_BACKPRESSURE = _counter(
    "butlers.buffer.backpressure_total", "{message}", "Messages left to the scanner because the queue was full"
)
BUFFER_SCANNER_RECOVERED = _counter(
    "butlers.buffer.scanner_recovered_total", "{message}", "Messages that the scanner found in the inbox"
)
BUFFER_PROCESS_LATENCY = _latency("butlers.buffer.process_latency_ms", "Time a worker spent on one message", "outcome")


# --- Messenger -------------------------------------------------------------------------------------------------------


DELIVERY_REQUESTED = _counter("butlers.messenger.delivery_requested", "{delivery}", "Deliveries asked for", _DELIVERY)
DELIVERY_DEDUPLICATED = _counter(
    "butlers.messenger.delivery_deduplicated", "{delivery}", "Deliveries that were known already", _DELIVERY
)
SECRETS_REDACTED = _counter(
    "butlers.messenger.secrets_redacted", "{delivery}", "Deliveries that a secret was taken out of", _DELIVERY
)
DELIVERY_SENT = _counter(
    "butlers.messenger.delivery_sent", "{delivery}", "Deliveries that the provider accepted", f"{_DELIVERY} outcome"
)
DELIVERY_FAILED = _counter(
    "butlers.messenger.delivery_failed", "{delivery}", "Deliveries that ended without being sent", _ENDED
)
RETRY_ATTEMPT = _counter(
    "butlers.messenger.retry_attempt",
    "{attempt}",
    "Attempts after the first, by what the attempt before them failed with",
    f"{_DELIVERY} error_class",
)
RATE_LIMITED = _counter(
    "butlers.messenger.rate_limited",
    "{delivery}",
    "Deliveries that a rate refused (rejected) or put off (delayed): our budgets, or a provider's throttle",
    _REFUSED,
)
ADMISSION_REJECTED = _counter(
    "butlers.messenger.admission_rejected", "{delivery}", "Deliveries refused at the door, by any rule", _REFUSED
)
DELIVERY_LATENCY = _latency("butlers.messenger.delivery_latency_ms", "From the request to its terminal state", _ENDED)
PROVIDER_LATENCY = _latency("butlers.messenger.provider_latency_ms", "One call to the provider", _ENDED)
QUEUE_WAIT = _latency("butlers.messenger.queue_wait_ms", "From the request to the first attempt", _DELIVERY)

UNCERTAIN = _counter(
    "butlers.messenger.uncertain", "{delivery}", "Deliveries that may or may not have been sent", _DELIVERY
)
DEAD_LETTERED = _counter(
    "butlers.messenger.dead_lettered", "{delivery}", "Deliveries set aside for a person", f"{_DELIVERY} error_class"
)
REPLAYED = _counter("butlers.messenger.replayed", "{delivery}", "Dead letters that were submitted again", _DELIVERY)
RECEIPTS = _counter(
    "butlers.messenger.receipts",
    "{receipt}",
    "What providers said about deliveries: sent, delivered, read or bounced",
    f"{_TARGET} receipt_type",
)
APPROVALS = _counter(
    "butlers.messenger.approvals",
    "{action}",
    "Gated actions: asked for (pending) and decided (approved, rejected, expired)",
    "channel intent origin_butler decision",
)
CIRCUIT_STATE = _gauge(
    "butlers.messenger.circuit_state", "{state}", "0 closed, 1 half-open, 2 open: may a provider be tried", _TARGET
)
MESSENGER_QUEUE_DEPTH = _gauge(
    "butlers.messenger.queue_depth", "{delivery}", "Deliveries that have not ended, by where they stand", "status"
)
ERROR_BUDGET_BURN = _gauge(
    "butlers.messenger.error_budget_burn",
    "{ratio}",
    "Error budget spent over error budget allowed in the short window; -1: too few events to judge",
    _TARGET,
)
RECORDS_REMOVED = _counter(
    "butlers.messenger.records_removed",
    "{record}",
    "Old records that were removed: delivery, attempt, receipt, dead_letter, action",
    "record",
)
BUDGET_MODE = _gauge(
    "butlers.messenger.stance", "{stance}", "0 normal, 1 tight: how strictly a provider is used", _TARGET
)


# --- Outbound --------------------------------------------------------------------------------------------------------

OUTBOUND_QUEUE_ENTRIES = _gauge(
    "butlers.outbound.queue_entries", "{entry}", "Entries of the outbound queue: queued and in_flight", "state"
)
OUTBOUND_QUEUE_OLDEST_AGE = _gauge(
    "butlers.outbound.queue_oldest_age_seconds",
    "s",
    "How long the oldest queued entry has been due; 0: none is due",
)
OUTBOUND_ENDED = _counter(
    "butlers.outbound.message_ended", "{message}", "Messages to a person that came to an end", "channel outcome"
)
OUTBOUND_LATENESS = _latency(
    "butlers.outbound.lateness_ms", "From the scheduled time of a message to its end", "channel outcome"
)
OUTBOUND_QUEUE_ACKNOWLEDGED = _counter(
    "butlers.outbound.queue_acknowledged", "{entry}", "Entries that were done, by all processes of the queue"
)
OUTBOUND_QUEUE_DEAD_LETTERED = _counter(
    "butlers.outbound.queue_dead_lettered", "{entry}", "Entries that could not be done, by all processes of the queue"
)


# --- Outgoing webhooks -----------------------------------------------------------------------------------------------

WEBHOOK_ATTEMPTS = _counter(
    "butlers.webhooks.attempts",
    "{attempt}",
    "Attempts to tell an endpoint of an event, by what came of them (delivered, retried or dead_lettered) and by the "
    "answer (2xx to 5xx, or no_answer)",
    "outcome reason",
)
WEBHOOK_DEAD_LETTERED = _counter(
    "butlers.webhooks.dead_lettered", "{delivery}", "Events that were set aside: their endpoint did not take them"
)
WEBHOOK_ENDPOINT_DISABLED = _counter(
    "butlers.webhooks.endpoint_disabled", "{endpoint}", "Endpoints that were disabled because of their answers"
)
WEBHOOK_PENDING = _gauge("butlers.webhooks.pending", "{delivery}", "Events that wait to be told to an endpoint")


# --- What every butler does ------------------------------------------------------------------------------------------

ROUTE_EXECUTED = _counter(
    "butlers.butler.route_executed", "{route}", "Calls of route.execute that ended", "outcome error_class"
)
ROUTE_LATENCY = _latency("butlers.butler.route_latency_ms", "One call of route.execute", "outcome")
ROUTE_INBOX_RECOVERED = _counter(
    "butlers.butler.route_inbox_recovered", "{route}", "Routes taken over after their worker went away"
)
SESSIONS = _counter("butlers.butler.sessions", "{session}", "Sessions of the LLM runtime", "runtime outcome")
SCHEDULE_RUNS = _counter("butlers.butler.schedule_runs", "{run}", "Runs of schedules", "schedule dispatch_mode outcome")


def _of(system: str) -> tuple[Metric, ...]:
    return tuple(metric for metric in CATALOGUE if metric.name.startswith(f"butlers.{system}."))


# Every metric that is declared above, in that order.
CATALOGUE: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
SWITCHBOARD, BUFFER, MESSENGER, OUTBOUND, WEBHOOKS, BUTLER = (
    _of(system) for system in ("switchboard", "buffer", "messenger", "outbound", "webhooks", "butler")
)
