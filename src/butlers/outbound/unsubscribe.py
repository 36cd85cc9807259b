"""One-click unsubscribe (RFC 8058): a signed link that refuses one kind of message by one channel for one person.

    url_for(person, event, channel) -> {public_url}/unsubscribe/{token}
    POST /unsubscribe/{token}       stores the refusal; a repeat changes nothing
    GET  /unsubscribe/{token}       a page with a button, and changes nothing: mail filters fetch links

The token is its own permission: whoever has the mail may refuse it, and nothing else. Its key lies in the data
directory; a token does not expire, because people unsubscribe from old mail. A token that is not ours is answered like
an address that does not exist, without a reason.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import json
import os
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from butlers.clock import Clock
from butlers.contracts.notify import LONGEST_URL
from butlers.errors import ClassifiedError, ConfigurationError
from butlers.outbound.documents import read_preferences
from butlers.outbound.preferences import ChangedBy, PreferenceCache, PreferenceStore
from butlers.reliability.token_bucket import Bucket, Refused, full, take
from butlers.storage.files import holding
from butlers.telemetry import get_logger

log = get_logger("butlers.outbound")

PATH = "/unsubscribe/"
BY_LINK = "unsubscribe link"
PER_SECOND, BURST = 1.0, 20.0  # requests with links of one person
WRONG_PER_SECOND, WRONG_BURST = 5.0, 50.0  # requests with links that are not ours, all together
MOST_COUNTED = 10_000  # people whose requests are counted; the one who asked longest ago gives way
LONGEST_BODY = 4_096  # bytes
LONGEST_TOKEN = 4_096
_KEY_BYTES = 32
_ONE_CLICK = (b"List-Unsubscribe", b"One-Click")
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "X-Robots-Tag": "noindex",
}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Unsubscribe</title>
<style>body{{font-family:sans-serif;max-width:32em;margin:4em auto;padding:0 1em}}button{{font-size:1em}}</style></head>
<body>{content}</body></html>
"""
_ASKED = """<p>Messages about <b>{event}</b> come to you by <b>{channel}</b>.</p>
<form method="post"><input type="hidden" name="List-Unsubscribe" value="One-Click">
<button type="submit">Stop these messages</button></form>"""
_DONE = "<p>Messages about <b>{event}</b> will no longer come to you by <b>{channel}</b>.</p>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a link refuses."""

    person: str  # the contact id as text
    event: str
    channel: str


