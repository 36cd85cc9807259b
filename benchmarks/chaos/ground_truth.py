"""What can be asked at the end: Messenger's rows, Messenger's door, and the providers themselves."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from benchmarks.chaos.assessment import OPEN, Attempt, Row
from benchmarks.chaos.caller import Unanswered, call_tool
from benchmarks.chaos.messages import FIRST_CHAT, number_in
from benchmarks.chaos.report import say
from benchmarks.chaos.rig import Rig


async def waiting(given: Rig, at: datetime) -> dict[str, datetime]:
    """What was accepted and not ended when the process died, and since when it could have been sent."""
    query = """SELECT id, next_attempt_at FROM messenger.delivery_requests
               WHERE status = ANY($1::text[]) AND message LIKE '%chaos-%' AND created_at <= $2"""
    try:
        rows = await given.database.fetch(query, sorted(OPEN), at)
    except Exception:
        return {}
    return {str(row["id"]): row["next_attempt_at"] for row in rows}


async def count_open(given: Rig) -> int:
    query = "SELECT count(*) FROM messenger.delivery_requests WHERE status = ANY($1::text[])"
    count: int = await given.database.fetchval(query, sorted(OPEN))
    return count


async def delivery_rows(given: Rig) -> list[Row]:
    query = "SELECT id, channel, status, message, settled_at FROM messenger.delivery_requests"
    requests = await given.database.fetch(query)
    attempts: dict[Any, list[Attempt]] = {}
    for row in await given.database.fetch("SELECT * FROM messenger.delivery_attempts ORDER BY attempt_number"):
        attempt = Attempt(started_at=row["started_at"], completed_at=row["completed_at"], certainty=row["certainty"])
        attempts.setdefault(row["delivery_id"], []).append(attempt)
    return [
        Row(
            number=number,
            delivery_id=str(row["id"]),
            channel=row["channel"],
            status=row["status"],
            attempts=attempts.get(row["id"], []),
            settled=row["settled_at"] is not None,
        )
        for row in requests
        if (number := number_in(row["message"])) is not None
    ]


async def received(given: Rig) -> dict[int, list[str]]:
    """The ground truth: what the simulators hold."""
    found: dict[int, list[str]] = {}
    for chat in (await given.control("GET", "/chats"))["chats"]:
        if chat["id"] < FIRST_CHAT:
            continue
        for line in (await given.control("GET", f"/chats/{chat['id']}/transcript"))["messages"]:
            if line["from"] == "bot" and (number := number_in(line["text"])) is not None:
                found.setdefault(number, []).append(str(chat["id"]))
    for mail in (await given.control("GET", "/mail/accepted"))["accepted"]:
        number = number_in(mail["subject"] or "")
        if number is not None and any(recipient["accepted"] for recipient in mail["recipients"]):
            found.setdefault(number, []).append(mail["message_id"])
    return found


async def surfaced(given: Rig) -> frozenset[str]:
    """What the door's search names as uncertain; a door that does not answer shows nothing to anybody."""
    found: set[str] = set()
    arguments: dict[str, Any] = {"status": "uncertain", "limit": 100}
    while True:
        try:
            page = await call_tool(given, "messenger_delivery_search", arguments)
            found |= {str(delivery["id"]) for delivery in page["deliveries"]}
        except (Unanswered, KeyError) as error:
            say(f"the search for uncertain deliveries was not answered: {error!r}")
            return frozenset()
        if not page.get("next_cursor"):
            return frozenset(found)
        arguments["cursor"] = page["next_cursor"]
