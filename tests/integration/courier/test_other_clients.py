"""Clients of other makers: a browser's WebSocket and that of Node. Each is left out where the machine has none."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.integration.courier.gateway import DEADLINE_S, INBOX, RunningGateway, envelope, gateway

TOKENS = """
auth:
  tokens:
    - {token: "jen-secret", scopes: ["streams:agents/jen/*:subscribe", "streams:*:enqueue"]}
"""
BEARER = {"authorization": "Bearer jen-secret"}
MESSAGES = 20
BROWSER_STARTS_S = 60.0
# Subscribes with the subprotocol, takes what comes with a credit of 3, acks each, and reports the ids.
SUBSCRIBE = """
const socket = new WebSocket("ws://%(host)s/v1/subscribe?stream=agents/jen/inbox", ["courier.v1", "bearer.%(token)s"]);
const ids = [];
let open = false;
socket.onopen = () => { open = true; socket.send(JSON.stringify({credit: 3})); };
socket.onerror = () => { if (!open) report("refused"); };
socket.onmessage = (event) => {
  const frame = JSON.parse(event.data);
  ids.push(frame.deliver.id);
  socket.send(JSON.stringify({ack: frame.deliver.id, lease: frame.lease, credit: 1}));
  if (ids.length === %(count)d) report(socket.protocol + " " + ids.join(","));
};
"""
EXPECTED = "courier.v1 " + ",".join(f"m{number}" for number in range(MESSAGES))


def script(running: RunningGateway, token: str = "jen-secret") -> str:
    return SUBSCRIBE % {"host": running.host, "token": token, "count": MESSAGES}


async def send_all(running: RunningGateway) -> None:
    messages = [{"envelope": envelope(f"m{number}")} for number in range(MESSAGES)]
    response = await running.http.post("/v1/enqueue", json={"messages": messages}, headers=BEARER)
    assert response.status_code == 200


async def all_are_acked(running: RunningGateway) -> None:
    await running.until(lambda: running.core.stats(INBOX)["counts"]["acked"] == MESSAGES)


@asynccontextmanager
async def process(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process with its children, ended with the block."""
    started = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        await started.wait()


# --- Node ------------------------------------------------------------------------------------------------------------


def node() -> list[str]:
    """Node with a global WebSocket: from 22 on, in 20 and 21 by a flag."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("there is no node")
    for words in ([found], [found, "--experimental-websocket"]):
        probe = subprocess.run([*words, "-p", "typeof WebSocket"], capture_output=True, text=True, check=False)
        if probe.stdout.strip() == "function":
            return words
    pytest.skip("this node has no WebSocket")


@pytest.mark.parametrize(
    ("token", "expected"), [("jen-secret", EXPECTED), ("guessed-one", "refused")], ids=["known", "unknown"]
)
async def test_a_client_of_node_subscribes_and_acks(token: str, expected: str):
    words = node()
    async with gateway(TOKENS) as running:
        await send_all(running)
        report = "const report = (text) => { console.log(text); socket.close(); };"
        async with process(*words, "-e", script(running, token) + report) as client, asyncio.timeout(DEADLINE_S):
            assert client.stdout is not None
            assert (await client.stdout.readline()).decode().strip() == expected
            if expected != "refused":
                await all_are_acked(running)


# --- a browser -------------------------------------------------------------------------------------------------------


class Pages:
    """A web server with one page, to which the page reports."""

    def __init__(self, page: str) -> None:
        self._page = page
        self.reports: asyncio.Queue[str] = asyncio.Queue()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        if method == "POST" and path == "/report":
            length = int(head.lower().partition("content-length:")[2].split()[0])
            self.reports.put_nowait((await reader.readexactly(length)).decode())
        body = self._page if path == "/" else ""
        writer.write(
            f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        await writer.drain()
        writer.close()


def browser() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("there is no chromium")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("site", "expected"), [("127.0.0.1", EXPECTED), ("evil.example", "refused")], ids=["own", "other"]
)
async def test_a_page_subscribes_with_its_token_and_one_of_another_site_is_refused(
    site: str, expected: str, tmp_path: Path
):
    found = browser()
    async with gateway(TOKENS) as running:
        await send_all(running)
        report = 'const report = (text) => fetch("/report", {method: "POST", body: text});'
        pages = Pages(f"<!doctype html><script>{report}{script(running)}</script>")
        server = await asyncio.start_server(pages.answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            options = (
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                f"--user-data-dir={tmp_path}",
                "--host-resolver-rules=MAP evil.example 127.0.0.1",
            )
            async with process(found, *options, f"http://{site}:{port}/"), asyncio.timeout(BROWSER_STARTS_S):
                assert await pages.reports.get() == expected
                if expected != "refused":
                    await all_are_acked(running)
        if expected == "refused":
            assert running.core.stats(INBOX)["counts"]["delivered"] == 0
