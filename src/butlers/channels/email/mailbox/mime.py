"""A mail as people and butlers read it: headers, plain text and the names of attachments, all within bounds.

The old, lenient parser of the standard library is used on purpose: the newer one raises on headers that real mail has.
Whatever cannot be decoded is shown with replacement characters; nothing in a mail is an error. All of this runs in a
worker process (`parser.py`): the library takes time that grows with the square of what some mails hold.

    bytes -> few containers, delimiters and lines? -> parse -> walk at most MAX_DEPTH deep and MAX_PARTS wide
                 more: the head alone is read
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC
from email import message_from_bytes
from email.errors import (
    FirstHeaderLineIsContinuationDefect,
    MessageError,
    MisplacedEnvelopeHeaderDefect,
    MissingHeaderBodySeparatorDefect,
)
from email.message import Message
from email.parser import BytesHeaderParser
from email.policy import Compat32
from email.utils import getaddresses, parsedate_to_datetime
from html import unescape
from itertools import islice

MAX_CONTAINERS = 64  # multipart and message parts that a mail may name before it is not taken apart
MAX_DELIMITERS = 5_000  # lines that may begin or end a part
MAX_COMPARISONS = 3_000_000  # of a line with a boundary
MAX_DEPTH = 12
MAX_PARTS = 200
MAX_TEXT = 100_000  # characters of the plain text
MAX_HEADERS = 100
MAX_HEADER = 8_000  # characters of one header
MAX_CONTENT_HEADER = 1_000  # of one that describes a part: the library reads its parameters in quadratic time
LONGEST_FROM = 2_000  # of one that counts as somebody's: of a longer one the end may be cut off
NOT_ENCODED = frozenset({"authentication-results"})  # headers that machines write for machines
MAX_ATTACHMENTS = 100
_CONTAINER = re.compile(rb"multipart/|message/", re.IGNORECASE)
_UNREADABLE = (MessageError, LookupError, ValueError, TypeError, AttributeError, RecursionError, AssertionError)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_TORN_HEAD = (FirstHeaderLineIsContinuationDefect, MisplacedEnvelopeHeaderDefect, MissingHeaderBodySeparatorDefect)
_FOLD = re.compile(r"\r?\n[ \t]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_MAX_CHARSET = 60  # characters, a language tag included
_TAG_NAME = re.compile(r"/?\s{0,8}([a-zA-Z][a-zA-Z0-9]*)")
_BREAKS = frozenset({"p", "br", "div", "li", "tr", "h1", "h2", "h3", "h4", "table", "blockquote"})
_CLOSING = {
    name: re.compile(rf"</\s{{0,8}}{name}(?![a-zA-Z0-9])", re.IGNORECASE)
    for name in ("script", "style", "head", "title")
}
_BLANK_LINES = re.compile(r"\n{3,}")
_NO_CHARACTER = re.compile(r"&#[xX]?[0-9a-fA-F]{8,};?")  # a number so long that the library refuses to read it


@dataclass(frozen=True, slots=True, kw_only=True)
class MailAttachment:
    media_type: str
    size_bytes: int
    filename: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    headers: Mapping[str, tuple[str, ...]]  # by the name in small letters
    text: str
    truncated: bool  # there was more than is shown here
    attachments: tuple[MailAttachment, ...]
    sender_name: str = ""
    sender_address: str = ""  # in small letters; empty where there is none
    author: str = ""  # the same where one From names one address and nothing else; empty where it is open to doubt
    written_at: str | None = None  # what the Date header says, ISO 8601 in UTC

    def header(self, name: str) -> str | None:
        values = self.headers.get(name.lower())
        return values[0] if values else None


def read_mail(raw: bytes) -> Mail:
    return mail_of(*parse(raw))


def mail_of(message: Message, whole: bool) -> Mail:
    texts: list[tuple[str, str]] = []
    attachments: list[MailAttachment] = []
    for part in leaves(message) if whole else ():
        if _is_text(part):
            texts.append((part.get_content_type(), _content(part)))
        elif len(attachments) < MAX_ATTACHMENTS:
            attachments.append(_attachment(part))
    text, headers = _best(texts), headers_of(message)
    written = from_headers(message)
    name, address = next(iter(addresses(as_written("".join(written[:1])))), ("", ""))
    return Mail(
        headers=headers,
        text=text[:MAX_TEXT],
        truncated=not whole or len(text) > MAX_TEXT,
        attachments=tuple(attachments),
        sender_name=decoded(name),
        sender_address=address,
        author=sole_address(written[0]) if len(written) == 1 and _has_whole_head(message) else "",
        written_at=_written_at("".join(headers.get("date", ("",))[:1])),
    )


def _written_at(date: str) -> str | None:
    try:
        written = parsedate_to_datetime(date)
        return (written if written.tzinfo else written.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        return None


class _BoundedHeaders(Compat32):
    """The lenient policy, with headers cut before anybody reads their values."""

    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(sourcelines)
        is_content = name[:8].lower() == "content-"
        return name, value[: MAX_CONTENT_HEADER if is_content else MAX_HEADER]


def parse(raw: bytes) -> tuple[Message, bool]:
    """The mail, and whether all of it was taken apart; else only its head was read."""
    if _is_bounded(raw):
        try:
            return message_from_bytes(raw, policy=_BoundedHeaders()), True
        except _UNREADABLE:
            pass
    head = raw.partition(b"\r\n\r\n")[0][: MAX_HEADERS * MAX_HEADER]
    return BytesHeaderParser(policy=_BoundedHeaders()).parsebytes(head), False


def _is_bounded(raw: bytes) -> bool:
    """Whether taking the mail apart is cheap: the parser compares every line with every boundary it is inside of."""
    containers = sum(1 for _ in _CONTAINER.finditer(raw))
    if containers == 0:
        return True
    few_parts = containers <= MAX_CONTAINERS and raw.count(b"\n--") <= MAX_DELIMITERS
    return few_parts and containers * raw.count(b"\n") <= MAX_COMPARISONS


def leaves(message: Message) -> Iterator[Message]:
    """The parts that hold something, in order, within bounds. A mail inside a mail is one part."""
    waiting = [(message, 0)]
    for _ in range(MAX_PARTS):
        if not waiting:
            return
        part, depth = waiting.pop()
        inner = inner_parts(part)
        if part.get_content_maintype() == "multipart" and inner:
            if depth < MAX_DEPTH:
                waiting.extend((child, depth + 1) for child in reversed(inner))
        else:
            yield part


def inner_parts(part: Message) -> list[Message]:
    """What a part holds, when that is parts; asking a part for its text may raise."""
    inner = part.get_payload() if part.is_multipart() else []
    return [child for child in inner if isinstance(child, Message)]


def headers_of(message: Message) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name, value in islice(message.raw_items(), MAX_HEADERS):
        key = clean(name).lower()[:100]
        read = as_written if key in NOT_ENCODED else decoded
        found[key] = (*found.get(key, ()), read(_unescaped(str(value))))
    return found


def from_headers(message: Message) -> list[str]:
    """Every From as it is written, wherever it stands: a decoded word could look like an address."""
    named = (value for name, value in message.raw_items() if name.strip().lower() == "from")
    return [_unescaped(str(value)) for value in named]


def _has_whole_head(message: Message) -> bool:
    """Whether its headers end at an empty line; else others may read headers in what is the text here."""
    return not any(isinstance(defect, _TORN_HEAD) for defect in message.defects)


def _unescaped(value: str) -> str:
    """Bytes beyond ASCII, which the parser hides in surrogates, are UTF-8 in mail of today."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def decoded(value: str) -> str:
    return " ".join(clean(decode_encoded_words(_FOLD.sub(" ", value[:MAX_HEADER]))).split())


