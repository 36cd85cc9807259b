"""How a delivery stands now, and what a person can do about it, with the exact command. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from butlers.contracts.delivery_state import ENDED_BADLY
from butlers.messenger.tools.sentences import Row, Story, when


def standing(story: Story, now: datetime) -> Iterator[str]:
    """The last sentences: why it waits or how it ended, and what can be done."""
    yield from STANDINGS[story.delivery["status"]](story, now)
    yield from _sent_of_it(story)
    yield from _recipient(story)
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
    if obstacles["circuit"] not in (None, "closed"):
        yield _circuit(obstacles)
    if obstacles["throttled_until"]:
        yield f"The provider asked to wait until {when(obstacles['throttled_until'])}: {obstacles['throttle_reason']}."


def _circuit(obstacles: Row) -> str:
    state, reason = obstacles["circuit"], (obstacles["trip_reason"] or "no reason is on record").rstrip(". ")
    probe = f", and it is tried again at {when(obstacles['probe_at'])}" if obstacles["probe_at"] else ""
    passes = "Nothing goes out by it" if state == "open" else "Only a trial goes out by it"
    return f"The channel's circuit is {state}: {reason}. {passes}{probe} (butlers deliveries circuits)."


def _in_progress(_story: Story, _now: datetime) -> Iterator[str]:
    yield "It is with the provider right now; its outcome is on record soon."


def _delivered(story: Story, _now: datetime) -> Iterator[str]:
    yield f"It was delivered{_on_whose_word(story.delivery)} at {_end(story.delivery)}. Nothing has to be done."
    if any(receipt["receipt_type"] == "bounced" for receipt in story.receipts):
        yield "The provider sent it back later: the recipient did not get it."


def _on_whose_word(delivery: Row) -> str:
    """That it arrived is somebody's word; that it was sent again is not."""
    person = delivery["settled_by"]
    if person is None:
        return ""
    words = [line["verdict"] for line in delivery["decisions"] if line["rule"] == "settle"]
    return f" when it was sent again, as {person} asked," if words[-1:] == ["send_again"] else f", as {person} said,"


def _failed(story: Story, _now: datetime) -> Iterator[str]:
    delivery = story.delivery
    yield f"It failed for good at {_end(delivery)}{_error(delivery)}."
    if delivery["terminal_error_class"] != "validation_error":  # the same input would be refused again
        yield f"To keep it for a replay: butlers deliveries quarantine {delivery['id']} --reason REASON"


def _sent_of_it(story: Story) -> Iterator[str]:
    """An end without success must not read as if nothing had been sent."""
    parts = sorted({receipt["part"] for receipt in story.receipts if receipt["receipt_type"] == "sent"})
    if parts and story.delivery["status"] in ENDED_BADLY:
        yield f"What was certainly sent of it: part {', '.join(str(part) for part in parts)}."


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
    yield f"Its time had passed at {_end(story.delivery)}, and nothing stale is sent{_error(story.delivery)}."


def _pending_approval(story: Story, _now: datetime) -> Iterator[str]:
    yield "A person has to approve it before it is sent."
    if story.delivery["action_id"]:
        yield f"To see what is asked and decide: butlers approvals show {story.delivery['action_id']}"


def _pending_missing_identifier(story: Story, _now: datetime) -> Iterator[str]:
    delivery = story.delivery
    whom = f"Contact {delivery['contact_id']}" if delivery["contact_id"] else "The recipient"
    yield f"{whom} has no {delivery['channel']} address. It is sent by itself as soon as there is one."


def _recipient(story: Story) -> Iterator[str]:
    rule, status = story.recipient, story.delivery["status"]
    if rule is None or rule["rule"] != "suppressed" or status == "delivered":
        return
    yield f"Nothing is sent to {rule['target']} since {when(rule['since'])} ({rule['decided_by']}: {rule['reason']})."
    yield f"To write there again: butlers deliveries unsuppress {rule['channel']} {rule['target']}"


def _end(delivery: Row) -> str:
    return when(delivery["terminal_at"]) if delivery["terminal_at"] else "an unknown time"


def _error(delivery: Row) -> str:
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
