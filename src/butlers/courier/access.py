"""Who may use the gateway: tokens with scopes, the loopback without any, and no page of another site."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from butlers.clock import Clock
from butlers.courier.config import CourierConfig, Scope
from butlers.courier.errors import CourierError, Forbidden, Unauthorized
from butlers.courier.service import Rate
from butlers.serving.guard import LOOPBACK, foreign_page, other_origin

SUBPROTOCOL = "courier.v1"
_BEARER = "bearer."  # of a subprotocol: a page's WebSocket cannot set headers


@dataclass(frozen=True, slots=True)
class Principal:
    name: str
    scopes: tuple[Scope, ...] | None = None  # None: everything
    rate: Rate | None = None

    def check(self, kind: str, name: str, right: str) -> None:
        if self.scopes is not None and not any(scope.allows(kind, name, right) for scope in self.scopes):
            raise Forbidden(f"the token has no scope {kind}:{name}:{right}")

    def spend(self) -> None:
        if self.rate is not None:
            self.rate.spend("this token")


Identify = Callable[[str], Principal | None]  # whom a bearer token belongs to


@dataclass(slots=True)
class Access:
    config: CourierConfig
    clock: Clock
    identify: Identify | None = None  # instead of the tokens of the configuration
    _rates: dict[str, Rate] = field(default_factory=dict)  # by token: all of its connections share one

    def principal_of(self, connection: HTTPConnection) -> Principal:
        """Raises `Unauthorized` or `Forbidden`."""
        self._refuse_pages(connection)
        if self.identify is None and not self.config.auth.tokens:
            peer = connection.client.host if connection.client else ""
            if peer not in LOOPBACK:
                raise Unauthorized("only callers on this machine need no token, and auth.tokens has none")
            return Principal("local")
        secret = _secret(connection)
        if secret is None:
            raise Unauthorized("a bearer token is required")
        principal = self._configured(secret) if self.identify is None else self.identify(secret)
        if principal is None:
            raise Unauthorized("the token is unknown")
        return principal

    def _configured(self, secret: str) -> Principal | None:
        token, rate = self.config.auth.find(secret), None
        if token is None:
            return None
        if token.messages_per_minute is not None:
            rate = self._rates.setdefault(token.token, Rate(token.messages_per_minute, self.clock))
        return Principal(token.name or "token", token.parsed(), rate)

    def admits(self, connection: HTTPConnection) -> bool:
        """Whether the connection would still be let in."""
        try:
            self.principal_of(connection)
        except CourierError:
            return False
        return True

    def _refuse_pages(self, connection: HTTPConnection) -> None:
        """A page of another site must not use the visitor's browser as its way in, with or without a token."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in connection.scope["headers"]:
            headers.setdefault(name, []).append(value)
        origins = {origin.decode("latin-1") for origin in headers.get(b"origin", [])}
        if origins and origins <= set(self.config.gateway.origins):
            return
        loopback = self.config.gateway.host in LOOPBACK
        if (foreign_page(headers) if loopback else other_origin(headers)) is not None:
            raise Forbidden("requests from pages of other sites are not served; gateway.origins may name some")


def _secret(connection: HTTPConnection) -> str | None:
    kind, _, secret = connection.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and secret.strip():
        return secret.strip()
    offered = [one.strip() for one in connection.headers.get("sec-websocket-protocol", "").split(",")]
    return next((one.removeprefix(_BEARER) for one in offered if one.startswith(_BEARER)), None)
