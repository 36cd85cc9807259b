"""When more comes in than goes out: what happens is configured, explicit, counted, and fair over the channels."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.overload import OPEN, admitted, counted, crowded, hand_in, hand_in_all, in_hand, message, stalled
from tests.scenarios.switchboard_door import all_finished, counts, post, row
from tests.system import RunningSystem, running_system

# Of 16 places 2 are each channel's own and 8 are anybody's: one channel alone gets 10.
SMALL = "max_waiting = 16\nmax_stored = 40\nretry_after_s = 0.2"
ALONE = 10
BY_TIER = f'{SMALL}\n[admission.overflow]\ndefault = "defer"\ninteractive = "reject"\nhigh_priority = "shed"'


async def fill(running: RunningSystem, number: int = ALONE, channel: str = "api") -> list[dict[str, Any]]:
    results = await hand_in_all(running, [message(running, f"{channel} {n}", channel=channel) for n in range(number)])
    assert all("request_id" in result for result in results), results
    return results


async def states(running: RunningSystem) -> dict[str, int]:
    query = "select lifecycle_state, count(*) from switchboard.message_inbox group by 1"
    return {row[0]: row[1] for row in await running.database.fetch(query)}


@pytest.mark.scenario("S3-052")
async def test_bounded_admission(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    """All tier queues are full: each tier gets what is configured for it, and interactive sources hear it at once."""
    small_queues = "queue_capacity = 2\nworker_count = 1"
    roster = crowded(tmp_path, admission=BY_TIER, buffer=small_queues)
    async with running_system(tmp_path, postgres_server, roster_dir=roster) as running:
        async with stalled(running):
            await hand_in(running, "in hand")
            await in_hand(running)
            for tier in ("default", "interactive", "high_priority"):
                assert [(await hand_in(running, f"{tier} {n}", tier=tier)).status_code for n in range(2)] == [202, 202]
            before = await counts(running)

            rejected = await hand_in(running, "nobody waits for this", tier="interactive")
            assert await counts(running) == before, "nothing of it is stored"
            deferred = await hand_in(running, "later", tier="default")
            shed = await hand_in(running, "never", tier="high_priority")

        assert (rejected.status_code, rejected.headers["retry-after"]) == (429, "1")
        error = rejected.json()["error"]
        assert (error["class"], error["retryable"], error["retry_after_seconds"]) == ("overload_rejected", True, 0.2)
        assert (deferred.status_code, shed.status_code) == (202, 202)
        stored = await row(running, "switchboard.message_inbox", shed.json()["request_id"])
        assert (stored["lifecycle_state"], stored["lifecycle_error"]["class"]) == ("errored", "overload_rejected")
        assert stored["final_state_at"] == stored["received_at"]
        assert await admitted(running, "api") == {"accepted": 7, "deferred": 1, "shed": 1, "rejected": 1}
        await all_finished(running)
        assert await states(running) == {"parsed": 8, "errored": 1}
        assert (await hand_in(running, "there is room again", tier="interactive")).status_code == 202


async def test_overflow_begins_when_the_waiting_room_is_full_and_ends_when_it_is_not(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    roster = crowded(tmp_path, admission=BY_TIER)
    async with running_system(tmp_path, postgres_server, roster_dir=roster) as running:
        async with stalled(running):
            await fill(running)
            assert await admitted(running, "api") == {"accepted": ALONE}
            assert (await hand_in(running, "now", tier="interactive")).status_code == 429
            # Deferring goes on until a channel has its 5 and the 20 that are anybody's.
            results = await hand_in_all(running, [message(running, f"later {n}") for n in range(20)])
            assert [("error" in result) for result in results] == [False] * 15 + [True] * 5
            assert {result["error"]["class"] for result in results[15:]} == {"overload_rejected"}
            assert await admitted(running, "api") == {"accepted": ALONE, "deferred": 15, "rejected": 6}
            assert (await counts(running))["message_inbox"] == 25
        await all_finished(running)
        assert await states(running) == {"parsed": 25}
        assert (await hand_in(running, "now", tier="interactive")).status_code == 202


async def test_what_is_stored_already_is_never_refused(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    roster = crowded(tmp_path, admission=BY_TIER)
    async with running_system(tmp_path, postgres_server, roster_dir=roster) as running:
        known = message(running, "asked before", tier="interactive")
        async with stalled(running):
            first = (await post(running, known)).json()
            await fill(running, ALONE - 1)
            assert (await hand_in(running, "new", tier="interactive")).status_code == 429
            again = await post(running, known)
            results = await hand_in_all(running, [known, message(running, "new", tier="interactive"), known])
        assert (again.status_code, again.json()) == (202, first | {"duplicate": True})
        assert [result.get("request_id") for result in results] == [first["request_id"], None, first["request_id"]]
        await all_finished(running)


async def test_a_full_room_is_still_full_after_a_restart(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    roster = crowded(tmp_path, admission=BY_TIER)
    async with running_system(tmp_path, postgres_server, roster_dir=roster) as running:
        await running.stop()
        await running.database.execute(
            "insert into switchboard.message_inbox (request_id, received_at, request_context, normalized_text,"
            " policy_tier, dedupe_key, submitted_by, schema_version, updated_at, source_channel, not_before)"
            " select gen_random_uuid(), now(), '{}', 'left behind', 'default', n::text, 'tests', 'ingest.v1', now(),"
            " 'api', now() + interval '1 hour' from generate_series(1, $1::int) as n",
            ALONE,
        )
        await running.start()
        refused = await hand_in(running, "one more", tier="interactive")
        other = await hand_in(running, "one more", tier="interactive", channel="mcp")
        assert (refused.status_code, other.status_code) == (429, 202)


@pytest.mark.scenario("S3-053")
async def test_channel_fairness(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    """One channel floods the door; the others are let in and served in between."""
    rejecting = f'{SMALL}\n[admission.overflow]\ndefault = "reject"'
    roster = crowded(tmp_path, admission=rejecting)
    others = ("email", "mcp", "telegram")
    async with running_system(tmp_path, postgres_server, roster_dir=roster) as running:
        async with stalled(running):
            flood = [message(running, f"flood {n}") for n in range(40)]
            guests = [message(running, f"{channel} {n}", channel=channel) for channel in others for n in range(2)]
            floods, answers = await asyncio.gather(hand_in_all(running, flood), hand_in_all(running, guests))
        assert sum("error" in result for result in floods) == 40 - ALONE
        assert all("request_id" in answer for answer in answers), answers
        assert await admitted(running, "api") == {"accepted": ALONE, "rejected": 40 - ALONE}
        for channel in others:
            assert await admitted(running, channel) == {"accepted": 2}
        await all_finished(running)
        query = "select source_channel from switchboard.message_inbox order by final_state_at"
        order = [row[0] for row in await running.database.fetch(query)]
        assert len(order) == ALONE + 2 * len(others)
        last_guest = max(place for place, channel in enumerate(order) if channel != "api")
        assert order[:last_guest].count("api") < ALONE, "nobody waits for the end of the flood"


@pytest.mark.scenario("S3-027")
async def test_concurrent_channel_isolation(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    """Everything of one channel waits for a butler that stands still; the others are accepted, routed and answered."""
    async with running_system(tmp_path, postgres_server) as running:
        async with stalled(running, "finance"):
            await hand_in_all(running, [message(running, f"slow {n}", butler="finance") for n in range(20)])
            await in_hand(running, 3)  # every worker
            mailed = (await hand_in(running, "remember the milk", channel="email")).json()
            await running.says("remember the bread")
            trace = await running.finished(mailed["request_id"])
            answers = await running.until(running.answers)
            more = await hand_in(running, "one more", butler="finance")

            async def only_the_slow() -> bool:
                count = await running.database.fetchval(f"select count(*) from switchboard.message_inbox where {OPEN}")
                return bool(count == 21)

            await running.until(only_the_slow)
        assert trace["lifecycle_state"] == "parsed"
        assert any("remember the bread" in answer for answer in answers)
        assert more.status_code == 202
        await all_finished(running)
        assert await states(running) == {"parsed": 23}


@pytest.mark.scenario("S3-023")
async def test_non_blocking_ingress_acceptance(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    """Accepting waits for the disk and for nobody else, up to the bound; the work is done apart from it."""
    roster = crowded(tmp_path, admission=BY_TIER)
    async with running_system(tmp_path, postgres_server, roster_dir=roster) as running:
        async with stalled(running):
            replies = [await hand_in(running, f"note {n}") for n in range(ALONE)]
            await running.says("from a chat")

            async def chat_is_in() -> bool:
                query = "select count(*) from switchboard.message_inbox where source_channel = 'telegram'"
                return bool(await running.database.fetchval(query))

            await running.until(chat_is_in)
            beyond = await hand_in(running, "one too many", tier="interactive")
            finished = await running.database.fetchval(
                f"select count(*) from switchboard.message_inbox where not ({OPEN})"
            )
        assert [reply.status_code for reply in replies] == [202] * ALONE
        assert (beyond.status_code, finished) == (429, 0)
        await all_finished(running)
        assert await states(running) == {"parsed": ALONE + 1}


@pytest.mark.scenario("S3-026")
async def test_backpressure_on_queue_full(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    roster = crowded(tmp_path, admission="max_waiting = 1000", buffer="queue_capacity = 2\nworker_count = 1")
    async with running_system(tmp_path, postgres_server, roster_dir=roster) as running:
        async with stalled(running):
            await hand_in(running, "in hand")
            await in_hand(running)
            replies = [await hand_in(running, f"note {n}") for n in range(8)]
            waiting = await states(running)
            assert await counted(running, "butlers_buffer_backpressure_total", "none") == {"": 6}
        assert [reply.status_code for reply in replies] == [202] * 8
        assert waiting == {"progress": 1, "accepted": 8}, "what the queue did not take is in the inbox"
        await all_finished(running)
        assert await states(running) == {"parsed": 9}
        assert (await counted(running, "butlers_buffer_scanner_recovered_total", "none"))[""] >= 6


async def test_a_rejected_telegram_update_is_handed_in_again_and_answered_once(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    roster = crowded(tmp_path, admission=BY_TIER)
    texts = [f"remember item {n}" for n in range(ALONE + 5)]
    async with running_system(tmp_path, postgres_server, roster_dir=roster) as running:

        async def rejected() -> bool:
            return (await admitted(running, "telegram")).get("rejected", 0) >= 2

        async with stalled(running):
            for text in texts:
                await running.says(text)
            await running.until(rejected)
            assert (await counts(running))["message_inbox"] == ALONE

        async def answered() -> bool:
            return len(await running.answers()) >= len(texts)

        await running.until(answered)
        await all_finished(running)
        answers = await running.answers()
        assert sorted(answers) == sorted(f"[general] Noted: {text}" for text in texts)
