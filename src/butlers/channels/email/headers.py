"""What the headers of a mail say: what an answer needs to know, and whether a machine may answer (RFC 3834, RFC 5322).

The mailbox leaves a mail as `{"headers": {"Message-ID": "<...>", ...}, ...}`: header name -> value, or -> list of
values when a header stands there more than once; names in any case. Nothing in it is trusted: every field is checked
for its type and cut to a bound, and what is missing stays away.

A butler's answer is an automatic one. Two machines that answer each other never stop, so nothing that a machine or a
list sent is answered, nothing whose sender wants no answer (the null return path), and never we ourselves. Headers are
a courtesy, and a responder may have none: what no header can defeat is the brake in Messenger's `admission.py`, by
correspondent, by thread and by count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.errors import MessageError
from email.headerregistry import Address
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

MAX_MESSAGE_ID = 500  # characters of one Message-ID; longer ones do not fit on a line
_MESSAGE_ID = re.compile(r"<[!-;=?-~]+>")  # printable ASCII without angle brackets
_BULK = frozenset({"bulk", "list", "junk", "auto_reply"})
# Headers of `source_event` whose presence says that a machine wrote, or that machines are not to answer.
_OF_MACHINES = {
    "x_auto_response_suppress": "X-Auto-Response-Suppress",
    "x_autoreply": "X-Autoreply",
    "x_autorespond": "X-Autorespond",
    "x_loop": "X-Loop",
    "list_id": "List-Id",
    "list_unsubscribe": "List-Unsubscribe",
    "feedback_id": "Feedback-ID",
}
_SEPARATORS = {ord(sign): None for sign in "-_."}
_NO = frozenset({"", "no", "none"})
_MACHINES = frozenset({"mailerdaemon", "postmaster", "bounce", "bounces"})
_UNREAD = ("noreply", "donotreply")  # how the name of a mailbox that nobody reads begins


def source_event(raw: Any) -> dict[str, Any] | None:
    """The answered mail as the adapter and `may_answer` want it; None when the payload tells nothing."""
    headers = raw.get("headers") if isinstance(raw, Mapping) else None
    if not isinstance(headers, Mapping):
        return None
    found: dict[str, Any] = {}
    for name, value in headers.items():
        field = _FIELDS.get(name.strip().lower()) if isinstance(name, str) else None
        text = _first_text(value)
        if field is not None and text is not None:
            found.setdefault(field, _bounded(field, text))
    return found or None


def may_answer(source_event: Mapping[str, Any] | None, own_address: str) -> str | None:
    """Why this mail must not be answered; None when it may."""
    event = source_event or {}
    if _first_word(event.get("auto_submitted")) not in ("", "no"):
        return "the message was sent by a machine (Auto-Submitted)"
    if _first_word(event.get("precedence")) in _BULK:
        return "the message is bulk mail (Precedence)"
    for field, header in _OF_MACHINES.items():
        if _first_word(event.get(field)) not in _NO:
            return f"the message was sent by a machine or over a list ({header})"
    return _unanswerable_sender(event, own_address)


def _unanswerable_sender(event: Mapping[str, Any], own_address: str) -> str | None:
    return_path = event.get("return_path")
    if isinstance(return_path, str) and return_path.strip() in ("", "<>"):
        return "the message wants no answer (null return path)"
    senders = {mailbox_of(_address(event.get("from"))), mailbox_of(_address(return_path))} - {""}
    if mailbox_of(own_address) in senders:
        return "the message is our own"
    names = [sender.partition("@")[0].translate(_SEPARATORS) for sender in senders]
    if any(name in _MACHINES for name in names):
        return "the message was sent by a mail server"
    if any(name.startswith(_UNREAD) for name in names):
        return "nobody reads the sender's mailbox (no-reply)"
    return None


def mailbox_of(address: str) -> str:
    """Whose mail it is: in small letters, and without what stands behind a plus."""
    name, at, domain = address.strip().lower().rpartition("@")
    return f"{name.partition('+')[0]}{at}{domain}"


def message_ids(value: Any) -> list[str]:
    """The Message-IDs in a header's value, in order; what is not one is left out."""
    return [found for found in _MESSAGE_ID.findall(_text(value)) if len(found) <= MAX_MESSAGE_ID]


def _first_word(value: Any) -> str:
    """`auto-replied; owner=x` is `auto-replied`."""
    return re.split(r"[;\s(]", _text(value).strip().lower(), maxsplit=1)[0]


def _address(value: Any) -> str:
    """The address in `Ann <ann@far.example>`; the library's parser takes long for a value that is made for it."""
    text = _text(value)
    _, bracket, rest = text.rpartition("<")
    named = rest.partition(">")[0] if bracket else next((word for word in text.split() if "@" in word), "")
    return named.strip().strip(",;").lower()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _first_text(value: Any) -> str | None:
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, str) else None


def _bounded(field: str, text: str) -> str:
    if field != "references" or len(text) <= MAX_REFERENCES:
        return text.strip()[: MAX_REFERENCES if field == "references" else MAX_VALUE]
    # The thread's root stands first and its latest mails last: the middle may go, whole names only.
    root, _, latest = text.strip().partition(">")
    return f"{root[:MAX_VALUE]}> {latest[-(MAX_REFERENCES - MAX_VALUE - 2) :].partition(' ')[2]}"


MAX_ADDRESS = 320  # characters (RFC 5321: 64 + @ + 255)


def canonical(address: str) -> str:
    text = address.strip()
    try:
        return mail_address(text).lower()
    except ValueError:
        return text.lower()


def problem(address: str) -> str | None:
    try:
        mail_address(address)
    except ValueError:
        return "is not a mail address"
    return None


def person(identity: str) -> str:
    """The sender's address as the mailbox reports it; raises ValueError for what is none."""
    address = identity.strip()
    if address.count("@") != 1 or address.strip("@") != address:
        raise ValueError("must be a mail address")
    return address.lower()


def mail_address(text: str) -> str:
    """The address as a mail carries it; raises ValueError for what is none."""
    if not text.isascii() or len(text) > MAX_ADDRESS:
        raise ValueError("beyond what SMTP carries without an extension")
    try:
        address = Address(addr_spec=text).addr_spec
    except (
        MessageError,
        ValueError,
        IndexError,
        AttributeError,
        RecursionError,
    ) as error:  # the parser's own ways to say that it is none
        raise ValueError("not an address") from error
    if not address.isprintable() or address.strip() != address:
        raise ValueError("not an address")
    return address
