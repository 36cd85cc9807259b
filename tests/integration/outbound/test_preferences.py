"""Preferences against PostgreSQL: a change keeps what is not ours, is checked before it is stored, and is announced."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest
from starlette.applications import Starlette

from butlers.errors import ValidationError
from butlers.outbound import MIGRATIONS
from butlers.outbound.change_log import MOST_CHANGES
from butlers.outbound.changes import Change
from butlers.outbound.documents import QuietHoursDocument, read_preferences
from butlers.outbound.preferences import MOST_MUTES, PREFERENCE_TTL_S, ChangedBy
from butlers.outbound.quiet_hours import EVERY_DAY, QuietWindow
from butlers.outbound.unsubscribe import UnsubscribeDoor, UnsubscribeLinks
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database_uri
from tests.integration.outbound.given import OPERATOR, Process, counted, process

NIGHT = QuietHoursDocument(start_time="22:00", end_time="07:00", timezone="Europe/Berlin")

OF_ANNA = Change(table="preferences", keys=("anna",))


@pytest.fixture
async def dsn(postgres_server: EmbeddedPostgres) -> AsyncIterator[str]:
    async with cloned_database_uri(postgres_server, [MIGRATIONS]) as dsn:
        yield dsn


async def stored(one: Process, subject: str = "anna") -> Any:
    text = await one.database.fetchval("SELECT document::text FROM outbound.preferences WHERE subject_id = $1", subject)
    return json.loads(text) if text else None


async def test_every_change_keeps_what_is_not_ours(dsn: str) -> None:
    async with process(dsn, listens=False) as one:
        foreign = {"theme": "dark", "notifications": {"sound": "bell", "matrix": {"invoice": {"sms": False}}}}
        await one.store.replace("anna", json.dumps(foreign), by=OPERATOR)
        await one.store.set_matrix_cell("anna", "invoice", "email", True, by=OPERATOR)
        await one.store.set_matrix_cell("anna", "invoice", "sms", None, by=OPERATOR)
        await one.store.set_quiet_hours("anna", [NIGHT], by=OPERATOR)
        until = await one.store.mute("anna", one.clock.now() + timedelta(hours=2), by=OPERATOR)
        assert await stored(one) == {
            "theme": "dark",
            "notifications": {"sound": "bell", "matrix": {"invoice": {"email": True}}},
            "quietHours": [
                {"start_time": "22:00", "end_time": "07:00", "timezone": "Europe/Berlin", "days_of_week": []}
            ],
            "mutes": [{"until": until.isoformat()}],
        }
        await one.store.unmute("anna", by=OPERATOR)
        await one.store.set_quiet_hours("anna", [], by=OPERATOR)
        await one.store.set_matrix_cell("anna", "invoice", "email", None, by=OPERATOR)
        assert await stored(one) == {"theme": "dark", "notifications": {"sound": "bell", "matrix": {}}}


async def test_mutes_of_one_event_take_each_others_place_and_old_ones_go(dsn: str) -> None:
    async with process(dsn, listens=False) as one:
        now = one.clock.now()
        await one.store.mute("anna", now + timedelta(hours=1), by=OPERATOR)
        await one.store.mute("anna", now + timedelta(hours=3), "invoice", by=OPERATOR)
        await one.store.mute("anna", now + timedelta(hours=2), "invoice", by=OPERATOR)
        assert [mute.get("event") for mute in (await stored(one))["mutes"]] == [None, "invoice"]
        assert (await stored(one))["mutes"][1]["until"] == (now + timedelta(hours=2)).isoformat()
        one.clock.advance(3600)
        await one.store.mute("anna", now + timedelta(hours=5), "news", by=OPERATOR)
        assert [mute["event"] for mute in (await stored(one))["mutes"]] == ["invoice", "news"]
        for number in range(MOST_MUTES - 2):
            await one.store.mute("anna", now + timedelta(hours=5), f"event {number}", by=OPERATOR)
        with pytest.raises(ValidationError, match="at most"):
            await one.store.mute("anna", now + timedelta(hours=5), "one more", by=OPERATOR)


async def test_changes_at_once_are_all_kept(dsn: str) -> None:
    async with process(dsn, listens=False) as one, process(dsn, listens=False) as other:
        changes = [
            each.store.set_matrix_cell("anna", f"event{number}", "email", True, by=OPERATOR)
            for number in range(10)
            for each in (one, other)
        ]
        await asyncio.gather(*changes)
        assert len((await stored(one))["notifications"]["matrix"]) == 10


async def test_a_change_under_one_id_is_made_once_and_the_history_is_bounded(dsn: str) -> None:
    async with process(dsn, listens=False) as one:
        request = ChangedBy(name="telegram:4711", change_id=uuid4())
        await one.store.mute("anna", one.clock.now() + timedelta(hours=2), by=request)
        one.clock.advance(1)
        await one.store.unmute("anna", by=OPERATOR)
        await one.store.mute("anna", one.clock.now() + timedelta(hours=2), by=request)  # the request is worked on again
        assert "mutes" not in await stored(one)
        assert [(change["action"], change["changed_by"]) for change in await one.log.of("anna")] == [
            ("unmute", "operator:anna"),
            ("mute", "telegram:4711"),
        ]
        for _ in range(MOST_CHANGES + 5):
            await one.store.unmute("anna", by=OPERATOR)
        assert await one.database.fetchval("SELECT count(*) FROM outbound.changes") == MOST_CHANGES


@pytest.mark.parametrize(
    ("action", "values", "field"),
    [
        ("set_matrix_cell", ("", "email", True), "event"),
        ("set_matrix_cell", ("x" * 513, "email", True), "event"),
        ("set_matrix_cell", ("a\x00b", "email", True), "event"),
        ("set_matrix_cell", ("invoice", "No Channel", True), "channel"),
        ("replace", ("[]",), ""),
        ("replace", ('{"quietHours": {"start_time": "25:00"}}',), "quietHours.0.start_time"),
        ("replace", (json.dumps({"x": "y" * 70_000}),), "document"),
        ("replace", ('{"mutes": [{"until": "2999-01-01T00:00:00Z"}]}',), "mutes.0.until"),
        ("replace_organization", ('{"mutes": [{"until": "2026-01-01T00:00:00Z"}]}',), "mutes"),
    ],
)
async def test_a_wrong_change_is_refused_and_nothing_is_stored(
    dsn: str, action: str, values: tuple[Any, ...], field: str
) -> None:
    async with process(dsn, listens=False) as one:
        with pytest.raises(ValidationError) as raised:
            await getattr(one.store, action)("anna", *values, by=OPERATOR)
        assert raised.value.fields[0].field == field
        assert await stored(one) is None
        assert await one.log.of("anna") == []


async def test_a_mute_lies_ahead_and_lasts_thirty_days_at_most(dsn: str) -> None:
    async with process(dsn, listens=False) as one:
        for wrong in (timedelta(0), timedelta(seconds=-1), timedelta(days=30, seconds=1)):
            with pytest.raises(ValidationError):
                await one.store.mute("anna", one.clock.now() + wrong, by=OPERATOR)
        assert await stored(one) is None
        await one.store.mute("anna", one.clock.now() + timedelta(days=30), by=OPERATOR)


async def test_a_mute_that_has_ended_may_stay_in_a_document_that_is_stored_anew(dsn: str) -> None:
    async with process(dsn, listens=False) as one:
        document = {"mutes": [{"until": "2020-01-01T00:00:00Z"}]}
        await one.store.replace("anna", json.dumps(document), by=OPERATOR)
        assert await stored(one) == document
        with pytest.raises(ValidationError, match="mutes"):
            await one.store.replace_system(json.dumps(document), by=OPERATOR)


@pytest.mark.parametrize("event", ["x" * 512, "line\nbreak", "tab\tnews"])
async def test_every_event_that_a_message_may_carry_can_be_refused(dsn: str, event: str) -> None:
    async with process(dsn, listens=False) as one:
        await one.store.set_matrix_cell("anna", event, "email", False, by=OPERATOR)
        assert await stored(one) == {"notifications": {"matrix": {event: {"email": False}}}}


async def test_a_link_refuses_its_event_also_while_all_events_are_refused(dsn: str) -> None:
    async with process(dsn, listens=False) as one:
        links = UnsubscribeLinks(key=b"k" * 32, public_url="https://example.org")
        door = UnsubscribeDoor(links=links, store=one.store, cache=one.preferences, clock=one.clock)
        app = Starlette(routes=door.routes())
        await one.store.set_matrix_cell("anna", "*", "email", False, by=OPERATOR)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app)) as mail_program:
            link = links.url_for("anna", "news", "email")
            assert link is not None and (await mail_program.post(link)).status_code == 200
        await one.store.set_matrix_cell("anna", "*", "email", None, by=OPERATOR)
        assert await stored(one) == {"notifications": {"matrix": {"news": {"email": False}}}}


async def test_single_changes_and_whole_documents_at_once_do_not_wait_for_each_other(dsn: str) -> None:
    async with process(dsn, listens=False) as one, process(dsn, listens=False) as other:
        for _ in range(MOST_CHANGES):  # from here on each change removes an old record
            await one.store.unmute("anna", by=OPERATOR)

        async def edits() -> None:
            for number in range(100):
                await one.store.set_matrix_cell("anna", f"event {number % 5}", "email", True, by=OPERATOR)

        async def replaces() -> None:
            for _ in range(100):
                await other.store.replace("anna", "{}", by=OPERATOR)

        await asyncio.gather(edits(), replaces())


async def test_what_cannot_be_read_is_replaced_and_not_repaired(dsn: str) -> None:
    async with process(dsn, listens=False) as one:
        broken = {"quietHours": {"start_time": "late"}}
        await one.database.execute("INSERT INTO outbound.preferences VALUES ('anna', $1, now())", broken)
        with pytest.raises(ValidationError, match="must be replaced as a whole"):
            await one.store.set_matrix_cell("anna", "invoice", "email", True, by=OPERATOR)
        assert await stored(one) == broken
        await one.store.replace("anna", "{}", by=OPERATOR)
        assert await stored(one) == {}


async def test_documents_are_remembered_for_an_hour_and_no_longer(dsn: str) -> None:
    async with process(dsn) as one:
        await one.store.set_matrix_cell("anna", "invoice", "email", True, by=OPERATOR)
        await one.hears_itself(OF_ANNA)
        assert await one.preferences.documents(["anna", "bob"]) == {
            "anna": '{"notifications": {"matrix": {"invoice": {"email": true}}}}',
            "bob": None,
        }
        reads = counted(one.database)
        await one.preferences.documents(["anna", "bob"])
        assert reads == []  # that nothing is stored is remembered, too
        one.clock.advance(PREFERENCE_TTL_S)
        await one.until(one.listener.is_live)  # its ping has been answered
        await one.preferences.documents(["anna", "bob"])
        assert len(reads) == 1


async def test_a_change_by_another_process_is_seen_in_this_one(dsn: str) -> None:
    async with process(dsn) as one, process(dsn) as other:
        assert await one.preferences.documents(["anna"]) == {"anna": None}
        assert (await one.preferences.organization("acme"), await one.preferences.system()) == (None, None)

        await other.store.set_matrix_cell("anna", "invoice", "email", False, by=OPERATOR)
        await other.store.replace_organization("acme", '{"theme": 1}', by=OPERATOR)
        await other.store.replace_system('{"channels": ["email"]}', by=OPERATOR)
        await one.hears(Change(table="defaults", keys=("system",)))
        read = read_preferences((await one.preferences.documents(["anna"]))["anna"])
        assert read.opinions("invoice") == {"email": False}
        assert await one.preferences.organization("acme") == '{"theme": 1}'
        assert await one.preferences.system() == '{"channels": ["email"]}'

        # By hand, while this process does not listen, and after it listens again.
        await other.database.execute("SELECT pg_terminate_backend($1)", one.pids[0])
        await one.until(lambda: not one.listener.is_live())
        await other.database.execute("DELETE FROM outbound.preferences")
        assert await one.preferences.documents(["anna"]) == {"anna": None}
        one.clock.advance(0.2)
        await one.until(one.listener.is_live)
        await other.database.execute("INSERT INTO outbound.preferences VALUES ('anna', '{}', now())")
        await one.hears(Change(table="preferences", keys=("anna",)))
        assert await one.preferences.documents(["anna"]) == {"anna": "{}"}


async def test_a_change_releases_held_messages_and_a_failure_there_does_not_undo_it(dsn: str) -> None:
    released: list[str] = []

    async def release(subject_id: str) -> None:
        released.append(subject_id)
        raise RuntimeError("the queue is away")

    async with process(dsn, listens=False) as one:
        one.store.on_change = release
        await one.store.unmute("anna", by=OPERATOR)
        assert released == ["anna"] and await stored(one) == {}


@pytest.mark.scenario("D4-008")
async def test_matrices_and_quiet_hours_are_normalised_through_the_cache(dsn: str) -> None:
    async with process(dsn) as one:
        document = {
            "notifications": {"matrix": {"invoice": {"email": True, "sms": False, "push": None}, "news": {}}},
            "quietHours": {"start_time": "22:00", "end_time": "07:00", "timezone": "Europe/Berlin"},
        }
        await one.store.replace("anna", json.dumps(document), by=OPERATOR)
        await one.hears_itself(OF_ANNA)
        texts = await one.preferences.documents(["anna", "nobody"])
        read, unknown = read_preferences(texts["anna"]), read_preferences(texts["nobody"])
        # An unspecified cell, and an explicit null, are no opinion; a single window becomes one of every day.
        assert read.opinions("invoice") == {"email": True, "sms": False}
        assert read.opinions("news") == read.opinions("other") == {} == unknown.opinions("invoice")
        window = QuietWindow(start="22:00", end="07:00", timezone="Europe/Berlin", days=tuple(sorted(EVERY_DAY)))
        assert read.quiet_hours.windows == (window,)
        assert unknown.quiet_hours.windows == ()
        # Read again without a query, and read anew after a change.
        reads = counted(one.database)
        assert read_preferences((await one.preferences.documents(["anna"]))["anna"]) == read
        assert reads == []
        await one.store.set_quiet_hours("anna", [], by=OPERATOR)
        changed = read_preferences((await one.preferences.documents(["anna"]))["anna"])
        assert changed.quiet_hours.windows == () and changed.opinions("invoice") == read.opinions("invoice")
