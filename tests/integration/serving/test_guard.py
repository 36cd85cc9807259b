"""A web page cannot make its visitor's browser move a simulated world, nor read or use a butler's doors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from butlers.channels.email.simulator import serve_mail
from butlers.channels.telegram.simulator import DEFAULT_TOKEN, serve_telegram
from butlers.channels.webhook.simulator import serve_webhook
from butlers.clock import SystemClock
from butlers.serving.guard import foreign_page, form_of_a_page, other_origin
from butlers.simulators.calendar import serve_calendar

HOST = "127.0.0.1"
ADDRESS = "butler@home.example"
FAULTS = {
    "telegram": ("/control/faults", {"method": "sendMessage", "kind": "refused", "status": 403}),
    "mail": ("/control/mail/faults", {"server": "smtp", "phase": "dot", "kind": "reply"}),
    "calendar": ("/control/calendar/faults", {"method": "token", "kind": "server_error", "status": 503}),
    "webhook": ("/control/faults", {"kind": "answer", "status": 500}),
}
FOREIGN = (
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1.evil.example"},
    {"Host": "evil.example"},
    {"Host": "evil.example:40181"},
    {"Host": "127.0.0.1@evil.example"},
    {"Host": "["},
    {"Sec-Fetch-Site": "cross-site"},
)
SIMPLE = (
    "text/plain",
    "text/plain; charset=utf-8",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
)


@dataclass
class Simulators:
    clients: dict[str, httpx2.AsyncClient]

    async def faults(self, name: str) -> list[Any]:
        listed: list[Any] = (await self.clients[name].get(FAULTS[name][0])).json()["faults"]
        return listed


@pytest.fixture
async def simulators() -> AsyncIterator[Simulators]:
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        telegram = await stack.enter_async_context(serve_telegram(HOST, 0, clock=clock))
        mail = await stack.enter_async_context(serve_mail(HOST, 0, 0, 0, clock=clock, accounts={ADDRESS: "p"}))
        calendar = await stack.enter_async_context(serve_calendar(HOST, 0, clock=clock))
        webhook = await stack.enter_async_context(serve_webhook(HOST, 0, clock=clock))
        ports = {
            "telegram": telegram.port,
            "mail": mail.control_port,
            "calendar": calendar.port,
            "webhook": webhook.port,
        }
        clients = {
            name: await stack.enter_async_context(
                httpx2.AsyncClient(base_url=f"http://{HOST}:{port}", trust_env=False, timeout=30)
            )
            for name, port in ports.items()
        }
        yield Simulators(clients)


@pytest.mark.parametrize("name", FAULTS)
async def test_no_page_changes_a_simulator(simulators: Simulators, name: str) -> None:
    client, (path, fault) = simulators.clients[name], FAULTS[name]
    for headers in FOREIGN:
        refused = await client.post(path, json=fault, headers=headers)
        assert (refused.status_code, refused.json()["error"]["class"]) == (403, "validation_error"), headers
        assert (await client.delete(path, headers=headers)).status_code == 403
        assert (await client.get(path, headers=headers)).status_code == 403
    for kind in SIMPLE:
        refused = await client.post(path, content=b'{"kind": "refused"}', headers={"Content-Type": kind})
        assert refused.status_code == 415, kind
    ours = {"Origin": f"http://{HOST}:1"}
    assert (await client.post(path, content=b"", headers=ours)).status_code == 403  # any page could send it
    assert (await client.delete(path, headers=ours)).status_code == 403
    assert await simulators.faults(name) == []
    assert (await client.post(path, json=fault)).status_code in (200, 201)
    assert len(await simulators.faults(name)) == 1
    assert (await client.delete(path)).status_code in (200, 204)
    assert await simulators.faults(name) == []


async def test_a_page_cannot_speak_for_the_simulated_bot_and_forms_of_clients_still_work(
    simulators: Simulators,
) -> None:
    client, path = simulators.clients["telegram"], f"/bot{DEFAULT_TOKEN}/sendMessage"
    for headers in FOREIGN:
        if "Host" not in headers:  # a provider's imitation may be asked for by any name
            assert (await client.post(path, data={"chat_id": "5", "text": "x"}, headers=headers)).status_code == 403
    assert (await client.get("/control/chats")).json() == {"chats": []}
    assert (await client.post(path, data={"chat_id": "5", "text": "x"})).status_code == 200


async def test_nul_in_a_path_or_a_query_is_422(simulators: Simulators) -> None:
    for name, client in simulators.clients.items():
        for path in ("/control/%00", "/control/faults?x=%00", "/nowhere/%00"):
            assert (await client.get(path)).status_code == 422, (name, path)


def test_other_machines_are_asked_for_their_own_names_only() -> None:
    """Beyond loopback the Host may be anything, and a page must be one of the same host."""
    assert other_origin({b"host": [b"lab.example:40181"], b"origin": [b"http://lab.example:40181"]}) is None
    assert other_origin({b"host": [b"lab.example:40181"]}) is None
    assert other_origin({b"host": [b"lab.example"], b"origin": [b"http://evil.example"]}) is not None


@pytest.mark.parametrize(
    "headers",
    [
        {b"host": [b"localhost", b"evil.example"]},
        {b"origin": [b"http://evil.example"]},
        {b"host": [b"localhost"], b"origin": [b"http://localhost", b"http://evil.example"]},
        {b"host": [b"\xe4vil"]},
        {b"host": [b"localhost:x@evil.example"]},
    ],
)
def test_whatever_is_not_certainly_ours_is_foreign(headers: dict[bytes, list[bytes]]) -> None:
    assert foreign_page(headers) is not None


@pytest.mark.parametrize("host", [b"localhost", b"127.0.0.1:40100", b"[::1]:40100", b"LOCALHOST:1"])
def test_our_own_names_are_ours(host: bytes) -> None:
    assert foreign_page({b"host": [host]}) is None
    assert form_of_a_page("POST", {b"host": [host], b"content-type": [b"application/json; charset=utf-8"]}) is None
