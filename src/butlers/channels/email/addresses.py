"""What a mail address looks like, and when two spellings are one address. Pure.

Rules, budgets, order and keys use the canonical spelling: lower-cased, without the quotes and comments that it can do
without. A mail still carries the address as it was given, because the part before the @ is the receiving server's to
read.
"""

from __future__ import annotations

from email.errors import MessageError
from email.headerregistry import Address

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
