"""A delivery's story in plain sentences. Pure: rows in, words out.

who asked -> what each rule decided and what each attempt brought, as it happened -> how it stands
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from butlers.messenger.delivery import CONFIRMED

Row = Mapping[str, Any]

_TOPICS = {
    "envelope": "The envelope",
    "caller": "Who handed it in",
    "origin": "Who really asked",
    "target": "Where it goes",
    "recipient": "Whether the recipient may be written to",
    "approval": "Whether a person has to approve it",
    "idempotency": "Whether it is a repeat",
    "admission": "Whether there was room for it",
    "throttle": "Whether the provider asked to wait",
    "in_flight": "Whether too much is under way",
    "global": "The budget of all channels",
    "channel": "The channel's budget",
    "mail_loop": "Whether two machines might be answering each other",
    "fair_share": "The butler's share of the budget",
    "breaker": "Whether the channel's circuit lets it through",
    "certainty": "What to do when nobody knows whether it arrived",
    "settle": "What became of it",
    "release": "Whether it may go on",
    "replay": "Whether it is sent again",
    "expiry": "Whether it is still in time",
    "quarantine": "Whether it is set aside",
    "discard": "Whether it is given up",
}
_OUTCOMES = {
    "sent": "went through",
    "rejected": "was refused by the provider",
    "failed": "failed",
    "lost": "was lost with its worker",
}
_CERTAINTIES = {
    "sent": "It was sent.",
    "not_sent": "It was certainly not sent.",
    "uncertain": "It left and no answer came: it may or may not have arrived.",
}
_EVIDENCE_SHOWN = 300  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Everything that is on record about one delivery."""

    delivery: Row
    attempts: Sequence[Row]
    receipts: Sequence[Row]
    dead_letter: Row | None = None
    eligibility: Row | None = None  # of the dead letter
    replays: Sequence[Row] = ()
    obstacles: Row | None = None  # while it waits
    recipient: Row | None = None  # the rule about whom it is for, when there is one


def history(story: Story) -> Iterator[str]:
    """Who asked, and then everything in the order in which it happened."""
    yield from _asked(story.delivery)
    yield from _not_decided(story.delivery)
    events = [
        *((_moment(line["at"]), _decision(line)) for line in story.delivery["decisions"]),
        *((attempt["started_at"], _attempt(attempt)) for attempt in story.attempts),
        *((receipt["received_at"], _receipt(receipt)) for receipt in story.receipts),
    ]
    # Stable: on the same instant a decision stands before the attempt, and the attempt before its receipt.
    for _, sentence in sorted(events, key=lambda event: event[0]):
        yield sentence


def when(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _asked(delivery: Row) -> Iterator[str]:
    request = f" for request {delivery['request_id']}" if delivery["request_id"] else ", unasked by any request"
    yield f"{delivery['origin_butler']} asked at {when(delivery['created_at'])} to {_deed(delivery)}{request}."
    if delivery["replay_of"]:
        yield f"It is a replay of delivery {delivery['replay_of']}."
    if not delivery["duplicate_detection"]:
        yield "It came without a request id and without a key, so a repeat of it would be sent again."
    if delivery["not_after"]:
        yield f"It must not be sent after {when(delivery['not_after'])}."


def _deed(delivery: Row) -> str:
    way = f"by {delivery['channel']} as {delivery['identity_scope']}"
    whom = delivery["target_identity"] or "somebody whose address is not known yet"
    deeds = {"send": f"send a message {way} to {whom}", "reply": f"answer {whom} {way}"}
    return deeds.get(delivery["intent"], f"{delivery['intent']} to a message of {whom} {way}")


def _not_decided(delivery: Row) -> Iterator[str]:
    """What the list of decisions leaves open and the row tells."""
    decided = {line.get("rule") for line in delivery["decisions"]}
    if delivery["duplicate_detection"] and "idempotency" not in decided:
        yield f"Its key is {delivery['idempotency_key']}."


def _decision(line: Row) -> str:
    topic = _TOPICS.get(line["rule"], f"The rule {line['rule']}")
    detail = f" ({line['detail']})" if line.get("detail") else ""
    return f"{topic}: {_plain(line['verdict'])}{detail}."


def _attempt(attempt: Row) -> str:
    began = f"Attempt {attempt['attempt_number']} at {when(attempt['started_at'])}"
    if attempt["completed_at"] is None:
        return f"{began} has no outcome yet."
    took = f" after {attempt['latency_ms']} ms" if attempt["latency_ms"] is not None else ""
    outcome = _OUTCOMES.get(attempt["outcome"], attempt["outcome"])
    return " ".join([f"{began} {outcome}{took}{_error(attempt)}.", *_certainty(attempt), *_evidence(attempt)])


def _error(attempt: Row) -> str:
    return (
        f" with {attempt['error_class']}: {_without_stop(attempt['error_message'])}" if attempt["error_class"] else ""
    )


def _certainty(attempt: Row) -> Iterator[str]:
    if attempt["certainty"] is not None and attempt["outcome"] != "sent":
        yield _CERTAINTIES[attempt["certainty"]]
    if attempt["certainty"] == "not_sent":
        yield "Another attempt may help." if attempt["retryable"] else "Another attempt would not help."


def _evidence(attempt: Row) -> Iterator[str]:
    said = (attempt["provider_response"] or {}).items()
    facts = {name: value for name, value in said if isinstance(value, str | int | float)}
    if facts:
        listed = ", ".join(f"{_plain(name)} {value}" for name, value in facts.items())
        yield f"Evidence: {_without_stop(listed[:_EVIDENCE_SHOWN])}."


def _receipt(receipt: Row) -> str:
    part = f" part {receipt['part']}" if receipt["part"] > 1 else " it"
    name = receipt["provider_delivery_id"] or ""
    if name.startswith(CONFIRMED):
        who = name.removeprefix(CONFIRMED)
        return f"{who.capitalize()} confirmed{part} as {receipt['receipt_type']} at {when(receipt['received_at'])}."
    return (
        f"The provider reported{part} as {receipt['receipt_type']} at {when(receipt['received_at'])} "
        f"and calls it {receipt['provider_delivery_id']}."
    )


def _moment(at: Any) -> datetime:
    moment = at if isinstance(at, datetime) else datetime.fromisoformat(str(at))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _plain(word: Any) -> str:
    return str(word).replace("_", " ")


def _without_stop(text: str | None) -> str:
    return (text or "no message").rstrip(". ")
