"""The queue between the decision to send and the sending: one contract, three adapters.

    enqueue ──> queued ──dequeue──> in_flight ──ack──────────> gone, counted as acknowledged
                  ^                    ├──────dead_letter────> gone, counted as dead_lettered
                  ├──nack──────────────┤
                  └──lease ran out─────┘  no call is needed: the next dequeue takes the entry over

- A key names an entry. While its entry is queued or in flight, enqueueing the key again changes nothing.
- `dequeue` leases due entries: by priority, then by the time since when an entry is available (its `scheduled_at`, or
  the end of the lease that ran out), then in the order of enqueueing. An entry whose worker died therefore lines up
  where its lease ended and does not hold up those that were due before.
- Each lease brings a new receipt. A worker whose entry was leased to another one gets `LeaseLost` and changes nothing.
  Time decides which entry may be taken over, the receipt which worker may write: a late worker that no other worker
  has replaced may still settle its entry.
- An entry is in flight until a call changes it, also after its lease has run out; `reschedule` and `remove` leave it.

The adapters are `memory_queue` (for tests, and for systems that may forget), `postgres_queue` and `redis_queue`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from butlers.contracts.envelope import invalid
from butlers.errors import ConfigurationError, LeaseLost
from butlers.outbound.values import Priority

LEASE_S = 120.0
MOST_DEAD_LETTERS = 1_000  # the newest ones, which the queue shows; the count has them all
MOST_MESSAGES = 100_000  # of one enqueue
LONGEST_KEY = 1_024  # characters
LARGEST_KEY = 2_600  # bytes of UTF-8: an entry of an index in PostgreSQL has at most 2,704
LONGEST_TEXT = 500  # characters of a reason
LARGEST_PAYLOAD = 2**20  # bytes of its JSON text
DEEPEST_PAYLOAD = 64  # objects and lists inside each other
LATEST = datetime(2255, 1, 1, tzinfo=UTC)  # microseconds after it do not fit into the numbers of Redis
LEVELS: Mapping[Priority, int] = {priority: level for level, priority in enumerate(Priority)}  # 0: handed out first
PRIORITIES = tuple(Priority)  # by level
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_DATABASE = re.compile(r"\d{1,5}")
_SECONDS = re.compile(r"0{0,4}[1-9]\d{0,3}(?:\.\d{1,6})?|0{0,4}\.0{0,6}[1-9]\d{0,5}")
_PATH = re.compile(r"[^\x00]{1,4096}")
# What an address of Redis may say after the question mark, and with which values.
_OPTIONS = {
    "prefix": _NAME,
    "db": _DATABASE,
    "client_name": _NAME,
    "socket_timeout": _SECONDS,
    "socket_connect_timeout": _SECONDS,
}
_ENCRYPTION_OPTIONS = {
    "ssl_ca_certs": _PATH,
    "ssl_certfile": _PATH,
    "ssl_keyfile": _PATH,
    "ssl_cert_reqs": re.compile(r"none|optional|required"),
    "ssl_check_hostname": re.compile(r"(?i:true|false)"),
}
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMessage:
    """One entry: what is to be done for one key, and when."""

    key: str  # "<message>:<recipient>"
    payload: Mapping[str, Any]  # a JSON object
    scheduled_at: datetime  # UTC; not handed out before
    priority: Priority = Priority.NORMAL
    attempts: int = 0  # hand-outs that failed, or whose lease ran out


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedMessage:
    """An entry in the hands of one worker."""

    message: QueueMessage  # its attempts include this one: 1 at the first hand-out
    receipt: str  # the fencing token
    lease_expires_at: datetime
    expirations: int  # leases of this entry that ran out, because their workers died


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    message: QueueMessage
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    queued: int
    in_flight: int  # leased, those whose lease has run out included
    acknowledged: int  # since the queue exists
    dead_lettered: int  # since the queue exists
    oldest_scheduled_at: datetime | None  # of what is queued
    next_available_at: datetime | None  # when a dequeue finds something; `now` when it would find something already


class QueueAdapter(Protocol):
    """Every call is one atomic change. A store that does not answer raises `TargetUnavailable`: the call may or may not
    have been carried out. Repeating it is safe; a repeated `ack`, `nack` or `dead_letter` that was carried out the
    first time gets `LeaseLost`.
    """

    async def enqueue(self, messages: Sequence[QueueMessage]) -> frozenset[str]:
        """Returns the keys that are new. Raises `ValidationError`, and then takes none of the messages."""

    async def dequeue(self, *, now: datetime, limit: int = 1, worker: str) -> list[LeasedMessage]:
        """Lease up to `limit` entries that are due."""

    async def ack(self, leased: LeasedMessage) -> None:
        """End an entry that is done. Raises `LeaseLost`."""

    async def nack(
        self,
        leased: LeasedMessage,
        *,
        now: datetime,
        delay: timedelta | None = None,
        scheduled_at: datetime | None = None,
        counted: bool = True,
    ) -> None:
        """Queue an entry again: after `delay`, at `scheduled_at`, or now. `counted`: the attempt failed; otherwise the
        entry was only put off. Raises `LeaseLost`.
        """

    async def dead_letter(self, leased: LeasedMessage, reason: str) -> None:
        """End an entry that cannot be done. Its key may be enqueued again. Raises `LeaseLost`."""

    async def reschedule(self, keys: Sequence[str], *, scheduled_at: datetime) -> int:
        """Move queued entries to an earlier time; how many were moved."""

    async def remove(self, keys: Sequence[str]) -> int:
        """Drop queued entries; how many there were."""

    async def peek(self, limit: int = 10) -> list[QueueMessage]:
        """Queued entries in the order in which they are handed out once all of them are due. Takes nothing."""

    async def dead_letters(self, limit: int = 10) -> list[DeadLetter]:
        """The newest ones first; the queue has up to `MOST_DEAD_LETTERS`."""

    async def stats(self, *, now: datetime) -> QueueStats: ...

    async def close(self) -> None: ...


def check_queue_address(address: str) -> None:
    """Raises `ConfigurationError` unless the address names a queue. The error does not repeat the address, which may
    hold a password.
    """
    if address in ("postgres", "memory") or _is_redis(address):
        return
    raise ConfigurationError(
        "this is no queue",
        source="settings",
        key="outbound_queue",
        remedy="use postgres, memory, redis://host:port/db, rediss://... or unix:///path; after a question mark it may"
        f" have {', '.join(_OPTIONS)}, and with rediss {', '.join(_ENCRYPTION_OPTIONS)}",
    )


def _is_redis(address: str) -> bool:
    try:
        parts = urlsplit(address)
        options = parse_qsl(parts.query, keep_blank_values=True)
        is_socket = parts.scheme == "unix"
        has_place = bool(parts.path if is_socket else parts.hostname and parts.port != 0)
    except ValueError:  # brackets or a port that are none
        return False
    has_database = is_socket or parts.path in ("", "/") or _DATABASE.fullmatch(parts.path[1:])
    known = _OPTIONS | _ENCRYPTION_OPTIONS if parts.scheme == "rediss" else _OPTIONS
    has_options = all(name in known and known[name].fullmatch(value) for name, value in options)
    return parts.scheme in ("redis", "rediss", "unix") and has_place and bool(has_database) and has_options


# --- what every adapter checks ---------------------------------------------------------------------------------------


def checked(messages: Sequence[QueueMessage]) -> dict[str, tuple[QueueMessage, str]]:
    """The messages by key, each with the JSON text of its payload; of two with one key the first."""
    if len(messages) > MOST_MESSAGES:
        raise invalid("messages", f"must be at most {MOST_MESSAGES} at a time")
    found: dict[str, tuple[QueueMessage, str]] = {}
    for message in messages:
        found.setdefault(message.key, (_checked(message), encode_payload(message.payload)))
    return found


def _checked(message: QueueMessage) -> QueueMessage:
    """With its time in UTC."""
    if not _is_key(message.key):
        raise invalid("key", f"must have 1 to {LONGEST_KEY} characters, at most {LARGEST_KEY} bytes, and no NUL")
    if message.attempts < 0:
        raise invalid("attempts", "must not be negative")
    at = check_time(message.scheduled_at)
    return message if at is message.scheduled_at else replace(message, scheduled_at=at)


def check_time(moment: datetime) -> datetime:
    """Returns it in UTC."""
    if moment.tzinfo is None:
        raise invalid("scheduled_at", "must have a time zone")
    if moment > LATEST:
        raise invalid("scheduled_at", f"must be before {LATEST.year}")
    return moment if moment.tzinfo is UTC else moment.astimezone(UTC)


def retry_at(now: datetime, delay: timedelta | None, scheduled_at: datetime | None) -> datetime:
    """When an entry that was given back is due."""
    if delay is not None and scheduled_at is not None:
        raise invalid("delay", "must not come with scheduled_at")
    if delay is not None and delay < timedelta(0):
        raise invalid("delay", "must not be negative")
    return check_time(scheduled_at or now + (delay or timedelta(0)))


def encode_payload(payload: Mapping[str, Any]) -> str:
    if not isinstance(payload, dict):
        raise invalid("payload", "must be a JSON object")
    try:
        text = _encode(payload)
    except (TypeError, ValueError, RecursionError):
        raise invalid("payload", "must be a JSON object") from None
    if len(text) > LARGEST_PAYLOAD or (not text.isascii() and _utf8_length(text) > LARGEST_PAYLOAD):
        raise invalid("payload", f"must have at most {LARGEST_PAYLOAD} bytes")
    if text.count("{") + text.count("[") > DEEPEST_PAYLOAD and _depth(payload) > DEEPEST_PAYLOAD:
        raise invalid("payload", f"must not be deeper than {DEEPEST_PAYLOAD} levels")
    return text


def _utf8_length(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise invalid("payload", "must be Unicode") from None


def _is_key(text: str) -> bool:
    if not 0 < len(text) <= LONGEST_KEY or "\0" in text:
        return False
    try:
        return text.isascii() or len(text.encode()) <= LARGEST_KEY
    except UnicodeEncodeError:  # half a character
        return False


def possible_keys(keys: Sequence[str]) -> list[str]:
    """Each once, without texts that cannot be a key."""
    return [key for key in dict.fromkeys(keys) if _is_key(key)]


def _depth(value: Any) -> int:
    """Level by level: a value may be deeper than the interpreter's stack."""
    depth, level = 0, [value]
    while containers := [one for one in level if isinstance(one, dict | list | tuple)]:
        depth += 1
        level = [inner for one in containers for inner in (one.values() if isinstance(one, dict) else one)]
    return depth


def storable(text: str) -> str:
    """A reason or a name of a worker as every store takes it."""
    return text.replace("\0", "")[:LONGEST_TEXT].encode(errors="replace").decode()


def lease_lost(leased: LeasedMessage) -> LeaseLost:
    return LeaseLost(f"another worker has taken over {leased.message.key}")
