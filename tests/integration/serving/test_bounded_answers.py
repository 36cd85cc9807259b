"""A provider that answers with a bomb: a few hundred kilobytes of gzip that unfold to 300 MB.

Every client of ours stops at its limit, and says what it says of every answer that it cannot read.
"""

from __future__ import annotations

import asyncio
import functools
import json
import resource
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest

from butlers.butler.calendar.events import Slot
from butlers.butler.calendar.google import Credentials, GoogleCalendar
from butlers.butler.transport import McpTransport
from butlers.channels.adapter import Certainty, NotSent, Outgoing
from butlers.channels.plugins import ChannelSettings
from butlers.channels.telegram.adapter import TelegramChannel
from butlers.channels.telegram.connector import TelegramConnector
from butlers.channels.webhook.adapter import make_channel
from butlers.clock import ManualClock, SystemClock
from butlers.daemon.client import SystemClient
from butlers.daemon.places import Places
from butlers.daemon.settings import Settings
from butlers.errors import ClassifiedError, TargetUnavailable
from butlers.http_client import BoundedAsyncClient, BoundedClient, UnreadableAnswer
from butlers.reliability.retry import RetryPolicy
from tests.integration.channels.test_telegram_channel import Record

BOMB_BYTES = 300 * 2**20
ALLOWED_GROWTH_KB = 150 * 1024  # of this process; the bomb itself would be twice that
DEADLINE_S = 60


