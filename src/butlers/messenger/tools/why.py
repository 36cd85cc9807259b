"""`messenger_delivery_why`: which rule decided what, how a delivery stands now, and what a person can do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import Tool
from butlers.clock import Clock
from butlers.contracts.delivery_state import ENDED_BADLY, OPEN
from butlers.errors import NotFound
from butlers.messenger.attempt import CONFIRMED
from butlers.messenger.tools.dead_letters import DeadLetterTools
from butlers.messenger.tools.deliveries import DeliveryRecords
from butlers.operations.deliveries import WHY, DeliveryArguments

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
    way = f"by {delivery['channel']} as {delivery['identity_scope']}"
    whom = delivery["target_identity"] or "somebody whose address is not known yet"
    actions = {"send": f"send a message {way} to {whom}", "reply": f"answer {whom} {way}"}
    action = actions.get(delivery["intent"], f"{delivery['intent']} to a message of {whom} {way}")
    yield f"{delivery['origin_butler']} asked at {when(delivery['created_at'])} to {action}{request}."
    if delivery["replay_of"]:
        yield f"It is a replay of delivery {delivery['replay_of']}."
    if not delivery["duplicate_detection"]:
        yield "It came without a request id and without a key, so a repeat of it would be sent again."
    if delivery["not_after"]:
        yield f"It must not be sent after {when(delivery['not_after'])}."
    # What the list of decisions leaves open and the row tells.
    if delivery["duplicate_detection"] and all(line.get("rule") != "idempotency" for line in delivery["decisions"]):
        yield f"Its key is {delivery['idempotency_key']}."


def _decision(line: Row) -> str:
    topic = _TOPICS.get(line["rule"], f"The rule {line['rule']}")
    detail = f" ({line['detail']})" if line.get("detail") else ""
    return f"{topic}: {_plain(line['verdict'])}{detail}."


def _attempt(attempt: Row) -> str:
    began, certainty = f"Attempt {attempt['attempt_number']} at {when(attempt['started_at'])}", attempt["certainty"]
    if attempt["completed_at"] is None:
        return f"{began} has no outcome yet."
    took = f" after {attempt['latency_ms']} ms" if attempt["latency_ms"] is not None else ""
    outcome = _OUTCOMES.get(attempt["outcome"], attempt["outcome"])
    error = attempt["error_class"] and f" with {attempt['error_class']}: {_without_stop(attempt['error_message'])}"
    sentences = [f"{began} {outcome}{took}{error or ''}."]
    if certainty is not None and attempt["outcome"] != "sent":
        sentences.append(_CERTAINTIES[certainty])
    if certainty == "not_sent":
        sentences.append("Another attempt may help." if attempt["retryable"] else "Another attempt would not help.")
    evidence = (attempt["provider_response"] or {}).items()
    if facts := [f"{_plain(name)} {value}" for name, value in evidence if isinstance(value, str | int | float)]:
        sentences.append(f"Evidence: {_without_stop(', '.join(facts)[:_EVIDENCE_SHOWN])}.")
    return " ".join(sentences)


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


def standing(story: Story, now: datetime) -> Iterator[str]:
    """The last sentences: why it waits or how it ended, and what can be done."""
    yield from STANDINGS[story.delivery["status"]](story, now)
    rule, status = story.recipient, story.delivery["status"]
    parts = sorted({receipt["part"] for receipt in story.receipts if receipt["receipt_type"] == "sent"})
    if parts and status in ENDED_BADLY:  # an end without success must not read as if nothing had been sent
        yield f"What was certainly sent of it: part {', '.join(str(part) for part in parts)}."
    if rule is not None and rule["rule"] == "suppressed" and status != "delivered":
        since = when(rule["since"])
        yield f"Nothing is sent to {rule['target']} since {since} ({rule['decided_by']}: {rule['reason']})."
        yield f"To write there again: butlers deliveries unsuppress {rule['channel']} {rule['target']}"
    for replay in story.replays:
        yield f"It was sent again as delivery {replay['id']}, which is {replay['status']}: butlers why {replay['id']}"


def _pending(story: Story, now: datetime) -> Iterator[str]:
    delivery, obstacles = story.delivery, list(_obstacles(story.obstacles))
    if not delivery["admitted"]:
        yield f"It was released and asks for room again at {when(delivery['next_attempt_at'])}."
    elif delivery["next_attempt_at"] > now:
        yield f"It waits for its next attempt, not before {when(delivery['next_attempt_at'])}."
    elif obstacles:
        yield "It is due, but something stands in its way."
    else:
        yield "It is due and will be taken by the next free worker."
    yield from obstacles
    yield f"Nothing has to be done. To stop it: butlers deliveries quarantine {delivery['id']} --reason REASON"


def _obstacles(obstacles: Row | None) -> Iterator[str]:
    if obstacles is None:
        return
    if obstacles["earlier"]:
        yield f"Before it in the same conversation stands delivery {obstacles['earlier']}."
    if (state := obstacles["circuit"]) not in (None, "closed"):
        reason = (obstacles["trip_reason"] or "no reason is on record").rstrip(". ")
        probe = f", and it is tried again at {when(obstacles['probe_at'])}" if obstacles["probe_at"] else ""
        passes = "Nothing goes out by it" if state == "open" else "Only a trial goes out by it"
        yield f"The channel's circuit is {state}: {reason}. {passes}{probe} (butlers deliveries circuits)."
    if obstacles["throttled_until"]:
        yield f"The provider asked to wait until {when(obstacles['throttled_until'])}: {obstacles['throttle_reason']}."


def _in_progress(_story: Story, _now: datetime) -> Iterator[str]:
    yield "It is with the provider right now; its outcome is on record soon."


def _delivered(story: Story, _now: datetime) -> Iterator[str]:
    delivery, word, person = story.delivery, "", story.delivery["settled_by"]
    if person is not None:  # that it arrived is a person's word; that it was sent again is not
        words = [line["verdict"] for line in delivery["decisions"] if line["rule"] == "settle"]
        again = words[-1:] == ["send_again"]
        word = f" when it was sent again, as {person} asked," if again else f", as {person} said,"
    yield f"It was delivered{word} at {_end(delivery)}. Nothing has to be done."
    if any(receipt["receipt_type"] == "bounced" for receipt in story.receipts):
        yield "The provider sent it back later: the recipient did not get it."


def _failed(story: Story, _now: datetime) -> Iterator[str]:
    delivery = story.delivery
    yield f"It failed for good at {_end(delivery)}{_standing_error(delivery)}."
    if delivery["terminal_error_class"] != "validation_error":  # the same input would be refused again
        yield f"To keep it for a replay: butlers deliveries quarantine {delivery['id']} --reason REASON"


def _uncertain(story: Story, _now: datetime) -> Iterator[str]:
    yield "Nobody knows whether it arrived, so it is not sent again by itself. Look at the recipient's side, then say:"
    yield from _settle(story.delivery)


def _settle(delivery: Row) -> Iterator[str]:
    yield f"it arrived: butlers deliveries settle {delivery['id']} confirmed_sent"
    yield f"it did not: butlers deliveries settle {delivery['id']} send_again"


def _dead_lettered(story: Story, _now: datetime) -> Iterator[str]:
    letter, eligibility = story.dead_letter, story.eligibility
    if letter is None or eligibility is None:
        yield "It was set aside."
        return
    reason = letter["quarantine_reason"].replace("_", " ")
    yield f"It was set aside at {when(letter['created_at'])} ({reason}): {letter['error_summary']}"
    if letter["discarded_at"]:
        person = letter["discarded_by"]
        yield f"It was given up at {when(letter['discarded_at'])} by {person}: {letter['discard_reason']}"
        return
    if eligibility["eligible"]:
        yield f"To send it again: butlers dead-letters replay {letter['id']}"
    else:
        reasons = ", ".join(reason.replace("_", " ") for reason in eligibility["reasons"])
        yield f"It cannot be sent again: {reasons}."
    if "uncertain_not_settled" in eligibility["reasons"]:
        yield "Look at the recipient's side, then say:"
        yield from _settle(story.delivery)
    yield f"To give it up: butlers dead-letters discard {letter['id']} --reason REASON"


def _expired(story: Story, _now: datetime) -> Iterator[str]:
    yield f"Its time had passed at {_end(story.delivery)}, and nothing stale is sent{_standing_error(story.delivery)}."


def _pending_approval(story: Story, _now: datetime) -> Iterator[str]:
    yield "A person has to approve it before it is sent."
    if story.delivery["action_id"]:
        yield f"To see what is asked and decide: butlers approvals show {story.delivery['action_id']}"


def _pending_missing_identifier(story: Story, _now: datetime) -> Iterator[str]:
    delivery = story.delivery
    whom = f"Contact {delivery['contact_id']}" if delivery["contact_id"] else "The recipient"
    yield f"{whom} has no {delivery['channel']} address. It is sent by itself as soon as there is one."


def _end(delivery: Row) -> str:
    return when(delivery["terminal_at"]) if delivery["terminal_at"] else "an unknown time"


def _standing_error(delivery: Row) -> str:
    if delivery["terminal_error_class"] is None:
        return ""
    return f" ({delivery['terminal_error_class']}: {delivery['terminal_error_message']})"


STANDINGS: dict[str, Callable[[Story, datetime], Iterator[str]]] = {
    "pending": _pending,
    "awaiting_retry": _pending,
    "in_progress": _in_progress,
    "delivered": _delivered,
    "failed": _failed,
    "uncertain": _uncertain,
    "dead_lettered": _dead_lettered,
    "expired": _expired,
    "pending_approval": _pending_approval,
    "pending_missing_identifier": _pending_missing_identifier,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyTools:
    records: DeliveryRecords
    clock: Clock
    dead_letters: DeadLetterTools  # knows what may be sent again

    def tools(self) -> list[Tool]:
        return [Tool.of(WHY, self._why)]

    async def _why(self, _caller: Caller, arguments: DeliveryArguments) -> dict[str, Any]:
        behind = await self.records.row(self.records.queries.delivery_behind, arguments.delivery_id)
        if behind is None:
            raise NotFound.of("delivery_id", "no such delivery")
        story = await self._story(await self.records.delivery(behind["id"]))
        delivery = story.delivery
        return wire(
            {
                "asked_about": {"kind": behind["kind"], "id": arguments.delivery_id},
                "delivery_id": delivery["id"],
                "status": delivery["status"],
                "lines": [*history(story), *standing(story, self.clock.now())],
                "decisions": delivery["decisions"],
                "replay_eligibility": story.eligibility,
            }
        )

    async def _story(self, delivery: dict[str, Any]) -> Story:
        identity, records, queries = delivery["id"], self.records, self.records.queries
        letter = await records.row(queries.dead_letter_of_delivery, identity)
        waits = delivery["status"] in OPEN
        return Story(
            delivery=delivery,
            attempts=(await records.attempts(identity))[identity],
            receipts=(await records.receipts(identity))[identity],
            dead_letter=letter,
            eligibility=(await self.dead_letters.eligibility([letter]))[letter["id"]] if letter else None,
            replays=await records.rows(queries.replays_of_delivery, identity),
            obstacles=await records.row(queries.obstacles, identity, self.clock.now()) if waits else None,
            recipient=await records.row(queries.recipient_rule, delivery["channel"], delivery["target_identity"]),
        )
