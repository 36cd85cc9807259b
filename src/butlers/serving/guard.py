"""What no door answers, whatever stands behind it: pages of other sites, and NUL.

A web page can make its visitor's browser ask ports of the visitor's machine. It cannot choose the Host, it cannot leave
out the Origin of a request that changes something, and without our consent it can only send the three kinds of body
that forms send. While we listen on loopback, therefore:

    Host        ours, or 403: a name of somebody else's may have been pointed at 127.0.0.1 (DNS rebinding)
    Origin      ours or none, or 403
    body        where `json_bodies` says so, of a kind that no form can send, or 415; of no kind only without an Origin
    account     where `own_account` says so, that of this process or root's, or 403

NUL cannot be stored in PostgreSQL's text, so no path and no query may hold it (422); bodies are checked by whoever
reads them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from butlers.errors import FieldError, ValidationError
from butlers.serving.peer_account import is_own_account

NUL = "must not contain NUL characters, which cannot be stored"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_FORM_TYPES = frozenset({"text/plain", "application/x-www-form-urlencoded", "multipart/form-data"})
_READS = frozenset({"GET", "HEAD", "OPTIONS"})

Headers = Mapping[bytes, list[bytes]]  # names in small letters


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    status: int
    field: str
    problem: str

    def body(self) -> bytes:
        error = ValidationError(
            f"{self.field} {self.problem}", fields=(FieldError(field=self.field, error=self.problem),)
        )
        return json.dumps({"error": error.describe()}).encode()


class Guard:
    """Stands before an ASGI application. `exempt` paths have a check of their own."""

    def __init__(
        self,
        app: Any,
        *,
        loopback_only: bool = True,
        exempt: Collection[str] = (),  # beginnings of paths
        name_parts: Collection[str] = (),  # the same; there whoever answers says which part of a path holds NUL
        own_host: Callable[[str], bool] = lambda _path: True,  # by path: whether the Host must be ours
        json_bodies: Callable[[str], bool] = lambda _path: False,  # by path
        own_account: Callable[[str], bool] = lambda _path: False,  # by path: whether the caller must be in our account
    ) -> None:
        self._app = app
        self._loopback_only = loopback_only
        self._exempt, self._name_parts = tuple(exempt), tuple(name_parts)
        self._own_host, self._json_bodies, self._own_account = own_host, json_bodies, own_account

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        refusal = self._check(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        body = refusal.body()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _check(self, scope: Any) -> Refusal | None:
        path: str = scope["path"]
        query: bytes = scope["query_string"]
        if b"%00" in query or b"\x00" in query or ("\x00" in path and not path.startswith(self._name_parts)):
            return Refusal(status=422, field=_with_nul(query) or "path", problem=NUL)
        if path.startswith(self._exempt):
            return None
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value)
        if not self._own_host(path):
            headers.pop(b"host", None)
        if self._own_account(path) and not is_own_account(scope):
            return Refusal(status=403, field="account", problem="may not do this: only the system's own account may")
        foreign = foreign_page(headers) if self._loopback_only else None
        if foreign is None and self._json_bodies(path):
            return other_origin(headers) or form_of_a_page(scope["method"], headers)
        return foreign


def _with_nul(query: bytes) -> str:
    """The name of the parameter that holds NUL."""
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    return next((name.replace("\x00", "")[:64] for name, value in pairs if "\x00" in name + value), "")


def foreign_page(headers: Headers) -> Refusal | None:
    """Whether a page of another site is behind a request to this machine."""
    hosts, origins = headers.get(b"host", []), headers.get(b"origin", [])
    hosts_ours = not hosts or (len(hosts) == 1 and _hostname(b"//" + hosts[0]) in LOOPBACK)  # no browser leaves it out
    origins_ours = all(_hostname(origin) in LOOPBACK for origin in origins)
    across = b"cross-site" in headers.get(b"sec-fetch-site", [])
    if hosts_ours and origins_ours and not across:
        return None
    return Refusal(status=403, field="host", problem="requests from other sites are not served")


def other_origin(headers: Headers) -> Refusal | None:
    """Whether a page of another site is behind a request, under whatever name we are asked for."""
    own = {_hostname(b"//" + host) for host in headers.get(b"host", [])}
    if all(_hostname(origin) in own for origin in headers.get(b"origin", [])):
        return None
    return Refusal(status=403, field="origin", problem="requests from other sites are not served")


def form_of_a_page(method: str, headers: Headers) -> Refusal | None:
    """Whether any page could have sent this without being allowed to: then it is not served."""
    if method in _READS:
        return None
    kind = b"".join(headers.get(b"content-type", [])).decode("latin-1").partition(";")[0].strip().lower()
    if kind in _FORM_TYPES:
        return Refusal(status=415, field="content-type", problem="must be application/json")
    if not kind and b"origin" in headers:  # a page may leave the kind away; its browser does not leave out the Origin
        return Refusal(status=403, field="origin", problem="must not be there: any page could send such a request")
    return None


def _hostname(address: bytes) -> str | None:
    try:
        return urlsplit(address.decode("ascii")).hostname
    except ValueError:  # half a bracket, or letters that no host has
        return None
