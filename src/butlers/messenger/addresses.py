"""What an address looks like on each channel, and when two spellings are one address. Pure.

A mistyped address on the suppression list would hold nobody back, and a mail to something that is no address is refused
before anything is asked of a server; the dry run says so, too.

Whoever asked not to be written to means themselves, however somebody spells them. So rules, budgets, windows, order and
keys go by the canonical address; a mail still carries the address as it was given, because the part before the @ is the
receiving server's to read.

    email      lower-cased, without the quotes and comments that it can do without
    telegram   @name lower-cased, a chat's number without leading zeros
    sms        without blanks, dots, dashes and brackets
"""

from __future__ import annotations

import re
from email.errors import MessageError
from email.headerregistry import Address

MAX_ADDRESS = 320  # characters (RFC 5321: 64 + @ + 255)
_CHAT = re.compile(r"-?[0-9]{1,20}|@[A-Za-z][A-Za-z0-9_]{3,31}")
_CHAT_NUMBER = re.compile(r"(-?)0*(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"\+?[0-9]{3,15}")  # E.164, or a short code
_PUNCTUATION = re.compile(r"[\s().-]")


def canonical(channel: str, address: str) -> str:
    """The one spelling that stands for an address in everything we remember about it."""
    text = address.strip()
    if channel == "email":
        return _plain_mail(text).lower()
    if channel == "telegram":
        number = _CHAT_NUMBER.fullmatch(text)
        return f"{number[1]}{number[2]}" if number else text.lower()
    return (_PUNCTUATION.sub("", text) or text) if channel == "sms" else text


def _plain_mail(text: str) -> str:
    try:
        return mail_address(text)
    except ValueError:
        return text


def problem_with(channel: str, address: str) -> str | None:
    """Why this can be nobody's address on the channel."""
    if channel == "email":
        return problem_with_mail(address)
    if channel == "telegram" and not _CHAT.fullmatch(address):
        return "is not a Telegram chat: digits (a group's begin with -) or @name"
    if channel == "sms" and not _NUMBER.fullmatch(address):
        return "is not a phone number: digits, with + and the country first"
    return None if address.isprintable() else "must be printable"


def problem_with_mail(address: str) -> str | None:
    try:
        mail_address(address)
    except ValueError:
        return "is not a mail address"
    return None


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
