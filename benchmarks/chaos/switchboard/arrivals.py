"""What comes in: numbered messages whose text carries the number, so that whoever sees one can be asked about it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

Channel = Literal["telegram", "email", "api"]

OWNER_CHAT = 1_000  # where answers go whose source cannot be answered
FIRST_CHAT, CHATS = 60_000, 40
MAILBOXES = 25
API_THREADS = 20
TELEGRAM_SHARE, EMAIL_SHARE = 0.45, 0.2
REPEAT_SHARE = 0.2  # handed in again after the answer, as a caller does that lost its own memory
BATCH_SHARE = 0.4  # of what comes over HTTP
BATCH = (2, 20)
PROVIDER = {"email": "imap", "api": "internal"}

# For one butler, for two, for nobody in particular, and a few words that only what was said before explains. The tag
# stands in the middle of every sentence, so that no part of a message goes without it.
TEXTS: tuple[tuple[int, str], ...] = (
    (4, "I paid the electricity bill {tag} of {amount} euros"),
    (4, "My blood pressure {tag} was {amount} over 80 this morning"),
    (3, "Remember that the spare key {tag} lies under the blue pot"),
    (3, "I paid the rent {tag} of {amount} euros. I took my blood pressure medication {tag} at breakfast"),
    (1, "and once more {tag}"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    number: int
    channel: Channel
    thread: str | None  # a chat, a mail thread, a conversation of an API client
    text: str
    repeated: bool
    in_batch: bool = False  # over HTTP, together with others


def make_arrivals(count: int, *, dice: random.Random) -> list[Arrival]:
    return [_arrival(number, dice) for number in range(1, count + 1)]


def batches(arrivals: Sequence[Arrival], *, dice: random.Random) -> list[list[Arrival]]:
    """Those that come together, in bundles of different sizes."""
    left, found = [one for one in arrivals if one.in_batch], list[list[Arrival]]()
    while left:
        size = dice.randint(*BATCH)
        found.append(left[:size])
        left = left[size:]
    return found


def update(arrival: Arrival) -> dict[str, Any]:
    """What a person writes in the simulator's chat."""
    chat = int(arrival.thread or OWNER_CHAT)
    return {"chat_id": chat, "from": {"id": chat, "first_name": "Ada"}, "text": arrival.text}


def envelope(arrival: Arrival, now: datetime) -> dict[str, Any]:
    """The ingest.v1 of a message over HTTP; every submission of it names the same event."""
    name = f"chaos-{arrival.number}"
    mail = arrival.channel == "email"
    event: dict[str, Any] = {"external_event_id": f"<{name}@example.org>", "observed_at": now.isoformat()}
    if arrival.thread is not None:
        event["external_thread_id"] = arrival.thread
    headers = {"Message-ID": f"<{name}@example.org>", "Subject": f"About {name}"}
    return {
        "schema_version": "ingest.v1",
        "source": {"channel": arrival.channel, "provider": PROVIDER[arrival.channel], "endpoint_identity": "chaos"},
        "event": event,
        "sender": {"identity": f"{arrival.thread}@example.org" if mail else "chaos"},
        "payload": {"raw": {"headers": headers} if mail else {}, "normalized_text": arrival.text},
        "control": {} if mail else {"idempotency_key": name},
    }


def _arrival(number: int, dice: random.Random) -> Arrival:
    channel, thread = _place(dice)
    [template] = dice.choices([text for _, text in TEXTS], weights=[weight for weight, _ in TEXTS])
    return Arrival(
        number=number,
        channel=channel,
        thread=thread,
        text=template.format(tag=f"chaos-{number}", amount=dice.randint(100, 180)),
        repeated=dice.random() < REPEAT_SHARE,
        in_batch=channel != "telegram" and dice.random() < BATCH_SHARE,
    )


def _place(dice: random.Random) -> tuple[Channel, str | None]:
    share = dice.random()
    if share < TELEGRAM_SHARE:
        return "telegram", str(FIRST_CHAT + dice.randrange(CHATS))
    if share < TELEGRAM_SHARE + EMAIL_SHARE:
        return "email", f"person{dice.randrange(MAILBOXES)}"
    return "api", f"talk{dice.randrange(API_THREADS)}" if dice.random() < 0.5 else None
