"""Keys: when two requests are the same request.

A key is `<kind>-<sha256>`. What is hashed is each field with its length in front, so that text moved from one field
to its neighbour makes another key, and the kind, so that keys of different kinds never meet.

    identifier  trimmed, lower-cased                             names, channels, addresses, request ids
    content     newlines to \\n, Unicode NFC, trimmed, case kept  messages, subjects
    opaque      trimmed, case kept                               ids that others made and we cannot read

Opaque values keep their case because two of them that differ only in case are two: taking them for one would lose a
message without a trace.

A blank subject is no subject. A replay keeps the key it descends from, visibly: `<key>::replay-2`.
"""

from __future__ import annotations

import unicodedata
from datetime import datetime
from hashlib import sha256

_REPLAY = "::replay-"


def delivery_key(
    *,
    request_id: str,
    origin_butler: str,
    intent: str,
    channel: str,
    target_identity: str,  # resolved: the address and not the contact
    message: str,
    subject: str | None = None,
    html: str | None = None,
    unsubscribe_url: str | None = None,
) -> str:
    """The canonical key of one outbound delivery. What is absent leaves no trace, so older keys stay what they were."""
    identifiers = (request_id, origin_butler, intent, channel, target_identity)
    contents = (message,) if subject is None or not _content(subject) else (message, subject)
    fields = [*(_present(text).lower() for text in identifiers), *(_digest(_content(text)) for text in contents)]
    named = {"html": html and _content(html), "unsubscribe": unsubscribe_url and _present(unsubscribe_url)}
    fields += [_digest(name, text) for name, text in named.items() if text]
    return f"delivery-{_digest('delivery', *fields)}"


def caller_key(
    *,
    request_id: str | None,
    origin_butler: str,
    intent: str,
    channel: str,
    target_identity: str,  # resolved, as in `delivery_key`
    idempotency_key: str,
) -> str:
    """The key of a delivery whose caller says itself what a repeat is: its own key stands in for the content, and only
    for that, so a key that is used for somebody or something else loses no message.
    """
    identifiers = (origin_butler, intent, channel, target_identity)
    request = (request_id or "").strip().lower()
    fields = [request, *(_present(text).lower() for text in identifiers), _present(idempotency_key)]
    return f"caller-{_digest('caller', *fields)}"


def event_key(*, channel: str, endpoint_identity: str, external_event_id: str) -> str:
    """The key of an event its source has named: an update id and its bot, a Message-ID and its mailbox."""
    fields = (_present(channel).lower(), _present(endpoint_identity).lower(), _present(external_event_id))
    return f"event-{_digest('event', *fields)}"


def content_key(
    *,
    channel: str,
    endpoint_identity: str,
    sender_identity: str,
    payload: str,  # the normalized text of the call
    window: int,  # see window_number
    external_event_id: str = "",  # opaque: two events are two, whatever their text
) -> str:
    """The key of an API or MCP call that came without one."""
    identifiers = [text.strip().lower() for text in (channel, endpoint_identity, sender_identity)]
    event = (external_event_id.strip(),) if external_event_id else ()
    return f"content-{_digest('content', *identifiers, *event, _digest(_content(payload)), str(window))}"


def window_number(now: datetime, seconds: int) -> int:
    """The bounded time window that `now` falls into.

    Windows stand side by side, so a repeat just after an edge is in the next one: look up `window_number(...) - 1`
    too, and compare the times, where every repeat within `seconds` has to be found.
    """
    return int(now.timestamp()) // seconds


def replay_key(original: str, n: int) -> str:
    """The key of the n-th replay; replaying a replay counts on from the same root."""
    if n < 1:
        raise ValueError("replays are counted from 1")
    return f"{root_key(original)}::replay-{n}"


def root_key(key: str) -> str:
    """The key that a replay descends from, or the key itself."""
    parts = key.split(_REPLAY)
    while len(parts) > 1 and parts[-1].isascii() and parts[-1].isdigit():
        parts.pop()
    return _REPLAY.join(parts)


def _present(text: str) -> str:
    if not (trimmed := text.strip()):
        raise ValueError("a key cannot be made from a blank identifier")
    return trimmed


def _content(text: str) -> str:
    return unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n")).strip()


def _digest(*fields: str) -> str:
    digest = sha256()
    for field in fields:
        # JSON may carry lone surrogates; a key must exist for whatever was let in.
        encoded = field.encode("utf-8", "surrogatepass")
        digest.update(b"%d:%b" % (len(encoded), encoded))
    return digest.hexdigest()
