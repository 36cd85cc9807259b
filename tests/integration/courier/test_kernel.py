"""The courier on a kernel: registered, found, connected; what is not read is not pushed."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from butlers.clock import SystemClock
from butlers.courier.config import parse_config
from butlers.courier.kernel import Capabilities, Hostess, PipeClosed, PipeEnd, Router, StreamKernel, make_pipe
from butlers.courier.kernel_adapter import on_kernel
from butlers.courier.service import Courier, running
from butlers.errors import Conflict, NotFound, ValidationError
from tests.integration.courier.gateway import INBOX, envelope

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
    kernel, hostess, router = StreamKernel(), Hostess(), Router()
    async with (
        courier_of_a_process() as courier,
        on_kernel(courier, kernel, hostess=hostess, router=router, url=URL),
    ):
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
    kernel = StreamKernel()
    async with (
        courier_of_a_process() as courier,
        on_kernel(courier, kernel, hostess=Hostess(), router=Router(), url=URL),
    ):
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
