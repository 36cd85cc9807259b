"""The webhook channel against a gateway that speaks HTTP, checks signatures, and fails on demand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from butlers.channels.adapter import AttemptResult, Certainty, NotSent, Outgoing, Sent, Throttle
from butlers.channels.plugins import ChannelSettings
from butlers.channels.webhook.adapter import WebhookChannel, make_channel
from butlers.channels.webhook.simulator import SIGNING_KEY, FaultKind, GatewayFault, WebhookSimulator, serve_webhook
from butlers.clock import SystemClock
from butlers.errors import TargetUnavailable, TimeoutExceeded, ValidationError

HOST = "127.0.0.1"
Make = Callable[..., WebhookChannel]


class NotedWire:
    def __init__(self) -> None:
        self.left: list[int] = []

    def leaving(self, part: int = 1) -> None:
        self.left.append(part)

    async def part_sent(self, part: int, provider_delivery_id: str) -> None:
        raise AssertionError("a webhook message has one part")


@pytest.fixture
async def gateway() -> AsyncIterator[WebhookSimulator]:
    async with serve_webhook(clock=SystemClock()) as simulator:
        yield simulator


@pytest.fixture
async def make(gateway: WebhookSimulator) -> AsyncIterator[Make]:
    async with contextlib.AsyncExitStack() as stack:

        def build(secret: str = SIGNING_KEY, **options: Any) -> WebhookChannel:
            channel = make_channel(
                ChannelSettings(
                    channel="sms",
                    clock=SystemClock(),
                    options={"url": gateway.url, "status_url": gateway.status_url} | options,
                    secrets={"signing_key": secret},
                )
            )
            stack.push_async_callback(channel.close)
            return channel

        yield build


def outgoing(message: str = "hello", delivery_id: UUID | None = None, **fields: Any) -> Outgoing:
    identifier = delivery_id or uuid4()
    given: dict[str, Any] = {"intent": "send", "target": "+1555", "idempotency_key": f"delivery:{identifier.hex}"}
    return Outgoing(delivery_id=identifier, message=message, **given | fields)


async def attempt(
    channel: WebhookChannel, out: Outgoing, *, timeout_s: float = 5, wire: NotedWire | None = None
) -> AttemptResult:
    return await channel.attempt(out, timeout_s=timeout_s, wire=wire or NotedWire())


async def failed(channel: WebhookChannel, out: Outgoing, **how: Any) -> NotSent:
    result = await attempt(channel, out, **how)
    assert isinstance(result, NotSent), result
    return result


# --- taken -----------------------------------------------------------------------------------------------------------


async def test_a_message_arrives_signed_with_its_key_and_all_it_needs(gateway: WebhookSimulator, make: Make) -> None:
    out, wire = outgoing("grüße 👋", subject="news"), NotedWire()
    result = await attempt(make(), out, wire=wire)
    assert isinstance(result, Sent)
    assert (result.provider_delivery_id, result.part, wire.left) == ("msg-1", 1, [1])
    (taken,) = gateway.gateway.taken.values()
    assert taken.message == {
        "delivery_id": str(out.delivery_id),
        "idempotency_key": out.idempotency_key,
        "channel": "sms",
        "intent": "send",
        "recipient": "+1555",
        "message": "grüße 👋",
        "subject": "news",
    }
    assert gateway.gateway.taken[out.idempotency_key] is taken, "the key stands in the header, too"


@pytest.mark.parametrize("conflict", [False, True])
async def test_a_message_that_comes_again_is_the_same_message(
    gateway: WebhookSimulator, make: Make, conflict: bool
) -> None:
    gateway.gateway.conflict_on_repeat = conflict
    channel, out = make(), outgoing()
    first, second = await attempt(channel, out), await attempt(channel, out)
    assert isinstance(first, Sent)
    assert isinstance(second, Sent)
    assert first.provider_delivery_id == second.provider_delivery_id
    assert [taken.times for taken in gateway.gateway.taken.values()] == [2]


async def test_a_key_that_another_message_has_is_our_mistake(gateway: WebhookSimulator, make: Make) -> None:
    channel = make()
    await attempt(channel, outgoing(idempotency_key="k"))
    result = await failed(channel, outgoing(idempotency_key="k"))
    assert isinstance(result.error, ValidationError)
    assert result.certainty is Certainty.NOT_SENT


async def test_a_message_whose_receipt_came_first_is_not_sent_again(gateway: WebhookSimulator, make: Make) -> None:
    wire = NotedWire()
    result = await attempt(make(), outgoing(parts_sent={1: "msg-9"}), wire=wire)
    assert result == Sent(provider_delivery_id="msg-9")
    assert (wire.left, list(gateway.gateway.seen)) == ([], [])


# --- refused ---------------------------------------------------------------------------------------------------------


async def test_a_wrong_key_is_a_fault_of_the_channel(gateway: WebhookSimulator, make: Make) -> None:
    result = await failed(make(secret="another"), outgoing())
    assert isinstance(result.error, TargetUnavailable)
    assert (result.error.retryable, result.recipient_gone, result.answered) == (False, False, True)
    assert gateway.gateway.taken == {}


async def test_a_recipient_that_is_gone_is_named_so(gateway: WebhookSimulator, make: Make) -> None:
    gateway.gateway.gone.add("+1555")
    result = await failed(make(), outgoing())
    assert result.recipient_gone
    assert not result.error.retryable


@pytest.mark.parametrize("header", ["30", "Fri, 31 Dec 2999 23:59:59 GMT"])
async def test_a_full_gateway_is_left_alone_for_as_long_as_it_asks(
    gateway: WebhookSimulator, make: Make, header: str
) -> None:
    body = '{"error": "slow down", "scope": "recipient"}'
    gateway.gateway.faults.add(
        GatewayFault(kind=FaultKind.ANSWER, status=429, body=body, headers={"Retry-After": header})
    )
    channel, out = make(), outgoing()
    result = await failed(channel, out)
    seconds = 30.0 if header == "30" else 86_400.0
    assert result.throttle == Throttle(scope="target", seconds=seconds)
    assert result.error.retry_after == seconds
    assert isinstance(await attempt(channel, out), Sent), "nothing was taken before"


async def test_redirects_are_not_followed(gateway: WebhookSimulator, make: Make) -> None:
    for status in (301, 302, 307, 308):
        gateway.gateway.faults.add(
            GatewayFault(kind=FaultKind.ANSWER, status=status, body="", headers={"Location": gateway.url})
        )
        result = await failed(make(), outgoing())
        assert not result.error.retryable
    assert (gateway.gateway.taken, len(gateway.gateway.seen)) == ({}, 4)


async def test_a_failure_in_its_own_words_is_certain(gateway: WebhookSimulator, make: Make) -> None:
    gateway.gateway.faults.add(GatewayFault(kind=FaultKind.ANSWER, status=503, body='{"error": "not_taken"}'))
    result = await failed(make(), outgoing())
    assert (result.certainty, result.error.retryable) == (Certainty.NOT_SENT, True)


# --- nobody knows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "page"),
    [
        (502, "<html>Bad Gateway</html>"),
        (504, '{"message": "Endpoint request timed out"}'),
        (503, '{"error": "Service Unavailable", "status": 503}'),
    ],
)
async def test_a_proxys_page_leaves_us_uncertain(gateway: WebhookSimulator, make: Make, status: int, page: str) -> None:
    gateway.gateway.faults.add(GatewayFault(kind=FaultKind.ANSWER_AFTER, status=status, body=page))
    channel, out = make(), outgoing()
    result = await failed(channel, out)
    assert result.certainty is Certainty.UNCERTAIN
    assert await channel.find(out) == "msg-1"


async def test_an_endless_answer_is_not_read_to_its_end(gateway: WebhookSimulator, make: Make) -> None:
    long = '{"id": "msg-1", "padding": "' + "x" * 200_000 + '"}'
    gateway.gateway.faults.add(GatewayFault(kind=FaultKind.ANSWER, status=200, body=long))
    assert (await failed(make(), outgoing())).certainty is Certainty.UNCERTAIN


@pytest.mark.parametrize(("kind", "arrived"), [(FaultKind.DROP_AFTER, True), (FaultKind.DROP_BEFORE, False)])
async def test_a_lost_answer_is_uncertain_and_the_gateway_can_be_asked(
    gateway: WebhookSimulator, make: Make, kind: FaultKind, arrived: bool
) -> None:
    gateway.gateway.faults.add(GatewayFault(kind=kind))
    channel, out, wire = make(), outgoing(), NotedWire()
    result = await failed(channel, out, wire=wire)
    assert (result.certainty, result.answered, wire.left) == (Certainty.UNCERTAIN, False, [1])
    assert await channel.find(out) == ("msg-1" if arrived else None)


async def test_an_answer_that_does_not_come_in_time_is_uncertain(gateway: WebhookSimulator, make: Make) -> None:
    gateway.gateway.faults.add(GatewayFault(kind=FaultKind.DELAY, seconds=60))
    result = await failed(make(), outgoing(), timeout_s=0.2)
    assert isinstance(result.error, TimeoutExceeded)
    assert result.certainty is Certainty.UNCERTAIN


async def test_an_answer_that_trickles_in_is_cut_off_at_the_time_allowed(make: Make) -> None:
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)

    server = await asyncio.start_server(trickle, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    result = await failed(make(url=f"http://{HOST}:{port}/"), outgoing(), timeout_s=0.3)
    assert isinstance(result.error, TimeoutExceeded)
    assert result.certainty is Certainty.UNCERTAIN
    server.close()


async def test_a_gateway_that_is_not_there_has_certainly_got_nothing(make: Make) -> None:
    wire = NotedWire()
    channel = make(url=f"http://{HOST}:9/messages", status_url=f"http://{HOST}:9/{{delivery_id}}")
    result = await failed(channel, outgoing(), wire=wire)
    assert isinstance(result.error, TargetUnavailable)
    assert (result.certainty, result.error.retryable, wire.left) == (Certainty.NOT_SENT, True, [])
    assert await channel.find(outgoing()) is None


async def test_after_a_loss_the_same_key_makes_the_second_attempt_safe(gateway: WebhookSimulator, make: Make) -> None:
    gateway.gateway.faults.add(GatewayFault(kind=FaultKind.DROP_AFTER))
    channel, out = make(idempotent=True), outgoing()
    assert channel.resend_is_safe
    await failed(channel, out)
    assert isinstance(await attempt(channel, out), Sent)
    assert len(gateway.gateway.taken) == 1


# --- asked -----------------------------------------------------------------------------------------------------------


async def test_asking_is_answered_by_the_gateways_own_yes_only(gateway: WebhookSimulator, make: Make) -> None:
    channel, out = make(), outgoing()
    assert await channel.find(out) is None
    await attempt(channel, out)
    assert await channel.find(out) == "msg-1"
    elsewhere = make(status_url=f"{gateway.base_url}/no/such/path/{{delivery_id}}")
    assert await elsewhere.find(out) is None, "a page that says 404 knows nothing of messages"
    assert await make(secret="another").find(out) is None


async def test_without_a_status_address_nobody_can_be_asked(gateway: WebhookSimulator) -> None:
    settings = ChannelSettings(
        channel="sms", clock=SystemClock(), options={"url": gateway.url}, secrets={"signing_key": SIGNING_KEY}
    )
    channel = make_channel(settings)
    assert await channel.find(outgoing()) is None
    await channel.close()


async def test_the_stand_in_can_be_moved_from_outside(gateway: WebhookSimulator, make: Make) -> None:
    """Its control API, as another process would use it."""
    async with httpx2.AsyncClient(base_url=f"{gateway.base_url}/control", trust_env=False) as control:
        assert (await control.post("/faults", json={"kind": "answer", "status": 500})).status_code == 200
        assert (await control.post("/settings", json={"gone": ["+1"]})).json()["gone"] == ["+1"]
        assert (await control.post("/faults", json={"kind": "unheard of"})).status_code == 422
        assert (await failed(make(), outgoing())).error.retryable
        assert (await failed(make(), outgoing(target="+1"))).recipient_gone
        report = (await control.get("/messages")).json()
        assert [seen["outcome"] for seen in report["requests"]] == ["refused", "refused"]
        await control.post("/reset")
        assert (await control.get("/messages")).json() == {"messages": [], "requests": []}
