"""Deliveries as a person reads them: plain lines whose ids can be copied, and the next command where there is one."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from butlers.contracts.delivery_state import ENDED
from butlers.operations.operation import Hint, milliseconds, seconds, when

Document = Mapping[str, Any]
_COUNTED = (*ENDED, "open")


def deliveries(document: Document) -> Iterator[str]:
    for row in document["deliveries"]:
        route = f"{row['origin_butler']} -> {row['channel']}:{row['target_identity'] or '?'}"
        error = f"  {row['terminal_error_class']}" if row["terminal_error_class"] else ""
        yield f"{row['id']}  {when(row['created_at'])}  {row['status']:<14}  {row['intent']:<5}  {route}{error}"
    if note := document.get("note"):
        yield note


def delivery(document: Document) -> Iterator[str]:
    row = document
    yield f"delivery {row['delivery_id']}: {row['status']}"
    yield f"  from      {row['origin_butler']}" + (f", request {row['request_id']}" if row["request_id"] else "")
    yield f"  to        {row['channel']} {row['target_identity'] or 'address not known'} ({row['intent']})"
    yield f"  asked     {when(row['created_at'])}" + (
        f", ended {when(row['terminal_at'])}" if row["terminal_at"] else ""
    )
    if row["subject"]:
        yield f"  subject   {row['subject']}"
    for number, line in enumerate((row["message"] or "").splitlines()):
        yield f"  {'' if number else 'message':<8}  {line}"
    if row["provider_delivery_id"]:
        yield f"  provider  calls it {row['provider_delivery_id']}"
    if row["terminal_error_class"]:
        yield f"  error     {row['terminal_error_class']}: {row['terminal_error_message']}"
    if row["latest_attempt"]:
        yield f"  {attempt(row['latest_attempt'])}"
    yield Hint(f"  more      butlers why {row['delivery_id']}")


def attempts(document: Document) -> Iterator[str]:
    yield f"delivery {document['delivery_id']}: {_number(len(document['attempts']), 'attempt')}"
    for row in document["attempts"]:
        yield f"  {attempt(row)}"


def attempt(row: Document) -> str:
    took = f", took {milliseconds(row['latency_ms'])}" if row["latency_ms"] is not None else ""
    error = f"  {row['error_class']}: {row['error_message']}" if row["error_class"] else ""
    outcome = f"outcome {row['outcome']}, certainty {row['certainty']}" if row["outcome"] else "no outcome yet"
    return f"attempt {row['attempt_number']}  {when(row['started_at'])}  {outcome}{took}{error}"


def dead_letters(document: Document) -> Iterator[str]:
    for row in document["dead_letters"]:
        route = f"{row['origin_butler']} -> {row['channel']}:{row['target_identity'] or '?'}"
        again = "discarded" if row["discarded_at"] else ("replayable" if row["replay_eligible"] else "not replayable")
        tries = _number(row["total_attempts"], "attempt")
        yield f"{row['id']}  {when(row['created_at'])}  {again:<14}  {route}  {tries}  {row['error_class']}"
        yield f"    {row['error_summary']}"


def dead_letter(document: Document) -> Iterator[str]:
    eligibility = document["replay_eligibility"]
    yield f"dead letter {document['dead_letter_id']} of delivery {document['delivery_id']}"
    yield f"  because   {document['quarantine_reason']}: {document['error_class']}: {document['error_summary']}"
    yield f"  asked     {document['original_envelope']['delivery']['message']!r} by {document['origin_butler']}"
    for row in document["attempts"]:
        yield f"  {attempt(row)}"
    for row in document["replays"]:
        yield f"  replay    {row['id']}: {row['status']}"
    if document["discarded_at"]:
        yield f"  discarded by {document['discarded_by']}: {document['discard_reason']}"
    elif eligibility["eligible"]:
        yield Hint(f"  send it again: butlers dead-letters replay {document['dead_letter_id']}")
    else:
        yield f"  cannot be sent again: {', '.join(eligibility['reasons'])}"


def quarantined(document: Document) -> Iterator[str]:
    yield f"set aside as dead letter {document['dead_letter_id']} (it was {document['was']})"
    yield Hint(f"look at it with: butlers dead-letters show {document['dead_letter_id']}")


def discarded(document: Document) -> Iterator[str]:
    yield f"discarded dead letter {document['dead_letter_id']}: {document['reason']}"


def result(document: Document) -> Iterator[str]:
    """What became of a settled or replayed delivery."""
    identity = _about(document).get("delivery_id") or _about(document).get("id")
    yield f"delivery {identity}: {status_of(document)}"
    yield Hint(f"follow it with: butlers why {identity}")


def status_of(document: Document) -> str:
    return str(_about(document).get("status", "unknown"))


def stats(document: Document) -> Iterator[str]:
    window = document["window"]
    yield f"{when(window['since'])} to {when(window['until'])}"
    yield _stats_line("all", document)
    if (door := document["requests"]) is not None:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in door.items())
        yield f"at the door: {counts}"
    for group in document["groups"]:
        yield _stats_line(group["key"] or "(none)", group)


def _stats_line(name: str, row: Document) -> str:
    counts = ", ".join(f"{row[field]} {field}" for field in _COUNTED if row[field])
    return (
        f"{name:<20}  {row['total']} in all{': ' if counts else ''}{counts}; success {_share(row['success_rate'])}, "
        f"retried {_share(row['retry_rate'])}, p50 {_ms(row['p50_ms'])}, p95 {_ms(row['p95_ms'])}"
    )


def queue(document: Document) -> Iterator[str]:
    phases = ", ".join(f"{count} {phase}" for phase, count in document["by_phase"].items())
    age = seconds(document["oldest_age_s"]) if document["oldest_age_s"] is not None else "none"
    yield f"in flight: {document['total']}; {phases}; oldest: {age}"
    for name, counts in document["by_channel"].items():
        listed = ", ".join(f"{count} {status}" for status, count in counts.items() if status != "total")
        yield f"  {name:<10}  {listed}"
    parked = ", ".join(f"{count} {status}" for status, count in document["parked"].items() if count)
    yield f"waiting for a person: {parked or 'none'}"


def limits(document: Document) -> Iterator[str]:
    yield _layer("all channels", document["global"])
    flight = document["in_flight"]
    yield f"{'in flight':<16}  {flight['consumed']} of {_known(flight['total'])}"
    for name, layer in document["channels"].items():
        mode = "" if layer["stance"] == "normal" else f", {layer['stance']} (configured {layer['configured']:g})"
        wait = f", told to wait until {when(layer['throttled_until'])}" if layer["throttled_until"] else ""
        yield f"{_layer(name, layer)}{mode}{wait}"
    recipients = document["recipients"]
    held = f"{_number(recipients['at_limit'], 'recipient')} at the limit"
    yield f"{'recipients':<16}  {recipients['total']:g} a minute each; {held}"
    for row in recipients["worst"]:
        left = f"{round(row['remaining'], 1):g} left"
        yield f"  {row['channel']} {row['target']}: {left}, full again {when(row['resets_at'])}"
    for row in recipients["throttles"]:
        yield f"  {row['channel']} {row['target']}: told to wait until {when(row['throttled_until'])}"


def _layer(name: str, layer: Document) -> str:
    again = f", full again {when(layer['resets_at'])}" if layer["resets_at"] else ""
    return f"{name:<16}  {round(layer['remaining'], 1):g} of {layer['total']:g} left this minute{again}"


def circuits(document: Document) -> Iterator[str]:
    for name, row in document["channels"].items():
        if row["state"] == "closed":
            yield f"{name:<16}  closed, {_number(row['consecutive_failures'], 'failure')} in a row"
        else:
            yield (
                f"{name:<16}  {row['state']} since {when(row['tripped_at'])}: {row['trip_reason']}; "
                f"next probe in {seconds(row['retry_after_s'])}"
            )


def dry_run(document: Document) -> Iterator[str]:
    target, adapter = document["target_identity"], document["channel_adapter"]
    yield f"{document['outcome']}: to {target} by {adapter}" if target else str(document["outcome"])
    for reason in document["reasons"]:
        yield f"  {reason['rule']}: {reason.get('message') or reason.get('outcome')}"
    for layer, left in (document["headroom"] or {}).items():
        yield f"  {layer}: {round(left, 1):g} left this minute"


def recipients(document: Document) -> Iterator[str]:
    for row in document["recipients"]:
        moved = f" to {row['moved_to']}" if row["moved_to"] else ""
        decided = f"{when(row['since'])}  by {row['decided_by']}: {row['reason']}"
        yield f"{row['channel']}  {row['target']}  {row['rule']}{moved}  {decided}"


def suppressed(document: Document) -> Iterator[str]:
    row = document["recipient"]
    yield f"nothing is sent to {row['channel']} {row['target']} from now on"
    yield Hint(f"to take that back: butlers deliveries unsuppress {row['channel']} {shlex.quote(row['target'])}")


def released(document: Document) -> Iterator[str]:
    row = document["released"]
    yield f"{row['channel']} {row['target']} is written to again (it was {row['rule']}: {row['reason']})"


def _about(document: Document) -> Document:
    nested = document.get("delivery")
    return nested if isinstance(nested, Mapping) else document


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _share(rate: float | None) -> str:
    return "unknown" if rate is None else f"{rate:.1%}"


def _ms(number: float | None) -> str:
    return "unknown" if number is None else milliseconds(number)


def _known(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"
