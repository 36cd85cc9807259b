"""A butler on another machine: it needs a WebSocket and a token, and has no address of its own.

$ butlers token issue garden --role butler     # prints the token
$ COURIER=ws://127.0.0.1:8787 TOKEN=... .venv/bin/python examples/remote_butler.py
"""

import asyncio
import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from uuid import uuid4

import websockets

NAME = os.environ.get("NAME", "garden")
INBOX, OUTBOX = f"agents/{NAME}/inbox", f"agents/{NAME}/outbox"
CARD = {"name": NAME, "transport": "courier", "endpoint_url": INBOX, "capabilities": ["route.execute"]}
CARD |= {"description": "Plants and the garden", "triggers": ["tomatoes", "watering", "garden"]}


async def serve(socket: websockets.ClientConnection) -> None:
    async def say(type_: str, payload: dict, **more: str) -> None:
        head = {"id": str(uuid4()), "ts": datetime.now(UTC).isoformat(), "to": OUTBOX, **more}
        await socket.send(json.dumps({"enqueue": {**head, "type": type_, "payload": payload}}))

    async def work(id_: str, route: dict) -> None:
        context, key = route["request_context"], route["subrequest"]["subrequest_id"]
        answer = {"message": f"The garden has noted: {route['input']['prompt']}", "intent": "reply"}
        answer["channel"] = context["source_channel"]
        notify = {"schema_version": "notify.v1", "origin_butler": NAME, "delivery": answer}
        await say("notify.dispatch", {**notify, "request_context": context, "idempotency_key": key})
        done = {"schema_version": "route_response.v1", "status": "ok", "timing": {"duration_ms": 0}}
        await say("route_response.v1", {**done, "request_context": {"request_id": context["request_id"]}}, corr=id_)

    await say("register_butler", CARD)
    await socket.send(json.dumps({"credit": 4}))
    async for text in socket:
        frame = json.loads(text)
        if message := frame.get("deliver"):
            if message["type"] == "route.v1":
                await work(message["id"], message["payload"])
            else:
                print(message["type"], message["payload"])
            await socket.send(json.dumps({"ack": message["id"], "lease": frame["lease"], "credit": 1}))
        elif "error" in frame:
            print("refused:", frame["error"])


async def main() -> None:
    token, address = {"Authorization": f"Bearer {os.environ['TOKEN']}"}, os.environ["COURIER"]
    async for socket in websockets.connect(f"{address}/v1/subscribe?stream={INBOX}", additional_headers=token):
        with suppress(websockets.ConnectionClosed):  # the system restarts: attach again
            await serve(socket)


asyncio.run(main())
