"""Which addresses may be called: a subscriber must not reach through us what only this machine can reach.

A name is resolved once, where the connection is made, and the connection goes to the addresses that were checked. A
name whose answer changes between a check and a connection (DNS rebinding) gains nothing. Every spelling of an address
(decimal, octal, IPv4 within IPv6) is checked as the address that the operating system would connect to.

    always refused       unspecified, multicast, link-local, reserved, and the metadata services of clouds
    by the setting       loopback, private and shared networks, and all else that is not on the public internet
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpcore2
import httpx2

from butlers.contracts.envelope import invalid

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]  # host and port -> addresses, most wanted first
LONGEST_URL = 2_048  # characters
MOST_CONNECTIONS = 400  # at one time, to all endpoints
_KEEP_ALIVE_S = 15.0
_MOST_TRIED = 4  # addresses of one name
_RESOLVER_THREADS = 16  # of their own: a name server that is slow on purpose must not stop the rest of the process
_CARRIERS = {  # networks of IPv6 whose addresses carry one of IPv4, and how many bits stand behind it
    ipaddress.IPv6Network("::/96"): 0,
    ipaddress.IPv6Network("64:ff9b::/96"): 0,
    ipaddress.IPv6Network("2002::/16"): 80,
}
# Reserved, site-local, and the metadata services of clouds that are not link-local.
_NEVER = ("240.0.0.0/4", "fec0::/10", "100.100.100.200/32", "168.63.129.16/32", "fd00:ec2::254/128")
_NOT_PUBLIC = (
    "64:ff9b:1::/48",
    "2001:db8::/32",
    "3fff::/20",
    "5f00::/16",
)  # that older Python versions take for public
_REFUSED, _PRIVATE = ([ipaddress.ip_network(text) for text in texts] for texts in (_NEVER, _NOT_PUBLIC))


class AddressRefused(Exception):
    """The host leads to a network that must not be called."""


def problem_with(text: str, *, private_allowed: bool) -> str | None:
    """Why this address must not be called; None: it may be."""
    address: Address = ipaddress.ip_address(text.partition("%")[0])
    meant = _carried(address) or (address,)
    if any(_is_never_called(one) for one in meant):
        return "leads to a link-local, multicast, reserved or metadata address, which is never called"
    if private_allowed or all(_is_public(one) for one in meant):
        return None
    return "leads to a private network; the setting webhook_private_networks refuses those"


def _is_never_called(address: Address) -> bool:
    special = address.is_link_local or address.is_multicast or address.is_unspecified
    return special or any(address in network for network in _REFUSED)


def _is_public(address: Address) -> bool:
    return address.is_global and not any(address in network for network in _PRIVATE)


def _carried(address: Address) -> tuple[Address, ...]:
    """The IPv4 addresses that an address of IPv6 stands for. `::` and `::1` stand for none."""
    if isinstance(address, ipaddress.IPv4Address) or int(address) <= 1:
        return ()
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address.teredo is not None:
        return address.teredo
    behind = next((bits for network, bits in _CARRIERS.items() if address in network), None)
    return () if behind is None else (ipaddress.IPv4Address((int(address) >> behind) & 0xFFFFFFFF),)


def check_url(text: str, *, private_allowed: bool) -> httpx2.URL:
    """The address of an endpoint as it will be called, or a `ValidationError` that says what is wrong with it."""
    if len(text) > LONGEST_URL:
        raise invalid("url", f"must be at most {LONGEST_URL} characters")
    if not all("!" <= character <= "~" and character not in '\\<>"{}^`|' for character in text):
        raise invalid("url", "must be printable ASCII without blanks; write an international name in its xn-- form")
    try:
        url = httpx2.URL(text)
    except (httpx2.InvalidURL, ValueError):
        raise invalid("url", "is not an address such as https://example.com/hooks") from None
    is_port = url.port is None or 0 < url.port < 65_536
    if url.scheme not in ("https", "http") or not url.host or not is_port:
        raise invalid("url", "is not an address such as https://example.com/hooks")
    if url.userinfo or url.fragment:
        raise invalid("url", "must hold neither credentials nor a fragment")
    _check_host(url, private_allowed=private_allowed)
    return url


def _check_host(url: httpx2.URL, *, private_allowed: bool) -> None:
    """What can be said of a host without asking a name server."""
    host = url.host.rstrip(".").lower()
    is_local = host == "localhost" or host.endswith(".localhost")
    try:
        literal: Address | None = ipaddress.ip_address(host)
    except ValueError:
        literal = None
    if literal is None and _ends_in_number(host):
        raise invalid("url", "must write an IP address in its usual form, such as 192.0.2.1")
    if literal is not None and (problem := problem_with(host, private_allowed=private_allowed)):
        raise invalid("url", problem)
    if is_local and not private_allowed:
        raise invalid("url", "leads to this machine; the setting webhook_private_networks refuses that")
    if url.scheme == "http" and not (private_allowed and (is_local or (literal is not None and literal.is_loopback))):
        raise invalid("url", "must begin with https://")


def _ends_in_number(host: str) -> bool:
    """Whether C libraries may read the name as an IPv4 address: 2130706433, 0177.1, 0x7f.0.0.1."""
    last = host.rpartition(".")[2]
    return last.isdigit() or (last.startswith("0x") and all(one in "0123456789abcdef" for one in last[2:]))


class SystemResolver:
    """The resolver of the operating system, in threads of its own."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_RESOLVER_THREADS, thread_name_prefix="webhook-resolver")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, _resolve, host, port)
        return [str(information[4][0]) for information in found]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _resolve(host: str, port: int) -> list[Any]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))


class AddressGuard:
    """Resolves names and refuses those that lead where nobody may call."""

    def __init__(self, *, resolve: Resolve, private_allowed: bool) -> None:
        self._resolve = resolve
        self.private_allowed = private_allowed

    async def addresses(self, host: str, port: int) -> list[str]:
        """The addresses of a host, all of them checked; raises `AddressRefused` if only one of them is refused, and
        `OSError` for a name without an address.
        """
        found = list(dict.fromkeys(await self._resolve(host, port)))
        if not found:
            raise OSError(f"{host} has no address")
        for address in found:
            if problem := problem_with(address, private_allowed=self.private_allowed):
                raise AddressRefused(f"the host {problem}")
        return found[:_MOST_TRIED]


class GuardedNetwork(httpcore2.AsyncNetworkBackend):
    """Connects to the checked addresses of a host and resolves no name a second time. TLS still checks the name."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  as the class above declares it
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            addresses = await self._guard.addresses(host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError("the name has no address") from error
        failure: httpcore2.ConnectError | httpcore2.ConnectTimeout | None = None
        for address in addresses:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure or httpcore2.ConnectError("the name has no address")

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


class GuardedTransport(httpx2.AsyncHTTPTransport):
    """httpx2's own transport over a `GuardedNetwork`, without proxies: a proxy would resolve the name itself."""

    def __init__(self, guard: AddressGuard, *, verify: ssl.SSLContext) -> None:
        super().__init__(verify=verify, trust_env=False)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=verify,
            max_connections=MOST_CONNECTIONS,
            max_keepalive_connections=MOST_CONNECTIONS // 4,
            keepalive_expiry=_KEEP_ALIVE_S,
            network_backend=GuardedNetwork(guard),
        )
