"""What an answer needs to know of the message it answers, read from the raw payload that was stored with the request.

Connectors leave the raw payload in one of these shapes:

    Telegram    {"message": {"message_id": 7, ...}, ...}       the update, verbatim
    email       {"headers": {"Message-ID": "<...>", ...}, ...}  header name -> value, or -> list of values when a
                                                                header stands there more than once; names in any case

Nothing in it is trusted: every field is checked for its type and cut to a bound, and what is missing stays away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_VALUE = 998  # characters: the longest line that mail knows
MAX_REFERENCES = 8_000
_FIELDS: Mapping[str, str] = {
    "message-id": "message_id",
    "references": "references",
    "in-reply-to": "in_reply_to",
    "subject": "subject",
    "auto-submitted": "auto_submitted",
    "precedence": "precedence",
    "list-id": "list_id",
    "list-unsubscribe": "list_unsubscribe",
    "feedback-id": "feedback_id",
    "x-auto-response-suppress": "x_auto_response_suppress",
    "x-autoreply": "x_autoreply",
    "x-autorespond": "x_autorespond",
    "x-loop": "x_loop",
    "return-path": "return_path",
    "from": "from",
}


def source_event(raw: Any) -> dict[str, Any] | None:
    """The answered message as Messenger's channels want it; None when the payload tells nothing."""
    if not isinstance(raw, Mapping):
        return None
    headers = raw.get("headers")
    return _mail(headers) if isinstance(headers, Mapping) else _telegram(raw.get("message"))


def _telegram(message: Any) -> dict[str, Any] | None:
    message_id = message.get("message_id") if isinstance(message, Mapping) else None
    return {"message_id": message_id} if type(message_id) is int else None


def _mail(headers: Mapping[Any, Any]) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    for name, value in headers.items():
        field = _FIELDS.get(name.strip().lower()) if isinstance(name, str) else None
        text = _first_text(value)
        if field is not None and text is not None:
            found.setdefault(field, _bounded(field, text))
    return found or None


def _first_text(value: Any) -> str | None:
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, str) else None


def _bounded(field: str, text: str) -> str:
    if field != "references" or len(text) <= MAX_REFERENCES:
        return text.strip()[: MAX_REFERENCES if field == "references" else MAX_VALUE]
    # The thread's root stands first and its latest mails last: the middle may go, whole names only.
    root, _, latest = text.strip().partition(">")
    return f"{root[:MAX_VALUE]}> {latest[-(MAX_REFERENCES - MAX_VALUE - 2) :].partition(' ')[2]}"