def packed(size: int = BOMB_BYTES, *, wbits: int = zlib.MAX_WBITS | 16) -> bytes:
    packer = zlib.compressobj(9, wbits=wbits)
    blank = b" " * 2**20
    return b"".join(packer.compress(blank) for _ in range(size // 2**20)) + packer.flush()


@functools.cache
def bomb() -> bytes:
    return packed()


@asynccontextmanager
async def answering(
    body: bytes, *, encoding: str | None = "gzip", kind: str = "application/json"
) -> AsyncIterator[str]:
    """A server that reads one request after the other and gives each of them this answer."""
    extra = f"content-encoding: {encoding}\r\n" if encoding else ""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n{extra}content-length: {len(body)}\r\n\r\n".encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                named = [line for line in request.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                await reader.readexactly(int(named[0][15:]) if named else 0)
                writer.write(head + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.fixture(autouse=True)
def memory_stays_bounded() -> Any:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < ALLOWED_GROWTH_KB


def outgoing() -> Outgoing:
    return Outgoing(delivery_id=UUID(int=1), idempotency_key="k", intent="send", target="5", message="hello")


async def test_a_telegram_delivery_whose_answer_is_a_bomb_is_uncertain() -> None:
    async with answering(bomb()) as url:
        channel, wire = TelegramChannel(token="t", base_url=url), Record()
        result = await channel.attempt(outgoing(), timeout_s=DEADLINE_S, wire=wire)
        await channel.close()
    assert isinstance(result, NotSent)
    assert wire.left == [1]
    assert (result.certainty, result.response["phase"]) == (Certainty.UNCERTAIN, "answer_awaited")
    assert "larger than" in str(result.error)


async def test_a_gateways_bomb_is_read_as_no_words_of_its_own() -> None:
    async with answering(bomb()) as url:
        options = {"url": url}
        channel = make_channel(
            ChannelSettings(
                channel="sms", clock=ManualClock(), options=options, secrets={"signing_key": "s"}, source="test"
            )
        )
        result = await channel.attempt(outgoing(), timeout_s=DEADLINE_S, wire=Record())
        await channel.close()
    assert isinstance(result, NotSent)
    assert result.certainty is Certainty.UNCERTAIN


class Nobody:
    async def ingest(self, envelope: Any) -> Any:
        raise AssertionError("nothing was to be handed in")


@pytest.mark.parametrize("body", [bomb, lambda: packed(2**20), lambda: zlib.compress(b"[" * 2**20, wbits=31)])
async def test_the_connector_takes_a_bomb_for_a_provider_that_is_away(body: Callable[[], bytes]) -> None:
    async with answering(body()) as url:
        connector = TelegramConnector(token="t", base_url=url, ingest=Nobody(), clock=ManualClock())
        with pytest.raises(TargetUnavailable):
            await connector.poll_once()
        await connector.close()


async def test_the_calendar_takes_a_bomb_for_a_provider_that_is_away() -> None:
    credentials = Credentials(client_id="c", client_secret="s", refresh_token="r")
    clock = SystemClock()
    async with answering(bomb()) as url, answering(b'{"access_token": "t"}', encoding=None) as tokens:
        for api, token_url in ((url, tokens), (url, url)):
            calendar = GoogleCalendar(
                credentials=credentials,
                clock=clock,
                base_url=api,
                token_url=token_url,
                retry=RetryPolicy(max_attempts=1, initial_delay=0.1, max_delay=0.1),
            )
            with pytest.raises(TargetUnavailable):
                await calendar.free_busy(Slot(clock.now(), clock.now()))
            await calendar.close()


async def test_a_butlers_bomb_ends_the_call_at_once() -> None:
    async with answering(bomb()) as url:
        transport = McpTransport(token=lambda: "t", url_of=lambda _butler: f"{url}/mcp")
        with pytest.raises(ClassifiedError):
            async with asyncio.timeout(DEADLINE_S):
                await transport.call("general", "status", {})
        await transport.close()


async def test_the_command_line_is_told_that_nobody_answered(tmp_path: Path) -> None:
    places = Places(tmp_path)
    places.create()
    async with answering(bomb()) as url:
        places.announce({"doors": {"switchboard": url}, "simulators": {}})

        def ask() -> None:
            with SystemClient(Settings(data_dir=tmp_path)) as client:
                assert client.health(url) == {"status": "unreachable"}
                client.get("/api/status")

        with pytest.raises(TargetUnavailable, match="larger than"):
            await asyncio.to_thread(ask)


async def test_what_fits_is_read_packed_or_not() -> None:
    document = json.dumps({"text": "x" * 100_000}).encode()
    forms = {
        "gzip": zlib.compress(document, wbits=31),
        "deflate": zlib.compress(document),
        "identity": document,
        None: document,
    }
    for encoding, body in forms.items():
        async with answering(body, encoding=encoding) as url, BoundedAsyncClient(trust_env=False) as client:
            assert (await client.get(url)).content == document
            async with client.stream("GET", url) as response:
                assert await response.aread() == document

            def ask(url: str = url) -> bytes:
                with BoundedClient(trust_env=False) as client:
                    return client.get(url).content

            assert await asyncio.to_thread(ask) == document


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("br", b"x"), ("gzip, gzip", b"x"), ("gzip", b"no gzip at all"), (None, b"x" * 2_000), ("gzip", packed(2**20))],
)
async def test_what_cannot_be_read_is_a_read_error_and_the_connection_is_left(
    encoding: str | None, body: bytes
) -> None:
    async with answering(body, encoding=encoding) as url:
        async with BoundedAsyncClient(limit=1_000, trust_env=False) as client:
            with pytest.raises(UnreadableAnswer) as caught:
                await client.get(url)
            assert isinstance(caught.value, httpx2.ReadError)

        def ask() -> None:
            with BoundedClient(limit=1_000, trust_env=False) as client:
                client.get(url)

        with pytest.raises(UnreadableAnswer):
            await asyncio.to_thread(ask)


def test_nobody_of_ours_reads_without_a_limit() -> None:
    """A plain client of httpx2 reads whatever comes."""
    sources = Path(__file__).parents[3] / "src"
    plain = [str(path) for path in sources.rglob("*.py") if _makes_plain_client(path.read_text())]
    assert [path for path in plain if not path.endswith("http_client.py")] == []


def _makes_plain_client(source: str) -> bool:
    return any(f"{made}(" in source for made in ("httpx2.AsyncClient", "httpx2.Client", "httpx2.get", "urlopen"))
