"""`messenger_delivery_why`: which rule decided what, in plain words.

Whoever asks may hold the id of the delivery, of its dead letter or of the action that waits for a person; all three
lead to the same story.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.surface import Tool
from butlers.clock import Clock
from butlers.contracts.delivery_state import OPEN
from butlers.errors import NotFound
from butlers.messenger.tools.dead_letters import DeadLetterTools
from butlers.messenger.tools.records import DeliveryRecords
from butlers.messenger.tools.sentences import Story, history
from butlers.messenger.tools.standing import standing
from butlers.operations.deliveries import WHY, DeliveryArguments


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyTools:
    records: DeliveryRecords
    clock: Clock
    dead_letters: DeadLetterTools  # knows what may be sent again

    def tools(self) -> list[Tool]:
        return [Tool.of(WHY, self._why)]

    async def _why(self, _caller: Caller, arguments: DeliveryArguments) -> dict[str, Any]:
        behind = await self.records.row(self.records.queries.delivery_behind, arguments.delivery_id)
        if behind is None:
            raise NotFound.of("delivery_id", "no such delivery")
        story = await self._story(await self.records.delivery(behind["id"]))
        delivery = story.delivery
        return wire(
            {
                "asked_about": {"kind": behind["kind"], "id": arguments.delivery_id},
                "delivery_id": delivery["id"],
                "status": delivery["status"],
                "lines": [*history(story), *standing(story, self.clock.now())],
                "decisions": delivery["decisions"],
                "replay_eligibility": story.eligibility,
            }
        )

    async def _story(self, delivery: dict[str, Any]) -> Story:
        identity, records, queries = delivery["id"], self.records, self.records.queries
        letter = await records.row(queries.dead_letter_of_delivery, identity)
        waits = delivery["status"] in OPEN
        return Story(
            delivery=delivery,
            attempts=(await records.attempts(identity))[identity],
            receipts=(await records.receipts(identity))[identity],
            dead_letter=letter,
            eligibility=(await self.dead_letters.eligibility([letter]))[letter["id"]] if letter else None,
            replays=await records.rows(queries.replays_of_delivery, identity),
            obstacles=await records.row(queries.obstacles, identity, self.clock.now()) if waits else None,
            recipient=await records.row(queries.recipient_rule, delivery["channel"], delivery["target_identity"]),
        )
