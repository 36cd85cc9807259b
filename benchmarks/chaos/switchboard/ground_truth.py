"""What can be asked at the end: Switchboard's rows, the specialists' own records, and the simulators themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from benchmarks.chaos.messages import number_in
from benchmarks.chaos.rig import Rig
from benchmarks.chaos.switchboard.assessment import Entry, Heard, Row

OPEN = ("accepted", "progress")

# Ours, and not Switchboard's: it is told of every end, however often a request comes to one.
_NOTE_ENDS = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.ends (request_id uuid NOT NULL, state text NOT NULL);
CREATE FUNCTION chaos.note_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos.ends VALUES (NEW.request_id, NEW.lifecycle_state);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note_end AFTER UPDATE ON switchboard.message_inbox FOR EACH ROW
    WHEN (NEW.lifecycle_state IN ('parsed', 'errored')
          AND (OLD.lifecycle_state, OLD.final_state_at) IS DISTINCT FROM (NEW.lifecycle_state, NEW.final_state_at))
    EXECUTE FUNCTION chaos.note_end();
"""
_ROWS = """
SELECT message.request_id, normalized_text, lifecycle_state, lifecycle_error, source_channel, thread_key, received_at,
       final_state_at, routing_output, dispatch_outcomes,
       EXISTS (SELECT 1 FROM switchboard.dead_letter AS letter WHERE letter.request_id = message.request_id) AS letter
FROM switchboard.message_inbox AS message ORDER BY received_at, message.request_id
"""


async def note_ends(given: Rig) -> None:
    """From now on; the tables have to be there, and no message yet."""
    async with given.database.connection() as connection:
        await connection.execute(_NOTE_ENDS)


async def registered(given: Rig) -> set[str]:
    query = "SELECT name FROM switchboard.butler_registry WHERE eligibility_state = 'active'"
    return {row["name"] for row in await given.database.fetch(query)}


async def in_hand(given: Rig, at: datetime) -> set[str]:
    """What was being worked on when the process died."""
    query = "SELECT request_id FROM switchboard.message_inbox WHERE lifecycle_state = 'progress' AND updated_at <= $1"
    return {str(row["request_id"]) for row in await given.database.fetch(query, at)}


async def count_open(given: Rig) -> int:
    query = "SELECT count(*) FROM switchboard.message_inbox WHERE lifecycle_state = ANY($1::text[])"
    count: int = await given.database.fetchval(query, list(OPEN))
    return count


async def count_unsent(given: Rig) -> int:
    query = (
        "SELECT count(*) FROM messenger.delivery_requests WHERE status IN ('pending', 'in_progress', 'awaiting_retry')"
    )
    count: int = await given.database.fetchval(query)
    return count


async def count_stored(given: Rig) -> int:
    count: int = await given.database.fetchval("SELECT count(*) FROM switchboard.message_inbox")
    return count


async def rows(given: Rig) -> list[Row]:
    return [
        Row(
            number=number,
            request_id=str(row["request_id"]),
            state=row["lifecycle_state"],
            error=(row["lifecycle_error"] or {}).get("message"),
            thread=row["thread_key"],
            ended_at=row["final_state_at"],
            parts=frozenset(_parts(row["dispatch_outcomes"], row["routing_output"])),
            letter=row["letter"],
        )
        for row in await given.database.fetch(_ROWS)
        if (number := number_in(row["normalized_text"])) is not None
    ]


def _parts(outcomes: Any, decision: Any) -> Iterable[tuple[str, str]]:
    """Who was asked for what, by the final word; without one, by the decision."""
    for outcome in outcomes or ():
        if outcome["skipped"] is None:
            yield outcome["segment_id"], outcome["target_butler"]
    if not outcomes:
        for segment in (decision or {}).get("segments") or ():
            yield segment["segment_id"], segment["butler"]


async def entries(given: Rig, butlers: Iterable[str]) -> list[Entry]:
    """What the specialists did, by their own record."""
    found = []
    for butler in butlers:
        query = f"SELECT request_id, segment_id, answer FROM {butler}.entries WHERE segment_id NOT LIKE 'extraction-%'"
        for row in await given.database.fetch(query):
            request_id, segment_id = str(row["request_id"]), row["segment_id"]
            found.append(Entry(butler=butler, request_id=request_id, segment_id=segment_id, answer=row["answer"]))
    return found


async def ends(given: Rig) -> Counter[str]:
    query = "SELECT request_id, count(*) AS ends FROM chaos.ends GROUP BY request_id"
    return Counter({str(row["request_id"]): row["ends"] for row in await given.database.fetch(query)})


async def heard(given: Rig) -> list[Heard]:
    """What the simulators received, in their order; one number may be heard in several parts."""
    found = []
    for lines in await _transcripts(given):
        said = {line["message_id"]: line["text"] for line in lines}
        for line in (line for line in lines if line["from"] == "bot"):
            number = number_in(line["text"]) or number_in(said.get(line["reply_to"], ""))
            if number is not None:
                found.append(Heard(number=number, text=line["text"]))
    for mail in (await given.control("GET", "/mail/accepted"))["accepted"]:
        number = number_in(mail["text"] or "") or number_in(mail["subject"] or "")
        if number is not None and any(to["accepted"] for to in mail["recipients"]):
            found.append(Heard(number=number, text=mail["text"] or ""))
    return found


async def written(given: Rig) -> dict[int, int]:
    """The numbers that people wrote in chats, and their place in the order of their chat."""
    found: dict[int, int] = {}
    for lines in await _transcripts(given):
        for place, line in enumerate(line for line in lines if line["from"] != "bot"):
            if (number := number_in(line["text"])) is not None:
                found[number] = place
    return found


async def _transcripts(given: Rig) -> list[list[dict[str, Any]]]:
    chats = (await given.control("GET", "/chats"))["chats"]
    return [(await given.control("GET", f"/chats/{chat['id']}/transcript"))["messages"] for chat in chats]