def as_written(value: str) -> str:
    """A header as one line. An encoded word stays what it is: decoded, it could look like something a server wrote."""
    return " ".join(clean(_FOLD.sub(" ", value[:MAX_HEADER])).split())


def addresses(value: str | None) -> list[tuple[str, str]]:
    """(display name, address) of everybody a header names, addresses in small letters."""
    try:
        found = getaddresses([value or ""])
    except _UNREADABLE:
        return []
    return [(name.strip(), address.strip().lower()) for name, address in found if "@" in address]


def sole_address(value: str) -> str:
    """The address of a From, as written, that names one and cannot be read as another's; else nothing."""
    if len(value) > LONGEST_FROM:
        return ""
    line = as_written(value)
    try:
        found = getaddresses([line])
    except _UNREADABLE:
        return ""
    address = found[0][1].strip().lower() if len(found) == 1 else ""
    outside = _QUOTED.sub(" ", line).lower()
    is_plain = outside.count("@") == 1 and outside.count("<") <= 1 and '"' not in outside
    return address if is_plain and "@" in address and address in outside else ""


def clean(text: str) -> str:
    """Without what neither JSON nor PostgreSQL takes: NUL, other controls, lone surrogates."""
    return _CONTROL.sub("\ufffd", text)


def _is_text(part: Message) -> bool:
    named = part.get_content_disposition() == "attachment" or _filename(part) is not None
    return part.get_content_type() in ("text/plain", "text/html") and not named


def _content(part: Message) -> str:
    payload = bytes_of(part)
    try:
        text = payload.decode(part.get_content_charset() or "utf-8", "replace")
    except (LookupError, ValueError):  # no such charset, or none that could be
        text = payload.decode("latin-1")
    return clean(text.replace("\r\n", "\n").replace("\r", "\n"))


