"""What is told about messages that came in: counts, times and a log line each.

A whole batch is recorded at once, after its commit: doing the same small thing for a hundred messages in a row costs a
third of doing it for each when its turn comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from butlers.clock import Clock
from butlers.switchboard.admission.admission import Admission
from butlers.switchboard.admission.decision import Outcome
from butlers.switchboard.submission import Placed, Submission
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import (
    INGRESS_ACCEPT_LATENCY,
    MESSAGE_DEDUPLICATED,
    MESSAGE_RECEIVED,
    REQUEST_FINISHED,
)

log = get_logger("butlers.ingress")


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestRecord:
    telemetry: Telemetry
    admission: Admission
    clock: Clock
    accepted: Callable[[datetime, str, float], None]  # when it came, by which channel, after ms

    def tell(self, results: Iterable[tuple[Submission, Placed]]) -> None:
        counts: Counter[tuple[str, str, Outcome | None, str]] = Counter()
        now = self.clock.monotonic()
        for submission, placed in results:
            channel, elapsed_ms = submission.channel, (now - submission.started) * 1000
            counts[channel, submission.tier, placed.outcome, submission.identity.strategy] += 1
            self.telemetry.observe(INGRESS_ACCEPT_LATENCY, elapsed_ms, source_channel=channel)
            if placed.request_id is not None:
                self.accepted(submission.context.received_at, channel, elapsed_ms)
            _log(submission, placed)
        for (channel, tier, outcome, strategy), number in counts.items():
            self._count(channel, tier, outcome, strategy, number)

    def _count(self, channel: str, tier: str, outcome: Outcome | None, strategy: str, number: int) -> None:
        self.telemetry.count(MESSAGE_RECEIVED, number, source_channel=channel, policy_tier=tier)
        if outcome is None:
            self.telemetry.count(MESSAGE_DEDUPLICATED, number, source_channel=channel, strategy=strategy)
        else:
            self.admission.record(outcome, number, channel=channel, tier=tier)
        if outcome is Outcome.SHED:
            self.telemetry.count(REQUEST_FINISHED, number, source_channel=channel, lifecycle_state="errored")


def _log(submission: Submission, placed: Placed) -> None:
    ids = {"request_id": placed.request_id, "source_channel": submission.channel}
    key, outcome = submission.identity.key, placed.outcome
    match outcome:
        case None:
            log.info("ingest deduplicated", dedupe_key=key, dedupe_action="deduped", **ids)
        case Outcome.ACCEPTED:
            log.info("ingest accepted", dedupe_key=key, dedupe_action="accepted", **ids)
        case Outcome.REJECTED:
            log.info("ingest rejected", dedupe_key=key, outcome=outcome, **ids)
        case Outcome.DEFERRED | Outcome.SHED:
            log.info("ingest overflow", dedupe_key=key, dedupe_action="accepted", outcome=outcome, **ids)
