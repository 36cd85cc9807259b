"""Google Calendar API v3, one calendar.

A call is tried again when that may help, as long as the wait is short; a longer one is the caller's to take
(`retry_after_seconds`). No call notifies anybody: invitations are messages, and messages leave through Messenger.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import httpx2

from butlers.butler.calendar.events import CHANGE, REQUESTED, Event, Slot, fingerprint, is_cancelled, mark_of, marked
from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.errors import ClassifiedError, TargetUnavailable, TimeoutExceeded, ValidationError
from butlers.http_client import BoundedAsyncClient, authorities
from butlers.http_client import reason as why
from butlers.reliability.retry import GiveUp, RetryPolicy, next_retry
from butlers.serving.server import is_loopback

_RATE = frozenset({"rateLimitExceeded", "userRateLimitExceeded"})
_QUOTA = frozenset({"quotaExceeded", "dailyLimitExceeded"})
_QUOTA_WAIT_S = 3600.0
_EARLY_S = 60.0
_USUAL_LIFE_S = 3600.0
CALENDAR_RETRY = RetryPolicy(max_attempts=3, initial_delay=0.5, max_delay=5.0, jitter=0.3)
PATIENCE_S = 10.0  # the longest wait between two attempts
PAGE_SIZE = 250
MOST_PAGES = 20
_SILENT = {"sendUpdates": "none"}


def json_of(response: httpx2.Response) -> dict[str, Any]:
    """The body, or nothing when it is not a JSON object."""
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def unanswered(error: httpx2.HTTPError, timeout_s: float) -> ClassifiedError:
    if isinstance(error, httpx2.TimeoutException):
        return TimeoutExceeded(f"Google Calendar gave no answer within {timeout_s:g} s")
    return TargetUnavailable(f"Google Calendar is unreachable ({why(error)})")


def described(response: httpx2.Response, *, of_event: bool = True) -> ClassifiedError:
    status, (reason, text) = response.status_code, _reason(response)
    match status:
        case 400:
            return ValidationError(f"Google Calendar refused the request: {text}")
        case 401:
            return TargetUnavailable("Google Calendar refuses the access token", retryable=False)
        case 403 if reason not in _RATE:
            return _forbidden(reason)
        case 403 | 429:
            return TargetUnavailable("Google Calendar asks to wait", retry_after=_retry_after(response))
        case 404 | 410:
            return _unknown(of_event)
        case 412:
            return invalid("etag", "the event has been changed meanwhile; read it again")
    return TargetUnavailable(f"Google Calendar failed: HTTP {status}", retry_after=_retry_after(response))


def _forbidden(reason: str) -> ClassifiedError:
    if reason in _QUOTA:
        return TargetUnavailable(f"the calendar's quota is used up: {reason}", retry_after=_QUOTA_WAIT_S)
    return TargetUnavailable(f"Google Calendar forbids this: {reason or 'no reason'}", retryable=False)


def _unknown(of_event: bool) -> ClassifiedError:
    if of_event:
        return invalid("event_id", "no such event in this calendar")
    return TargetUnavailable("there is no such calendar", retryable=False)


def _reason(response: httpx2.Response) -> tuple[str, str]:
    """(machine-readable reason, text) of an error body, empty where there is none."""
    error = json_of(response).get("error")
    if not isinstance(error, dict):
        return "", ""
    listed = error.get("errors")
    first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
    return str(first.get("reason", ""))[:100], str(error.get("message", ""))[:200]


def _retry_after(response: httpx2.Response) -> float | None:
    """Only seconds: Google sends no dates."""
    given = response.headers.get("retry-after", "")
    return float(given) if given.isascii() and given.isdigit() and len(given) < 9 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    client_id: str = field(repr=False)
    client_secret: str = field(repr=False)
    refresh_token: str = field(repr=False)


class AccessTokens:
    def __init__(
        self, *, http: httpx2.AsyncClient, url: str, credentials: Credentials, clock: Clock, timeout_s: float
    ) -> None:
        self._http = http
        self._url = url
        self._credentials = credentials
        self._clock = clock
        self._timeout_s = timeout_s
        self._token: str | None = None
        self._good_until = 0.0  # on the monotonic clock
        self._lock = asyncio.Lock()

    async def get(self) -> str:
        """A token that is good for at least a minute; callers at the same time share one refresh."""
        async with self._lock:
            if self._token is None or self._clock.monotonic() >= self._good_until:
                self._token, life = await self._refresh()
                self._good_until = self._clock.monotonic() + life - min(_EARLY_S, life / 2)
            return self._token

    def reject(self, token: str) -> None:
        """The provider did not take it; a newer one that somebody else has fetched meanwhile stays."""
        if self._token == token:
            self._token = None

    async def _refresh(self) -> tuple[str, float]:
        form = {
            "grant_type": "refresh_token",
            "client_id": self._credentials.client_id,
            "client_secret": self._credentials.client_secret,
            "refresh_token": self._credentials.refresh_token,
        }
        try:
            response = await self._http.post(self._url, data=form, timeout=self._timeout_s)
        except httpx2.HTTPError as error:
            raise unanswered(error, self._timeout_s) from error
        answer = json_of(response)
        token, life = answer.get("access_token"), answer.get("expires_in")
        if response.status_code != 200 or not isinstance(token, str) or not token:
            raise _refusal(response, str(answer.get("error", ""))[:100])
        return token, float(life) if isinstance(life, int | float) and life > 0 else _USUAL_LIFE_S


def _refusal(response: httpx2.Response, reason: str) -> ClassifiedError:
    if response.status_code in (400, 401, 403):
        return TargetUnavailable(
            f"Google refuses the calendar's credentials ({reason or 'no reason'})", retryable=False
        )
    return described(response)


_EXISTS, _GONE, _CHANGED = 409, 410, 412


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    events: list[Event]
    next_page_token: str | None


class GoogleCalendar:
    def __init__(
        self,
        *,
        credentials: Credentials,
        clock: Clock,
        base_url: str,
        token_url: str,
        calendar_id: str = "primary",
        timeout_s: float = 10.0,
        retry: RetryPolicy = CALENDAR_RETRY,
    ) -> None:
        trusting = not is_loopback(base_url)
        self._http = BoundedAsyncClient(timeout=timeout_s, verify=authorities(trust_env=trusting), trust_env=trusting)
        self._tokens = AccessTokens(
            http=self._http, url=token_url, credentials=credentials, clock=clock, timeout_s=timeout_s
        )
        self._base_url = base_url.rstrip("/")
        self._calendar_id = calendar_id
        self._calendar = f"/calendars/{quote(calendar_id, safe='')}"
        self._timeout_s = timeout_s
        self._retry = retry
        self._clock = clock
        self._zone: ZoneInfo | None = None

    async def time_zone(self) -> ZoneInfo:
        """The calendar's own; asked once."""
        if self._zone is None:
            name = json_of(await self._call("GET", self._calendar)).get("timeZone")
            try:
                self._zone = ZoneInfo(str(name))
            except (ZoneInfoNotFoundError, ValueError):
                raise TargetUnavailable("the calendar's time zone is not known here", retryable=False) from None
        return self._zone

    async def list_events(
        self, window: Slot, *, limit: int = PAGE_SIZE, page_token: str | None = None, query: str | None = None
    ) -> Page:
        """What happens within a window, repeated events one by one, in order of their start."""
        params = _bounds(window) | {"singleEvents": "true", "orderBy": "startTime", "maxResults": str(limit)}
        params |= {"pageToken": page_token} if page_token else {}
        params |= {"q": query} if query else {}
        answer = json_of(await self._call("GET", f"{self._calendar}/events", params=params))
        return Page(events=answer.get("items", []), next_page_token=answer.get("nextPageToken"))

    async def all_events(self, window: Slot) -> list[Event]:
        """The same without pages. Half of them would make a taken time look free, so too many is an error."""
        events: list[Event] = []
        page_token: str | None = None
        for _ in range(MOST_PAGES):
            page = await self.list_events(window, page_token=page_token)
            events += page.events
            page_token = page.next_page_token
            if page_token is None:
                return events
        raise invalid("start", f"more than {MOST_PAGES * PAGE_SIZE} events lie around this time")

    async def get(self, event_id: str) -> Event:
        return json_of(await self._call("GET", self._event(event_id)))

    async def find(self, event_id: str) -> Event | None:
        response = await self._call("GET", self._event(event_id), also=(404, _GONE))
        return json_of(response) if response.status_code == 200 else None

    async def insert(self, event_id: str, body: Event) -> tuple[Event, bool]:
        """The event, and whether it is new: an id that exists already is the same wish, come again."""
        event = marked(body | {"id": event_id}, REQUESTED, fingerprint(body))
        path = f"{self._calendar}/events"
        response = await self._call("POST", path, params=_SILENT, json=event, also=(_EXISTS,))
        if response.status_code != _EXISTS:
            return json_of(response), True
        return same_request(await self.get(event_id), body), False

    async def patch(self, event_id: str, changes: Event, *, etag: str) -> Event:
        """Change an event unless somebody else has since `etag`; what we changed ourselves, unanswered, is done."""
        mark = fingerprint(event_id, etag, changes)
        response = await self._call(
            "PATCH",
            self._event(event_id),
            params=_SILENT,
            json=marked(changes, CHANGE, mark),
            headers={"If-Match": etag},
            also=(_CHANGED,),
        )
        if response.status_code != _CHANGED:
            return json_of(response)
        present = await self.get(event_id)
        if mark_of(present, CHANGE) != mark:
            raise described(response)
        return present

    async def delete(self, event_id: str, *, etag: str | None = None) -> None:
        """Gone afterwards; what is gone already is no mistake."""
        headers = {"If-Match": etag} if etag else {}
        also = (_GONE, _CHANGED)
        response = await self._call("DELETE", self._event(event_id), params=_SILENT, headers=headers, also=also)
        if response.status_code == _CHANGED and not is_cancelled(await self.get(event_id)):
            raise described(response)

    async def free_busy(self, window: Slot) -> list[Slot]:
        body = _bounds(window) | {"items": [{"id": self._calendar_id}]}
        answer = json_of(await self._call("POST", "/freeBusy", json=body))
        found = answer.get("calendars", {}).get(self._calendar_id, {})
        if "busy" not in found or found.get("errors"):
            raise TargetUnavailable("Google Calendar does not tell when this calendar is busy", retryable=False)
        return [Slot(_instant(busy["start"]), _instant(busy["end"])) for busy in found["busy"]]

    async def close(self) -> None:
        await self._http.aclose()

    def _event(self, event_id: str) -> str:
        return f"{self._calendar}/events/{quote(event_id, safe='')}"

    async def _call(self, verb: str, path: str, *, also: tuple[int, ...] = (), **request: Any) -> httpx2.Response:
        """A good answer, or one of the statuses in `also`; everything else is raised once retries are used up."""
        attempt = 1
        while True:
            try:
                response = await self._authorised(verb, path, request)
                if response.status_code in (204, *also) or (response.is_success and json_of(response)):
                    return response
                raise described(response, of_event="/events/" in path)
            except ClassifiedError as error:
                await self._pause(error, attempt)
                attempt += 1

    async def _pause(self, error: ClassifiedError, attempt: int) -> None:
        """Wait for the next attempt, or raise what ended the last one."""
        decision = next_retry(
            self._retry,
            attempt=attempt,
            retryable=error.retryable,
            retry_after=error.retry_after,
            random=random.random(),  # noqa: S311 - jitter, not a secret
        )
        if isinstance(decision, GiveUp) or decision.delay > PATIENCE_S:
            raise error
        await self._clock.sleep(decision.delay)

    async def _authorised(self, verb: str, path: str, request: Mapping[str, Any]) -> httpx2.Response:
        """One attempt; a token that is not taken is replaced once."""
        token = await self._tokens.get()
        response = await self._send(verb, path, token, request)
        if response.status_code != 401:
            return response
        self._tokens.reject(token)
        return await self._send(verb, path, await self._tokens.get(), request)

    async def _send(self, verb: str, path: str, token: str, request: Mapping[str, Any]) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {token}"} | request.get("headers", {})
        try:
            return await self._http.request(verb, self._base_url + path, **(dict(request) | {"headers": headers}))
        except httpx2.HTTPError as error:
            raise unanswered(error, self._timeout_s) from error


def same_request(event: Event, body: Event) -> Event:
    """The event that an earlier call made, provided that it asked for the same."""
    if mark_of(event, REQUESTED) != fingerprint(body):
        raise invalid("idempotency_key", "was used for another event")
    if is_cancelled(event):
        raise invalid("idempotency_key", "was used for an event that has been deleted since")
    return event


def _bounds(window: Slot) -> dict[str, Any]:
    return {"timeMin": window.start.isoformat(), "timeMax": window.end.isoformat()}


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)
