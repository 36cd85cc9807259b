"""The subscribers' endpoints, and what operators do with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from butlers.butler.activity import Report
from butlers.butler.core_tools import wire
from butlers.butler.health import Finding, Findings
from butlers.butler.identity import Caller
from butlers.butler.lifecycle_events import WEBHOOKS_TOOL, EventBatch
from butlers.butler.toolbox import AnyTool, Tool
from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.errors import Conflict, Forbidden, NotFound
from butlers.operations import operation as op
from butlers.operations import webhooks as operations
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.webhooks.addresses import AddressGuard, AddressRefused, check_url
from butlers.webhooks.deliveries import Deliveries, Target
from butlers.webhooks.events import PING, PUBLISHERS, check_patterns, family_of
from butlers.webhooks.sender import WebhookSender
from butlers.webhooks.signature import message_id

MOST_ENDPOINTS = 100
OLD_SECRET_SIGNS = timedelta(hours=24)
RESOLVED_WITHIN_S = 5.0  # the name of a new endpoint
BY_OPERATOR = "an operator disabled it"
FAILING_AFTER = timedelta(hours=1)  # of failures the endpoint shows in the health of Switchboard


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    database: Database
    queries: Queries  # of butlers.webhooks
    deliveries: Deliveries
    guard: AddressGuard
    sender: WebhookSender
    clock: Clock
    new_id: Callable[[], UUID]
    new_secret: Callable[[], str]
    report: Report  # what operators did
    wake: Callable[[], None]  # something is due

    def tools(self) -> list[AnyTool]:
        return [
            Tool.of(operations.CREATE, self._create),
            Tool.of(operations.LIST, self._list),
            Tool.of(operations.SHOW, self._show),
            Tool.of(operations.DELETE, self._delete),
            Tool.of(operations.ENABLE, self._enable),
            Tool.of(operations.DISABLE, self._disable),
            Tool.of(operations.ROTATE, self._rotate),
            Tool.of(operations.DELIVERIES, self._deliveries),
            Tool.of(operations.REPLAY, self._replay),
            Tool.of(operations.PING, self._ping),
            Tool(
                name=WEBHOOKS_TOOL,
                description="Life-cycle events of the calling system, for the endpoints that want them.",
                arguments=EventBatch,
                returns=operations.EventsTaken,
                hints=op.ADDS_ONCE,
                handler=self._publish,
                roles=frozenset({op.Role.BUTLER}),
            ),
        ]

    async def check(self) -> Findings:
        """For the health of Switchboard: endpoints that fail, and those that were disabled because of it."""
        now = self.clock.now()
        rows = await self.database.fetch(self.queries.list_endpoints, None)
        remedy = "See: butlers webhooks deliveries ID; then enable, disable or delete the endpoint."
        findings: dict[str, Finding] = {}
        for row in rows:
            since = row["failing_since"]
            if row["disabled_reason"] not in (None, BY_OPERATOR):
                sentence = f"The endpoint was disabled: {row['disabled_reason']}."
                findings[str(row["id"])] = Finding.degraded(sentence, remedy=remedy)
            elif row["enabled"] and since is not None and now - since >= FAILING_AFTER:
                sentence = f"The endpoint has taken no event since {since:%Y-%m-%d %H:%M} UTC."
                findings[str(row["id"])] = Finding.degraded(sentence, remedy=remedy)
        return findings or {"": Finding(figures={"endpoints": len(rows)})}

    # --- events ------------------------------------------------------------------------------------------------------

    async def _publish(self, caller: Caller, batch: EventBatch) -> dict[str, Any]:
        families = PUBLISHERS.get(caller.name, ())
        if any(family_of(event.type) not in families for event in batch.events):
            raise Forbidden(f"{caller.name} publishes events that are not its own")
        published = await self.deliveries.publish(batch.events)
        if published:
            self.wake()
        return {"published": published}

    # --- operators ---------------------------------------------------------------------------------------------------

    async def _create(self, caller: Caller, given: operations.CreateEndpointArguments) -> dict[str, Any]:
        event_types = check_patterns(given.event_types)
        await self._check_url(given.url)
        id, secret, now = self.new_id(), self.new_secret(), self.clock.now()
        values = (id, given.url, given.description, event_types, secret, caller.name, now)
        async with self.database.transaction() as connection:
            await connection.execute(self.queries.lock_endpoints)
            if await connection.fetchval(self.queries.count_endpoints) >= MOST_ENDPOINTS:
                raise Conflict.of("url", f"there are {MOST_ENDPOINTS} endpoints already; delete one first")
            await connection.execute(self.queries.create_endpoint, *values)
        return await self._done(caller, "webhooks.create", id, secret=secret)

    async def _check_url(self, text: str) -> None:
        """A name without an address is accepted: the receiver may come later."""
        url = check_url(text, private_allowed=self.guard.private_allowed)
        try:
            async with asyncio.timeout(RESOLVED_WITHIN_S):
                await self.guard.addresses(url.raw_host.decode(), url.port or 443)
        except AddressRefused as error:
            raise invalid("url", str(error)) from None
        except (OSError, UnicodeError):
            return

    async def _list(self, _caller: Caller, _given: op.NoArguments) -> dict[str, Any]:
        rows = await self.database.fetch(self.queries.list_endpoints, None)
        return wire({"endpoints": [dict(row) for row in rows]})

    async def _show(self, _caller: Caller, given: operations.EndpointArguments) -> dict[str, Any]:
        endpoint = await self._endpoint(given.endpoint_id)
        rows = await self.database.fetch(self.queries.count_by_state, given.endpoint_id)
        return wire({"endpoint": endpoint, "deliveries": {row["state"]: row["number"] for row in rows}})

    async def _delete(self, caller: Caller, given: operations.EndpointArguments) -> dict[str, Any]:
        self._found(await self.database.fetchval(self.queries.delete_endpoint, given.endpoint_id))
        self._tell(caller, "webhooks.delete", given.endpoint_id)
        return {"endpoint_id": str(given.endpoint_id), "deleted": True}

    async def _enable(self, caller: Caller, given: operations.EndpointArguments) -> dict[str, Any]:
        id = given.endpoint_id
        self._found(await self.database.fetchval(self.queries.enable_endpoint, id, self.clock.now()))
        return await self._done(caller, "webhooks.enable", id)

    async def _disable(self, caller: Caller, given: operations.EndpointArguments) -> dict[str, Any]:
        id = given.endpoint_id
        self._found(await self.database.fetchval(self.queries.disable_endpoint, id, BY_OPERATOR, self.clock.now()))
        return await self._done(caller, "webhooks.disable", id)

    async def _rotate(self, caller: Caller, given: operations.EndpointArguments) -> dict[str, Any]:
        id, secret, now = given.endpoint_id, self.new_secret(), self.clock.now()
        until = now + OLD_SECRET_SIGNS
        self._found(await self.database.fetchval(self.queries.rotate_secret, id, secret, until, now))
        return await self._done(caller, "webhooks.rotate_secret", id, secret=secret)

    async def _deliveries(self, _caller: Caller, given: operations.WebhookDeliveriesArguments) -> dict[str, Any]:
        moment, last = op.place(given.cursor)
        await self._endpoint(given.endpoint_id)
        values = (given.endpoint_id, given.state, moment, last, given.limit + 1)
        rows = await self.database.fetch(self.queries.list_deliveries, *values)
        shown, cursor = op.page([dict(row) for row in rows], given.limit)
        return wire({"deliveries": shown, "next_cursor": cursor})

    async def _replay(self, caller: Caller, given: operations.ReplayWebhooksArguments) -> dict[str, Any]:
        id, now = given.endpoint_id, self.clock.now()
        if (given.delivery_id is None) == (given.since is None):
            raise invalid("delivery_id", "give either delivery_id or since")
        endpoint = await self._endpoint(id)
        if not endpoint["enabled"]:
            raise Conflict.of("endpoint_id", "the endpoint is disabled; enable it first")
        if given.delivery_id is None:
            rows = await self.database.fetch(self.queries.replay_dead_lettered, id, given.since, now)
        else:
            rows = await self.database.fetch(self.queries.replay_one, id, given.delivery_id, now)
            if not rows:
                await self._refuse_replay(id, given.delivery_id)
        self.wake()
        self._tell(caller, "webhooks.replay", id)
        return {"endpoint_id": str(id), "replayed": len(rows)}

    async def _refuse_replay(self, endpoint_id: UUID, delivery_id: UUID) -> None:
        if await self.database.fetchval(self.queries.state_of_delivery, endpoint_id, delivery_id) is None:
            raise NotFound.of("delivery_id", "no such delivery of this endpoint")
        raise Conflict.of("delivery_id", "the delivery has not ended; it is sent anyway")

    async def _ping(self, _caller: Caller, given: operations.EndpointArguments) -> dict[str, Any]:
        id, now = self.new_id(), self.clock.now()
        row = self._found(await self.database.fetchrow(self.queries.target_of, given.endpoint_id))
        target = Target.of(row, endpoint_id=given.endpoint_id, now=now)
        payload = {"type": PING, "timestamp": now.isoformat(), "data": {"endpoint_id": str(given.endpoint_id)}}
        answer = await self.sender.send(id, target, payload)
        return {
            "endpoint_id": str(given.endpoint_id),
            "message_id": message_id(id),
            "delivered": answer.is_taken,
            "status": answer.status,
            "error": answer.problem,
        }

    # --- parts -------------------------------------------------------------------------------------------------------

    async def _endpoint(self, id: UUID) -> dict[str, Any]:
        return dict(self._found(await self.database.fetchrow(self.queries.list_endpoints, id)))

    def _found(self, value: Any) -> Any:
        if value is None:
            raise NotFound.of("endpoint_id", "no such endpoint")
        return value

    def _tell(self, caller: Caller, operation: str, id: UUID) -> None:
        self.report(operation, {"endpoint_id": str(id)}, result="completed", error=None, actor=caller.name)

    async def _done(self, caller: Caller, operation: str, id: UUID, **more: str) -> dict[str, Any]:
        self._tell(caller, operation, id)
        return wire({"endpoint": await self._endpoint(id), **more})