def bytes_of(part: Message) -> bytes:
    try:
        payload = part.get_payload(decode=True)
    except _UNREADABLE:
        payload = None
    return payload if isinstance(payload, bytes) else b""


def _attachment(part: Message) -> MailAttachment:
    return MailAttachment(
        media_type=clean(part.get_content_type())[:200] or "application/octet-stream",
        size_bytes=_size(part),
        filename=_filename(part),
    )


def _size(part: Message) -> int:
    inner = inner_parts(part)
    if not inner:
        return len(bytes_of(part))
    try:
        return sum(len(mail.as_bytes()) for mail in inner)
    except _UNREADABLE:
        return 0


def _filename(part: Message) -> str | None:
    try:
        name = part.get_filename()
    except _UNREADABLE:
        return None
    return (clean(" ".join(decoded(name).split()))[:200] or None) if name else None


def _best(texts: list[tuple[str, str]]) -> str:
    """The plain text; where there is none, the words of the HTML."""
    plain = [text for kind, text in texts if kind == "text/plain"]
    if any(text.strip() for text in plain):
        return "\n\n".join(text.strip("\n") for text in plain)
    return "\n\n".join(html_to_text(text[: 4 * MAX_TEXT]) for kind, text in texts if kind == "text/html")


# --- words in other character sets (RFC 2047) and of HTML mail, each in one pass ---


def decode_encoded_words(text: str) -> str:
    """The text with its encoded words decoded; what cannot be decoded stays as it is."""
    pieces: list[str] = []
    held: tuple[str, bytes] | None = None  # words of one charset belong together: a character may span two of them
    for gap, charset, content in _words(text):
        if charset is None:
            pieces += [_characters(*held)] if held else []
            pieces.append(gap)
            return "".join(pieces)
        if held is not None and gap.strip() == "" and held[0] == charset:
            held = (charset, held[1] + content)
            continue
        if held is not None:
            pieces.append(_characters(*held))
        if held is None or gap.strip():
            pieces.append(gap)  # blanks between two encoded words are no text
        held = (charset, content)
    return "".join(pieces)


def _words(text: str) -> Iterator[tuple[str, str | None, bytes]]:
    """(plain text before, charset, decoded bytes) per encoded word, then (the rest, None, b"")."""
    place = start = 0
    while (start := text.find("=?", start)) >= 0:
        charset, kind, begin = _opening(text, start)
        if charset is None:
            start += 2
            continue
        end = text.find("?=", begin)
        if end < 0:
            break
        content = _decoded_word(kind, text[begin:end])
        if content is None:
            start = end + 2
            continue
        yield text[place:start], charset, content
        place = start = end + 2
    yield text[place:], None, b""


def _opening(text: str, start: int) -> tuple[str | None, str, int]:
    """`=?charset?q?` at this place: the charset, the kind, and where the content begins."""
    mark = text.find("?", start + 2, start + 2 + _MAX_CHARSET)
    kind = text[mark + 1 : mark + 2].lower()
    if mark <= start + 2 or kind not in ("q", "b") or text[mark + 2 : mark + 3] != "?":
        return None, "", start
    return text[start + 2 : mark].partition("*")[0].lower(), kind, mark + 3


def _decoded_word(kind: str, encoded: str) -> bytes | None:
    try:
        if kind == "q":
            return binascii.a2b_qp(encoded.encode("ascii"), header=True)
        return binascii.a2b_base64(encoded + "==")
    except ValueError:
        return None


def _characters(charset: str, content: bytes) -> str:
    try:
        return content.decode(charset, "replace")
    except (LookupError, ValueError):
        return content.decode("latin-1")


def html_to_text(html: str) -> str:
    text = unescape(_NO_CHARACTER.sub("\ufffd", "".join(_pieces(html))))
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()


def _pieces(html: str) -> Iterator[str]:
    """Text between tags, and a line break where a tag makes one."""
    place = 0
    while (start := html.find("<", place)) >= 0:
        yield html[place:start].replace("\n", " ")
        end, piece = _tag(html, start)
        if end < 0:
            return  # nothing closes it: what follows is no text
        place = end
        yield piece
    yield html[place:].replace("\n", " ")


def _tag(html: str, start: int) -> tuple[int, str]:
    """Where a tag that begins here ends, with all that it hides, and what it means for the text."""
    if html.startswith("<!--", start):
        return _behind(html, "-->", start + 4), ""
    end = _behind(html, ">", start)
    named = _TAG_NAME.match(html, start + 1)
    name = named[1].lower() if named else ""
    if end >= 0 and name in _CLOSING and html[start + 1] != "/":
        closing = _CLOSING[name].search(html, end)
        return (_behind(html, ">", closing.end()) if closing else -1), ""
    return end, "\n" if name in _BREAKS else ""


def _behind(html: str, mark: str, place: int) -> int:
    found = html.find(mark, place)
    return found + len(mark) if found >= 0 else -1