class UnsubscribeLinks:
    """Makes links, and reads the ones that it made."""

    def __init__(self, *, key: bytes, public_url: str | None) -> None:
        self._key = key
        self._public_url = public_url.rstrip("/") if public_url else None

    def url_for(self, person: str, event: str, channel: str) -> str | None:
        """The link; None when the system has no address that people's mail programs can reach (`public_url`), and when
        the link would be longer than notify.v1 takes: the message leaves without one.
        """
        if self._public_url is None:
            return None
        url = f"{self._public_url}{PATH}{self.token(Subscription(person=person, event=event, channel=channel))}"
        return url if len(url) <= LONGEST_URL else None

    def token(self, subscription: Subscription) -> str:
        named = [subscription.person, subscription.event, subscription.channel]
        content = json.dumps(named, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        return f"{_encoded(content)}.{_encoded(self._signature(content))}"

    def read(self, token: str) -> Subscription | None:
        """What the token stands for; None when we did not sign it."""
        if len(token) > LONGEST_TOKEN or not token.isascii():
            return None
        content, _, signature = token.partition(".")
        try:
            body, given = _decoded(content), _decoded(signature)
        except ValueError:
            return None
        # The signature is compared before anything is parsed, in a time that does not tell how much of it is right.
        if not hmac.compare_digest(self._signature(body), given):
            return None
        person, event, channel = json.loads(body)
        return Subscription(person=person, event=event, channel=channel)

    def _signature(self, content: bytes) -> bytes:
        return hmac.new(self._key, b"unsubscribe.v1\0" + content, hashlib.sha256).digest()


def _encoded(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def load_key(path: Path) -> bytes:
    """The key of the data directory, made at the first start; for the system's own account alone."""
    with holding(path.with_suffix(".lock")):
        if not path.exists():
            draft = path.with_suffix(".new")
            draft.unlink(missing_ok=True)
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        if path.stat().st_mode & 0o077:
            raise ConfigurationError("readable by others", source=str(path), key="mode", remedy=f"chmod 600 {path}")
        key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        remedy = "restore it from a backup, or remove it: links in mail that was sent stop working"
        raise ConfigurationError(f"must hold {_KEY_BYTES} bytes", source=str(path), key="key", remedy=remedy)
    return key


class UnsubscribeDoor:
    """The HTTP side. It takes no bearer token: the signature in the address stands for it."""

    def __init__(
        self, *, links: UnsubscribeLinks, store: PreferenceStore, cache: PreferenceCache, clock: Clock
    ) -> None:
        self._links = links
        self._store = store
        self._cache = cache
        self._clock = clock
        # By person: who floods the door with a link, or with none of ours, keeps no other person from unsubscribing.
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._wrong = full(capacity=WRONG_BURST, refill_per_second=WRONG_PER_SECOND, now=clock.now())

    def routes(self) -> list[BaseRoute]:
        return [Route(f"{PATH}{{token}}", self.answer, methods=["GET", "POST"])]

    async def answer(self, request: Request) -> Response:
        subscription = self._links.read(request.path_params["token"])
        if subscription is None:
            self._wrong = self._taken(self._wrong)
            raise HTTPException(404)
        self._count(subscription.person)
        if request.method != "POST":
            return _page(_ASKED, subscription)
        if not await _is_one_click(request):
            raise HTTPException(400)
        try:
            await self._refuse(subscription)
        except ClassifiedError as error:
            log.warning("a link could not unsubscribe", error_class=error.error_class)
            raise HTTPException(503 if error.retryable else 409) from error
        return _page(_DONE, subscription)

    async def _refuse(self, subscription: Subscription) -> None:
        """Store the refusal, unless it is stored: a repeat costs no write and leaves no line in the history."""
        person, event, channel = subscription.person, subscription.event, subscription.channel
        text = (await self._cache.documents([person]))[person]
        # The event's own cell: a refusal of all events may end one day, and this one stays.
        if read_preferences(text).matrix.get(event, {}).get(channel) is False:
            return
        await self._store.set_matrix_cell(person, event, channel, False, by=ChangedBy(name=BY_LINK))
        log.info("a person unsubscribed by a link", channel=channel)

    def _count(self, person: str) -> None:
        known = self._buckets.pop(person, None)
        self._buckets[person] = known or full(capacity=BURST, refill_per_second=PER_SECOND, now=self._clock.now())
        if len(self._buckets) > MOST_COUNTED:
            self._buckets.popitem(last=False)
        self._buckets[person] = self._taken(self._buckets[person])

    def _taken(self, bucket: Bucket) -> Bucket:
        """The bucket with one request less; 429 when it is empty."""
        taken = take(bucket, 1.0, self._clock.now())
        if isinstance(taken, Refused):
            raise HTTPException(429, headers={"Retry-After": "1"})
        return taken.bucket


async def _is_one_click(request: Request) -> bool:
    """An empty body, or a form with List-Unsubscribe=One-Click; RFC 8058 allows both encodings of a form."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > LONGEST_BODY:
                raise HTTPException(413)
    except ClientDisconnect:  # no client reads this answer
        raise HTTPException(400) from None
    return not body.strip() or all(word in body for word in _ONE_CLICK)


def _page(content: str, subscription: Subscription) -> HTMLResponse:
    event, channel = html.escape(subscription.event), html.escape(subscription.channel)
    return HTMLResponse(_PAGE.format(content=content.format(event=event, channel=channel)), headers=_HEADERS)
