"""How a message between Messenger and a gateway proves whom it is from: HMAC-SHA256 over the time and the body.

    Butlers-Timestamp: 1767225600
    Butlers-Signature: v1=<hex of HMAC-SHA256(key, "1767225600." + body)>

The time is signed with the body, so that nobody can give an old message a new date. Messenger signs what it posts to a
gateway in the same way as a gateway signs the receipts it posts to Messenger, each with a key of its own.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime

TIMESTAMP = "Butlers-Timestamp"
SIGNATURE = "Butlers-Signature"
TOLERANCE_S = 300.0  # how far the two clocks may be apart, the way included
_VERSION = "v1="
_LONGEST_TIMESTAMP = 12  # digits


def signed_headers(key: str, body: bytes, *, now: datetime) -> dict[str, str]:
    stamp = str(int(now.timestamp()))
    return {TIMESTAMP: stamp, SIGNATURE: _signature(key, stamp, body)}


def problem_with(headers: Mapping[str, str], body: bytes, key: str, *, now: datetime) -> str | None:
    """Why the signature does not convince; None when it does. Header names are looked up as they stand above."""
    stamp, given = headers.get(TIMESTAMP, ""), headers.get(SIGNATURE, "")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= _LONGEST_TIMESTAMP):
        return f"{TIMESTAMP} must be a time in seconds since 1970"
    # Compared before the time is: whoever lacks the key learns nothing, not even about our clock.
    if not hmac.compare_digest(_signature(key, stamp, body).encode(), given.encode("utf-8", "replace")):
        return f"{SIGNATURE} does not fit the body"
    if abs(now.timestamp() - int(stamp)) > TOLERANCE_S:
        return f"{TIMESTAMP} is more than {TOLERANCE_S:g} seconds away from now"
    return None


def _signature(key: str, stamp: str, body: bytes) -> str:
    digest = hmac.new(key.encode(), f"{stamp}.".encode() + body, hashlib.sha256)
    return _VERSION + digest.hexdigest()
