"""When a mail may be answered by a machine, and how the answer's subject reads (RFC 3834, RFC 5322).

A butler's answer is an automatic one. Two machines that answer each other never stop, so nothing that a machine or a
list sent is answered, nothing whose sender wants no answer (the null return path), and never we ourselves. Headers are
a courtesy, and a responder may have none: what no header can defeat is the brake in `admission.py`, by correspondent,
by thread and by count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MAX_MESSAGE_ID = 500  # characters of one Message-ID; longer ones do not fit on a line
_MESSAGE_ID = re.compile(r"<[!-;=?-~]+>")  # printable ASCII without angle brackets
_REPLY = re.compile(r"(?:re|aw|sv|antw)\s?(?:[\[(]\d{1,3}[\])])?\s?:", re.IGNORECASE)
_TOKEN = re.compile(r"\[[^\[\]]{1,64}\]")
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


def reply_subject(*, own: str | None, parent: str | None, origin: str) -> str | None:
    """The subject of an answer: the butler's own words, else those it answers, with the origin's token once.

    None when neither says anything; the caller then has words for that.
    """
    subject = _text(own).strip() or _text(parent).strip()
    token = f"[{origin}]"
    if not subject:
        return None
    return reply_once(subject if token in subject else f"{token} {subject}")


def reply_once(subject: str) -> str:
    """`Re:` exactly once and in front, tokens behind it, none of them twice."""
    tokens, rest = _leading(subject)
    kept = [token for token in dict.fromkeys(tokens) if token not in rest]
    return " ".join(["Re:", *kept, *([rest] if rest else [])])


def _leading(subject: str) -> tuple[list[str], str]:
    tokens: list[str] = []
    rest = subject.strip()
    while match := _REPLY.match(rest) or _TOKEN.match(rest):
        if match.re is _TOKEN:
            tokens.append(match[0])
        rest = rest[match.end() :].strip()
    return tokens, rest


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
