"""Access tokens from a refresh token (RFC 6749, section 6): kept in memory, renewed a minute before they expire."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import httpx2

from butlers.butler.calendar.answers import described, json_of, unanswered
from butlers.clock import Clock
from butlers.errors import ClassifiedError, TargetUnavailable

_EARLY_S = 60.0
_USUAL_LIFE_S = 3600.0


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
