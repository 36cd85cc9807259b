"""What Messenger tells about itself: metrics, spans and log lines, in one place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from opentelemetry.trace import Span

from butlers.channels.adapter import NotSent, Sent
from butlers.clock import Clock
from butlers.contracts.notify import NotifyContext, NotifyEnvelope
from butlers.messenger.admission import Entry, Step, Taken
from butlers.messenger.admission_rules import Known, Parked, Refused
from butlers.messenger.attempt import Ended
from butlers.messenger.delivery import ClaimedDelivery, NewDelivery
from butlers.messenger.preparation import SECRETS_RULE
from butlers.storage.database import Record
from butlers.telemetry import get_logger
from butlers.telemetry.catalogue import (
    ADMISSION_REJECTED,
    APPROVALS,
    DEAD_LETTERED,
    DELIVERY_DEDUPLICATED,
    DELIVERY_FAILED,
    DELIVERY_LATENCY,
    DELIVERY_REQUESTED,
    DELIVERY_SENT,
    PROVIDER_LATENCY,
    QUEUE_WAIT,
    RATE_LIMITED,
    RECEIPTS,
    REPLAYED,
    RETRY_ATTEMPT,
    SECRETS_REDACTED,
    UNCERTAIN,
)
from butlers.telemetry.spans import (
    IDEMPOTENCY_CHECK,
    PERSISTENCE_WRITE,
    PROVIDER_SEND,
    RATE_LIMIT_CHECK,
    SpanName,
)
from butlers.telemetry.telemetry import Telemetry

log = get_logger("butlers.messenger")

_RATES = frozenset({"throttle", "global", "channel", "recipient", "fair_share"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    telemetry: Telemetry
    clock: Clock
    # When deliveries that are being taken on came to which step of the transaction, and when they began.
    timings: dict[UUID, dict[str, datetime]] = field(default_factory=dict)

    # --- intake ------------------------------------------------------------------------------------------------------

    def span(self, name: SpanName, notify: NotifyEnvelope, **labels: Any) -> AbstractContextManager[Span]:
        return self.telemetry.span(
            name,
            request_id=notify.request_id,
            channel=notify.delivery.channel,
            intent=notify.delivery.intent,
            origin_butler=notify.origin_butler,
            **labels,
        )

    def traced(self, new: NewDelivery) -> NewDelivery:
        """With the current span in its lineage, so that every attempt hangs below it, also after a restart."""
        if not self.telemetry.traced:
            return new
        context = new.notify.request_context or NotifyContext()
        here = context.model_copy(update={"trace_context": self.telemetry.inject()})
        return replace(new, notify=new.notify.model_copy(update={"request_context": here}))

    @contextmanager
    def recording(self, new: NewDelivery) -> Iterator[None]:
        """Key, budgets and write are one transaction for many deliveries; `reached` tells when it came to which."""
        if self.telemetry.traced:
            self.timings[new.id] = {"began": self.clock.now()}
        try:
            yield
        except BaseException:
            self.timings.pop(new.id, None)
            raise

    def reached(self, new: Sequence[NewDelivery], step: Step) -> None:
        """The transaction has come so far with these deliveries."""
        if self.timings:
            now = self.clock.now()
            for delivery in new:
                if (timing := self.timings.get(delivery.id)) is not None:
                    timing[step] = now

    def entered(self, new: NewDelivery, entry: Entry | Parked) -> None:
        if (timing := self.timings.pop(new.id, None)) is not None:
            self._trace_steps(new, entry, timing)
        labels, context = new.labels, {"delivery_id": new.id, "request_id": new.notify.request_id}
        if isinstance(entry, Refused):
            self._refused(new, entry)
            return
        self.telemetry.count(DELIVERY_DEDUPLICATED if isinstance(entry, Known) else DELIVERY_REQUESTED, 1, **labels)
        if any(decision.rule == SECRETS_RULE for decision in new.decisions):
            self.telemetry.count(SECRETS_REDACTED, 1, **labels)
            log.warning("secret taken out of a delivery", butler=new.notify.origin_butler, delivery_id=new.id)
        if isinstance(entry, Parked):
            about = {name: labels[name] for name in ("channel", "intent", "origin_butler")}
            self.telemetry.count(APPROVALS, 1, decision="pending", **about)
        if not isinstance(entry, Taken):
            context["delivery_id"] = entry.delivery_id
        log.info("delivery recorded", duplicate=isinstance(entry, Known), **context)

    def _trace_steps(self, new: NewDelivery, entry: Entry | Parked, at: Mapping[str, datetime]) -> None:
        """One span for each step of the admission that the delivery came to, from the step before it."""
        about: dict[str, Any] = {"request_id": new.notify.request_id, "channel": new.notify.delivery.channel}

        def between(since: str, until: str) -> tuple[datetime, datetime]:
            began = at.get(since, at["began"])
            return began, at.get(until, began)

        known = "known" if isinstance(entry, Known) else "new"
        with self.telemetry.span(IDEMPOTENCY_CHECK, between=between("began", "read"), outcome=known, **about):
            pass
        if isinstance(entry, Known):
            return
        rule = entry.rule if isinstance(entry, Refused) else None
        decided: dict[str, Any] = {
            "identity_scope": new.identity_scope,
            "outcome": "refused" if rule else "admitted",
            "rule": rule,
        }
        with self.telemetry.span(RATE_LIMIT_CHECK, between=between("read", "decided"), **decided, **about):
            pass
        if isinstance(entry, Taken):
            identity = str(new.id)
            with self.telemetry.span(
                PERSISTENCE_WRITE, between=between("decided", "written"), delivery_id=identity, **about
            ):
                pass

    def _refused(self, new: NewDelivery, refused: Refused) -> None:
        error_class = refused.error.error_class.value
        about = {"outcome": "rejected", "error_class": error_class, "rule": refused.rule, **new.labels}
        self.telemetry.count(ADMISSION_REJECTED, 1, **about)
        if refused.rule in _RATES:
            self.telemetry.count(RATE_LIMITED, 1, **about)
        log.info(
            "delivery refused",
            request_id=new.notify.request_id,
            channel=new.notify.delivery.channel,
            reason=refused.rule,
            error_class=error_class,
        )

    # --- attempts ----------------------------------------------------------------------------------------------------

    def provider_send(self, delivery: ClaimedDelivery) -> AbstractContextManager[Span]:
        """An attempt begins."""
        if delivery.attempt == 1:
            waited = self.clock.now() - delivery.created_at
            self.telemetry.observe(QUEUE_WAIT, waited.total_seconds() * 1000, **delivery.labels)
        else:
            self.telemetry.count(RETRY_ATTEMPT, 1, error_class=delivery.last_error_class, **delivery.labels)
        return self.telemetry.span(
            PROVIDER_SEND,
            request_id=delivery.request_id,
            parent=delivery.trace_context,
            delivery_id=str(delivery.id),
            channel=delivery.channel,
            attempt=delivery.attempt,
        )

    def attempt_ended(self, ended: Ended) -> None:
        delivery, status, result, own = ended.delivery, ended.settlement.status, ended.result, ended.delivery.labels
        error_class = ended.settlement.error.error_class.value if ended.settlement.error else None
        labels = {"outcome": status, "error_class": error_class, **own}
        self.telemetry.observe(PROVIDER_LATENCY, ended.latency_ms, **labels)
        log.info(
            "delivery attempted",
            delivery_id=delivery.id,
            request_id=delivery.request_id,
            attempt=delivery.attempt,
            outcome=status,
            error_class=error_class,
        )
        if isinstance(result, Sent):
            scope = {"channel": delivery.channel, "identity_scope": delivery.identity_scope}
            self.telemetry.count(RECEIPTS, 1, receipt_type="sent", **scope)
        elif result.throttle is not None:
            self.telemetry.count(RATE_LIMITED, 1, rule="throttle", **labels | {"outcome": "delayed"})
        if status == "awaiting_retry":
            return
        total = self.clock.now() - delivery.created_at
        self.telemetry.observe(DELIVERY_LATENCY, total.total_seconds() * 1000, **labels)
        if status == "delivered":
            self.telemetry.count(DELIVERY_SENT, 1, outcome=status, **own)
        else:
            self.telemetry.count(DELIVERY_FAILED, 1, **labels)
        if status == "uncertain":
            self.telemetry.count(UNCERTAIN, 1, **own)
        if status == "dead_lettered":
            self.telemetry.count(DEAD_LETTERED, 1, error_class=error_class, **own)

    def rescued(self, ended: Ended) -> None:
        certainty = ended.result.certainty if isinstance(ended.result, NotSent) else None
        log.warning(
            "delivery rescued",
            delivery_id=ended.delivery.id,
            certainty=certainty,
            request_id=ended.delivery.request_id,
        )
        if ended.settlement.status == "uncertain":
            self.telemetry.count(UNCERTAIN, 1, **ended.delivery.labels)

    def receipt(self, channel: str, receipt_type: str) -> None:
        """A provider said something about a delivery later on."""
        self.telemetry.count(RECEIPTS, 1, channel=channel, receipt_type=receipt_type)

    def replayed(self, new: NewDelivery) -> None:
        self.telemetry.count(REPLAYED, 1, **new.labels)

    def expired(self, rows: Sequence[Record]) -> None:
        for row in rows:
            labels = {name: row[name] for name in ("channel", "intent", "identity_scope", "origin_butler")}
            self.telemetry.count(DELIVERY_FAILED, 1, outcome=row["status"], error_class="timeout", **labels)
            if row["status"] == "uncertain":  # its time is over, and it may have arrived
                self.telemetry.count(UNCERTAIN, 1, **labels)
            log.info("delivery expired", delivery_id=row["id"], channel=row["channel"], outcome=row["status"])

    def decided(self, action: Mapping[str, Any], decision: str) -> None:
        """Somebody decided about a parked delivery, or nobody did in time."""
        about = {name: str(action.get(name, "unknown")) for name in ("channel", "intent", "origin_butler")}
        self.telemetry.count(APPROVALS, 1, decision=decision, **about)
