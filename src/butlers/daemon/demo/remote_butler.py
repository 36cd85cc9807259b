"""A remote butler of the demo's own: it attaches to the courier by WebSocket and needs no address."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from butlers.clock import Clock
from butlers.courier.client import CourierClient, Subscription

TRIGGERS = ["tomatoes", "watering"]


class RemoteButler:
    """Registers, and answers every route with a word to the chat that it came from."""

    def __init__(self, name: str, client: CourierClient, clock: Clock) -> None:
        self.name = name
        self._client = client
        self._clock = clock

    async def run(self) -> None:
        """Until cancelled."""
        async with self._client, self._client.subscribe(f"agents/{self.name}/inbox") as inbox:
            card: dict[str, Any] = {
                "name": self.name,
                "transport": "courier",
                "endpoint_url": f"agents/{self.name}/inbox",
            }
            card |= {"description": "Plants and the garden", "triggers": TRIGGERS, "capabilities": ["route.execute"]}
            await self._send(inbox, "register_butler", card)
            await inbox.grant(4)
            async for frame in inbox.frames():
                if "deliver" not in frame:
                    continue
                if frame["deliver"]["type"] == "route.v1":
                    await self._work(inbox, frame["deliver"]["id"], frame["deliver"]["payload"])
                await inbox.ack(frame, credit=1)

    async def _work(self, inbox: Subscription, id: str, route: dict[str, Any]) -> None:
        context = route["request_context"]
        words = f"Noted in the garden: {route['input']['prompt']}"
        delivery = {"intent": "reply", "channel": context["source_channel"], "message": words}
        notify = {"schema_version": "notify.v1", "origin_butler": self.name, "delivery": delivery}
        key = {"idempotency_key": route["subrequest"]["subrequest_id"], "request_context": context}
        await self._send(inbox, "notify.dispatch", notify | key)
        response: dict[str, Any] = {"schema_version": "route_response.v1", "status": "ok", "timing": {"duration_ms": 0}}
        response["request_context"] = {"request_id": context["request_id"]}
        await self._send(inbox, "route_response.v1", response, corr=id)

    async def _send(self, inbox: Subscription, type_: str, payload: dict[str, Any], **more: str) -> None:
        head = {"id": str(uuid4()), "ts": self._clock.now().isoformat(), "to": f"agents/{self.name}/outbox"}
        await inbox.say(enqueue={**head, "type": type_, "payload": payload, **more})
