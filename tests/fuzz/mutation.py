"""Documents and bytes, spoilt by dice: structure first, then the bytes themselves."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

DEEP: Any = []
for _ in range(150):
    DEEP = [DEEP]

HOSTILE: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    2**63,
    -(2**70),
    10**400,
    1.5,
    -0.0,
    1e308,
    "",
    " ",
    "\x00",
    "a\x00b",
    "\ud800",
    "\u202e\u0000",
    "\r\nBcc: all@example.org",
    "x" * 600,
    "y" * 250_000,
    "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 50,
    "<b>&amp;</i>*_[`",
    "%s%n{0}${x}",
    "../../etc/passwd",
    "'; DROP TABLE delivery_requests; --",
    "2026-01-01T00:00:00",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "00000000-0000-0000-0000-000000000000",
    "notify.v99",
    "telegram",
    "email",
    "react",
    [],
    {},
    [[]],
    [None] * 50,
    {"": {"": {}}},
    {"\x00": 1},
    {"$ref": "#"},
    DEEP,
)


def hostile(dice: random.Random) -> Any:
    """One of them, as a copy: a later change of the document must not change the list above."""
    return deepcopy(dice.choice(HOSTILE))


def mutated(document: Any, dice: random.Random) -> Any:
    """A copy with one to three changes of structure or value."""
    copy = deepcopy(document)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        places = list(_places(copy))
        if not places:
            return hostile(dice)
        holder, key = dice.choice(places)
        _change(holder, key, dice)
    return copy


def mangled(data: bytes, dice: random.Random) -> bytes:
    """The bytes with a few of them changed, lost, repeated or moved."""
    result = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 4, 16))):
        at = dice.randrange(len(result) + 1)
        span = dice.choice((1, 1, 2, 8, 64))
        match dice.randrange(5):
            case 0:
                result[at : at + span] = dice.randbytes(span)
            case 1:
                del result[at : at + span]
            case 2:
                result[at:at] = result[at : at + span] * dice.choice((1, 2, 50))
            case 3:
                result[at:at] = dice.choice(SPLINTERS)
            case 4:
                del result[at:]
    return bytes(result)


SPLINTERS: tuple[bytes, ...] = (
    b"\x00",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b'"',
    b"\\u0000",
    b"\\ud800",
    b"{",
    b"[" * 300,
    b"]",
    b",",
    b"NaN",
)
SPLINTERS += (b"1e999", b"-", b"\r\n\r\n", b"\n--", b"=?utf-8?B?////?=", b"null", b"/*", b"9" * 5000)


def as_json(document: Any) -> bytes:
    """JSON as a careless client writes it; what has no JSON form is replaced."""
    return json.dumps(document, default=str).encode()


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a document, as deep as it is reasonable."""
    waiting = [(node, 0)]
    while waiting:
        holder, depth = waiting.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in keys:
            yield holder, key
            if depth < 8:
                waiting.append((holder[key], depth + 1))


def _change(holder: Any, key: Any, dice: random.Random) -> None:
    match dice.randrange(7):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[dice.choice(("", "x", "schema_version", "\x00", "__class__", str(key).upper()))] = holder.pop(key)
        case 2 if isinstance(holder, dict):
            holder[dice.choice(("extra", "$", "delivery", "request_context"))] = hostile(dice)
        case 3:
            holder[key] = [holder[key]]
        case 4:
            holder[key] = {"value": holder[key]}
        case 5 if isinstance(holder[key], str) and holder[key]:
            holder[key] = _spoilt(holder[key], dice)
        case _:
            holder[key] = hostile(dice)


def _spoilt(text: str, dice: random.Random) -> str:
    at = dice.randrange(len(text))
    return text[:at] + dice.choice(("\x00", "\ud83d", "\n", "é", "\u2028", "0", text)) + text[at + 1 :]
