"""The courier on a kernel: registered, found, connected; what is not read is not pushed."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import websockets

from butlers.clock import SystemClock
from butlers.courier.config import parse_config
from butlers.courier.kernel import Capabilities, PipeClosed, PipeEnd, StreamKernel, make_pipe
from butlers.courier.kernel_adapter import Fabric, on_kernel
from butlers.courier.service import Courier, running
from butlers.errors import Conflict, NotFound, ValidationError
from tests.integration.courier.gateway import INBOX, envelope, gateway

URL = "http://127.0.0.1:8787"


def courier_of_a_process() -> AbstractAsyncContextManager[Courier]:
    return running(parse_config("", source="test"), clock=SystemClock())


async def heard(pipe: PipeEnd, op: str) -> Any:
    """The next frame of that kind."""
    async with asyncio.timeout(10):
        while True:
            frame = await pipe.read()
            if frame["op"] == op:
                return frame


@pytest.mark.scenario("C2-022")
async def test_the_courier_is_a_transform_service_and_credit_crosses_its_pipe():
    fabric = Fabric()
    kernel, hostess, router = fabric.kernel, fabric.hostess, fabric.router
    async with courier_of_a_process() as courier, on_kernel(courier, fabric, url=URL):
        assert kernel.lookup(accepts="envelope", produces="view") == ["courier"]
        pipe = kernel.pipe_of("courier")
        await pipe.write({"op": "hello"})
        assert (await heard(pipe, "ok"))["service"] == "courier"
        await pipe.write({"op": "subscribe", "stream": INBOX})
        for number in range(5):
            await pipe.write({"op": "enqueue", "envelope": envelope(f"m{number}")})
        await pipe.write({"op": "stats", "stream": INBOX})
        while (frame := await heard(pipe, "ok"))["of"] != "stats":
            pass
        assert frame["streams"][0]["depth"] == 5  # no credit, no delivery
        await pipe.write({"op": "grant", "credit": 2})
        first, second = await heard(pipe, "deliver"), await heard(pipe, "deliver")
        assert [first["deliver"]["id"], second["deliver"]["id"]] == ["m0", "m1"]
        await pipe.write({"op": "ack", "id": "m0", "lease": first["lease"]})
        await pipe.write({"op": "nack", "id": "m1", "lease": second["lease"], "delayMs": 0})
        await pipe.write({"op": "ack", "id": "m0", "lease": first["lease"]})
        assert (await heard(pipe, "error"))["error"]["code"] == "LeaseConflict"
        await pipe.write({"op": "dance"})
        assert (await heard(pipe, "error"))["error"]["code"] == "UnknownOp"
        await pipe.write({"op": "snapshot"})
        while "entries" not in (frame := await heard(pipe, "ok")):
            pass
        assert frame["entries"][INBOX]["id"] == "m4"
        now = courier.clock.monotonic()
        assert hostess.available(now)["courier"]["url"] == URL
        assert router.locate("courier", now) == URL
        assert hostess.available(now + 21) == {}
        assert router.locate("courier", now + 31) is None
        await pipe.close()
        async with asyncio.timeout(10):
            while (await courier.queue.stats(INBOX))["subscribers"]:
                await asyncio.sleep(0.005)


async def test_sources_are_merged_into_the_courier():
    fabric = Fabric()
    kernel = fabric.kernel
    async with courier_of_a_process() as courier, on_kernel(courier, fabric, url=URL):
        ends = []
        for name in ("one", "two"):
            ours, theirs = make_pipe()
            kernel.register(name, Capabilities(type="source", produces=("envelope",)), theirs)
            ends.append(ours)
        kernel.merge(["one", "two"], "courier")
        for number, end in enumerate(ends):
            await end.write(envelope(f"from-{number}"))
        async with asyncio.timeout(10):
            while INBOX not in await courier.queue.streams() or (await courier.queue.stats(INBOX))["depth"] < 2:
                await asyncio.sleep(0.005)
        await kernel.close()


async def test_a_split_goes_at_the_pace_of_the_slowest():
    kernel = StreamKernel()
    (source, theirs), sinks = make_pipe(2), [make_pipe(2) for _ in range(2)]
    kernel.register("source", Capabilities(type="source", produces=("envelope",)), theirs)
    for number, (_ours, sink) in enumerate(sinks):
        kernel.register(f"sink{number}", Capabilities(type="sink", accepts=("envelope",)), sink)
    kernel.split("source", ["sink0", "sink1"])
    written = 0

    async def produce() -> None:
        nonlocal written
        for number in range(100):
            await source.write({"n": number})
            written += 1

    producer = asyncio.create_task(produce())
    reader = sinks[0][0]
    async with asyncio.timeout(10):
        quick = [(await reader.read())["n"] for _ in range(3)]
    for _ in range(200):
        await asyncio.sleep(0)
    assert quick == [0, 1, 2]
    assert written < 12  # what nobody takes at the slow end holds the source back
    producer.cancel()
    await kernel.close()


async def test_what_does_not_fit_is_refused():
    kernel = StreamKernel()
    ours, theirs = make_pipe()
    kernel.register("a", Capabilities(type="source", produces=("view",)), theirs)
    kernel.register("b", Capabilities(type="sink", accepts=("envelope",)), make_pipe()[1])
    with pytest.raises(ValidationError):
        kernel.connect("a", "b")
    with pytest.raises(Conflict):
        kernel.register("a", Capabilities(type="sink"), theirs)
    with pytest.raises(NotFound):
        kernel.connect("a", "nobody")
    await ours.close()
    with pytest.raises(PipeClosed):
        await ours.write({})


async def test_a_kernel_elsewhere_has_the_courier_on_its_pipe_by_a_socket():
    async with gateway() as running:
        (service,) = (await running.http.get("/v1/services")).json()["services"]
        assert (service["name"], service["type"], service["available"]) == ("courier", "transform", True)
        assert service["address"] == service["url"] == f"http://{running.host}"
        assert service["streams"] == 0
        async with running.socket("/v1/pipe") as socket:
            await socket.say(op="hello")
            assert (await socket.hear())["service"] == "courier"
            await socket.say(op="subscribe", stream=INBOX)
            assert (await socket.hear())["op"] == "ok"
            await running.send("m1", "m2")
            assert await socket.is_silent()  # no credit
            await socket.say(op="grant", credit=1)
            frames = [await socket.hear(), await socket.hear()]
            (delivered,) = [frame for frame in frames if frame["op"] == "deliver"]
            assert delivered["deliver"]["id"] == "m1"
            await socket.say(op="ack", id="m1", lease=delivered["lease"])
            assert (await socket.hear())["of"] == "ack"
            await socket.connection.send("no frame")
            assert await socket.error() == "UnknownOp"
        await running.until(lambda: running.core.stats(INBOX)["subscribers"] == 0)
        assert running.core.audit(INBOX)["groups"]["default"]["acked"] == 1


async def test_the_pipe_needs_every_right():
    scopes = '["streams:*:enqueue", "streams:*:subscribe"]'
    async with gateway(f"auth: {{tokens: [{{token: 'some-token', scopes: {scopes}}}]}}") as running:
        headers = {"Authorization": "Bearer some-token"}
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with running.socket("/v1/pipe", additional_headers=headers):
                pass
        assert refused.value.response.status_code == 403
