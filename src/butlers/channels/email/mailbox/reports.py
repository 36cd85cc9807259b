"""What a mail is to us: a mail, or a mail server's report about one that it could, or could not, deliver (RFC 3464).

`MailParser` takes foreign mail apart in a worker process; what comes back is checked before anybody believes it.

    multipart/report; report-type=delivery-status
      text/plain                for people
      message/delivery-status   one block about the mail, one per recipient: Action, Status, Final-Recipient
      message/rfc822            the mail itself, or text/rfc822-headers: its head. Here stands whose it was.

Anybody can write such a mail. It can only ever speak about a Message-ID that is ours and hard to guess, and only about
the recipient that this very delivery was for, so a forger can bounce nothing but what was sent to him.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from email.message import Message
from typing import Any, Literal, TypeVar

import pydantic
from pydantic import TypeAdapter

from butlers.channels.email.headers import message_ids
from butlers.channels.email.mailbox.mime import Mail, bytes_of, decoded, inner_parts, leaves, mail_of, parse, read_mail
from butlers.isolation.isolate import FailureKind, Function, Isolate, IsolationFailed, IsolationLimits

Fate = Literal["delivered", "bounced", "undecided"]
_STATUS = re.compile(r"\b([245])\.(\d{1,3})\.(\d{1,3})\b")
_MESSAGE_ID_LINE = re.compile(r"^message-id:[ \t]*(?:\r?\n[ \t]+)?(<[^<>\s]+>)", re.IGNORECASE | re.MULTILINE)
# A full mailbox, a system at fault, a protocol, the content, a policy: the address itself may be good.
_ABOUT_SOMETHING_ELSE = frozenset({"3", "5", "6", "7"})
_FULL = frozenset({("2", "2"), ("2", "3"), ("2", "4")})
_STATUS_TYPES = frozenset({"message/delivery-status", "message/global-delivery-status"})
_MAIL_TYPES = frozenset({"message/rfc822", "message/global"})
_HEAD_TYPES = frozenset({"text/rfc822-headers", "message/global-headers"})
_MAX_BLOCKS = 50
_MAX_HEAD = 100_000  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryReport:
    message_id: str  # of the mail that is reported on
    fate: Fate
    status: str | None  # such as 5.1.1

    @property
    def recipient_gone(self) -> bool:
        """Whether writing to this recipient again is pointless."""
        if self.fate != "bounced" or self.status is None:
            return False
        kind, subject, detail = self.status.split(".")
        return kind == "5" and subject not in _ABOUT_SOMETHING_ELSE and (subject, detail) not in _FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class Understood:
    """What a mail is to us: a mail, or a report; neither for a report that says nothing."""

    mail: Mail | None = None
    report: DeliveryReport | None = None


def mail_document(raw: bytes) -> dict[str, Any]:
    """`read_mail` as plain values, for the worker process."""
    return asdict(read_mail(raw))


def understood_document(raw: bytes) -> dict[str, Any]:
    """`understand` as plain values, for the worker process."""
    return asdict(understand(raw))


def understand(raw: bytes) -> Understood:
    message, whole = parse(raw)
    if _report_type(message):
        return Understood(report=_report(message) if whole else None)
    return Understood(mail=mail_of(message, whole))


def _report(message: Message) -> DeliveryReport | None:
    """The report, or None for one that does not say which mail it is about."""
    parts = list(leaves(message))
    original = next(filter(None, map(_original_id, reversed(parts))), None)
    blocks = [block for part in parts for block in _recipients(part)]
    if original is None or not blocks:
        return None
    fate, status = _outcome_of(blocks)
    return DeliveryReport(message_id=original, fate=fate, status=status)


def _report_type(message: Message) -> bool:
    kind = message.get_param("report-type")
    is_status = isinstance(kind, str) and kind.strip().lower() == "delivery-status"
    return message.get_content_type() == "multipart/report" and is_status


def _recipients(part: Message) -> Iterator[Message]:
    """The blocks of a delivery-status part that are about a recipient; the library parses each as a message."""
    if part.get_content_type() in _STATUS_TYPES:
        yield from (block for block in inner_parts(part)[:_MAX_BLOCKS] if block.get("Action"))


def _original_id(part: Message) -> str | None:
    inner = inner_parts(part)
    if part.get_content_type() in _MAIL_TYPES and inner:
        found = message_ids(decoded(str(inner[0].get("Message-ID", ""))))
    elif part.get_content_type() in _HEAD_TYPES:
        found = _MESSAGE_ID_LINE.findall(_head(part, inner))
    else:
        found = []
    return found[0] if found else None


def _head(part: Message, inner: list[Message]) -> str:
    # message/* parts are taken apart by the library, whatever stands in them.
    taken_apart = "".join(f"{name}: {value}\n" for mail in inner for name, value in mail.items())
    return taken_apart or bytes_of(part)[:_MAX_HEAD].decode("utf-8", "replace")


def _outcome_of(blocks: Iterable[Message]) -> tuple[Fate, str | None]:
    """The worst that is said: a mail of ours has one recipient, who may stand for several behind a list."""
    fates = [(_fate(block), _status(block)) for block in blocks]
    for fate in ("bounced", "undecided", "delivered"):
        for found, status in fates:
            if found == fate:
                return found, status
    return "undecided", None


def _fate(block: Message) -> Fate:
    action = str(block.get("Action", "")).strip().lower()
    return {"failed": "bounced", "delivered": "delivered"}.get(action, "undecided")  # type: ignore[return-value]


def _status(block: Message) -> str | None:
    found = _STATUS.search(str(block.get("Status", "")))
    return found[0] if found else None


T = TypeVar("T")
FUNCTIONS: tuple[Function, ...] = (mail_document, understood_document)


class MailParser:
    """Every method raises `IsolationFailed` for a mail that cannot be taken apart within the limits.

    It raises `TargetUnavailable` when no worker process could begin or a stop ended it.
    """

    def __init__(self, limits: IsolationLimits = IsolationLimits()) -> None:
        self._isolate = Isolate(FUNCTIONS, limits=limits)
        self._mail = TypeAdapter(Mail)
        self._understood = TypeAdapter(Understood)

    async def mail(self, raw: bytes) -> Mail:
        return _checked(self._mail, await self._isolate.run(mail_document, raw))

    async def understand(self, raw: bytes) -> Understood:
        return _checked(self._understood, await self._isolate.run(understood_document, raw))

    async def close(self) -> None:
        await self._isolate.close()


def _checked(adapter: TypeAdapter[T], answer: bytes) -> T:
    try:
        return adapter.validate_json(answer)
    except pydantic.ValidationError as error:
        raise IsolationFailed(FailureKind.CRASHED, "the worker process gave no valid answer") from error
