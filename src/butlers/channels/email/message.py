"""The mail itself: headers that thread, say what they are, and cannot be broken out of.

A second attempt of the same delivery is the same mail, byte for byte: the Message-ID follows from the idempotency key,
the Date from the delivery's id, and nothing else varies. So every mailbox that looks can tell a resend from a second
message.

Headers are folded here and not by the library. It writes long Message-IDs as encoded words, which breaks threads, and
it decodes encoded words in a subject that somebody else chose, which may put a line break where there was none.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from email.header import Header
from email.headerregistry import BaseHeader, HeaderRegistry
from email.message import EmailMessage
from email.policy import SMTP, EmailPolicy, Policy
from email.utils import format_datetime, quote
from hashlib import sha256
from typing import Any
from urllib.parse import quote as quote_url

from butlers.channels.adapter import Outgoing
from butlers.channels.email.headers import mail_address, message_ids
from butlers.ids import made_at
from butlers.messenger.preparation import reply_once

MAX_REFERENCES = 20  # Message-IDs: the root of the thread and the latest
_URI = ":/?#[]@!$&'()*+,;=%~"  # reserved and escaped: RFC 3986, section 2
_VERBATIM = (
    *("from", "to", "date", "message-id", "in-reply-to", "references", "auto-submitted"),
    *("list-unsubscribe", "list-unsubscribe-post"),
)
LINE = 75  # characters, so that a mail reader need not wrap
_SEPARATORS = frozenset({"Cc", "Zl", "Zp", "Cs"})  # controls, line and paragraph separators, lone surrogates


def compose(outgoing: Outgoing, *, sender: str, sender_name: str | None = None) -> EmailMessage:
    """The mail; raises ValueError for a recipient that is no address."""
    mail = EmailMessage(policy=_policy())
    mail["From"] = _author(mail_address(sender), one_line(sender_name or ""))
    mail["To"] = mail_address(outgoing.as_given)
    mail["Subject"] = subject_of(outgoing)
    mail["Date"] = format_datetime(made_at(outgoing.delivery_id).replace(microsecond=0))
    mail["Message-ID"] = message_id(outgoing.idempotency_key, sender=sender)
    for name, value in _thread(outgoing).items():
        mail[name] = value
    mail["Auto-Submitted"] = "auto-replied" if outgoing.intent == "reply" else "auto-generated"
    if outgoing.unsubscribe_url is not None:  # RFC 8058
        mail["List-Unsubscribe"] = f"<{_uri(outgoing.unsubscribe_url)}>"
        mail["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    if outgoing.html is None:
        _write_text(mail, outgoing.message)
    else:
        _write_both(mail, outgoing.message, outgoing.html, key=outgoing.idempotency_key)
    return mail


def message_id(idempotency_key: str, *, sender: str) -> str:
    return f"<{sha256(idempotency_key.encode()).hexdigest()[:40]}@{sender.rpartition('@')[2]}>"


def subject_of(outgoing: Outgoing) -> str:
    subject = one_line(outgoing.subject or "")
    return reply_once(subject) if outgoing.intent == "reply" else subject


def _author(address: str, name: str) -> str:
    """The address, with the name that readers are shown; encoded words are not split over lines here."""
    if not name:
        return address
    shown = f'"{quote(name)}"' if name.isascii() else Header(name, "utf-8").encode(linesep="\n").replace("\n", "")
    return f"{shown} <{address}>"


def one_line(text: str) -> str:
    """The text without anything that could end a header's line."""
    return "".join(" " if unicodedata.category(c) in _SEPARATORS else c for c in text).strip()


def _thread(outgoing: Outgoing) -> dict[str, str]:
    """What ties an answer to the mail it answers; nothing when that mail is not known."""
    if outgoing.intent != "reply":
        return {}
    event = outgoing.source_event
    parent = message_ids(event.get("message_id"))[:1]
    if not parent:
        return {}
    return {"In-Reply-To": parent[0], "References": " ".join(_references(event, parent[0]))}


def _references(event: Mapping[str, Any], parent: str) -> list[str]:
    # RFC 5322, 3.6.4: without References the parent's own In-Reply-To continues the thread, if it names one mail.
    earlier = message_ids(event.get("references"))
    if not earlier and len(answered := message_ids(event.get("in_reply_to"))) == 1:
        earlier = answered
    chain = [*(known for known in dict.fromkeys(earlier) if known != parent), parent]
    return chain if len(chain) <= MAX_REFERENCES else [chain[0], *chain[-(MAX_REFERENCES - 1) :]]


def _uri(url: str) -> str:
    """The address without anything that could end it, or its line; a valid one is not changed."""
    return quote_url(url, safe=_URI, errors="replace")


def _write_both(mail: EmailMessage, text: str, html: str, *, key: str) -> None:
    """Text first, HTML last: a mail program shows the last one that it can.

    Quoted-printable writes every = as =3D, so no line of either can be the boundary, which follows from the key.
    """
    mail.set_content(_writable(text), cte="quoted-printable")
    mail.add_alternative(_writable(html), subtype="html", cte="quoted-printable")
    mail.set_boundary(f"=_{sha256(f'boundary {key}'.encode()).hexdigest()[:40]}")


def _writable(text: str) -> str:
    return text.replace("\x00", "").encode("utf-8", "replace").decode()


def _write_text(mail: EmailMessage, text: str) -> None:
    writable = _writable(text)
    plain = all(c in "\t\r\n" or unicodedata.category(c) != "Cc" for c in writable)
    mail.set_content(writable, cte=None if plain else "quoted-printable")


class _Header(BaseHeader):
    """A header that is taken as it was given."""

    max_count = 1

    @classmethod
    def parse(cls, value: str, parts: dict[str, Any]) -> None:
        parts["decoded"] = value
        parts["parse_tree"] = None


class _Verbatim(_Header):
    """Words that must arrive as they are: addresses, dates, Message-IDs; one line each when they are many."""

    def fold(self, *, policy: Policy) -> str:
        words = str(self).split(" ") if self.name.lower() == "references" else [str(self)]
        return _folded(f"{self.name}: {words[0]}", *(f" {word}" for word in words[1:]), policy=policy)


class _Words(_Header):
    """Text for people: encoded where a reader could take it for something else."""

    def fold(self, *, policy: Policy) -> str:
        text = str(self)
        charset = "us-ascii" if text.isascii() and "=?" not in text and _fits(text) else "utf-8"
        encoded = Header(text, charset=charset, maxlinelen=LINE, header_name=self.name).encode(linesep="\n")
        return _folded(*f"{self.name}: {encoded}".split("\n"), policy=policy)


def _folded(*lines: str, policy: Policy) -> str:
    return "".join(f"{line}{policy.linesep}" for line in lines)


def _fits(text: str) -> bool:
    return "  " not in text and all(len(word) < LINE - 10 for word in text.split(" "))


def _policy() -> EmailPolicy[EmailMessage]:
    headers = HeaderRegistry()
    for name in _VERBATIM:
        headers.map_to_type(name, _Verbatim)
    headers.map_to_type("subject", _Words)
    # Not every server that a mail passes takes eight bits.
    return SMTP.clone(header_factory=headers, cte_type="7bit")
