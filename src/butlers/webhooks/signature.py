"""Standard Webhooks (https://www.standardwebhooks.com), the symmetric scheme v1.

The signature is HMAC-SHA256 over `id.timestamp.body`, in base64. A secret is `whsec_` and the key in base64. While a
secret is being changed, the header has a signature by each, and the receiver accepts the one that it can check.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

PREFIX = "whsec_"
KEY_BYTES = 32


def new_secret(random_bytes: Callable[[int], bytes]) -> str:
    """`random_bytes` must be fit for secrets: `secrets.token_bytes`."""
    return PREFIX + base64.b64encode(random_bytes(KEY_BYTES)).decode()


def message_id(delivery_id: UUID) -> str:
    """The `webhook-id`: the same in every attempt."""
    return f"msg_{delivery_id.hex}"


def signed_headers(secrets: Sequence[str], message: str, body: bytes, *, now: datetime) -> dict[str, str]:
    """`message` is the `webhook-id`. The time is that of the attempt: receivers refuse old ones."""
    stamp = str(int(now.timestamp()))
    content = f"{message}.{stamp}.".encode() + body
    signatures = " ".join(f"v1,{_signature(secret, content)}" for secret in secrets)
    return {"webhook-id": message, "webhook-timestamp": stamp, "webhook-signature": signatures}


def _signature(secret: str, content: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(PREFIX))
    return base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
