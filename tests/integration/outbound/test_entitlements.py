"""Entitlements against PostgreSQL: roles, organizations, denials, and caches that hear of every change."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest

from butlers.clock import ManualClock
from butlers.errors import ConfigurationError, ValidationError
from butlers.outbound import MIGRATIONS
from butlers.outbound.changes import TRUST_S, Change, ChangeListener
from butlers.outbound.entitlements import EVERYONE, EntitlementService, PermissionGate, load_entitlement_service
from butlers.outbound.planning import Direction
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database_uri
from tests.integration.outbound.given import Process, counted, process

SEND, RECEIVE = "messages:send:*", "messages:receive:*"
BY = {"changed_by": "operator:anna"}


@pytest.fixture
async def dsn(postgres_server: EmbeddedPostgres) -> AsyncIterator[str]:
    async with cloned_database_uri(postgres_server, [MIGRATIONS]) as dsn:
        yield dsn


async def permissions(one: Process, subject: str, organization: str | None = None) -> frozenset[str]:
    return (await one.entitlements.permissions_of([subject], organization_id=organization))[subject]


async def test_a_fresh_system_permits_all_and_without_the_two_grants_it_denies(dsn: str) -> None:
    async with process(dsn) as one:
        assert await permissions(one, "anna") == {SEND, RECEIVE}
        for permission in (SEND, RECEIVE):
            assert await one.entitlements.revoke(EVERYONE, permission, **BY)
        assert await permissions(one, "anna") == frozenset()
        await one.entitlements.grant("anna", "messages:receive:email", **BY)
        granted = await one.gate.granted(["anna", "bob"], Direction.RECEIVE, ["email", "sms"], organization_id=None)
        assert granted == {"anna": frozenset({"email"}), "bob": frozenset()}


async def test_roles_and_organizations_come_together_and_a_denial_wins(dsn: str) -> None:
    async with process(dsn) as one:
        store = one.entitlements
        await store.revoke(EVERYONE, RECEIVE, **BY)
        await store.grant("role:staff", "messages:*:*", organization_id="acme", **BY)
        await store.grant("role:on_call", "messages:receive:sms", **BY)
        await store.join("anna", "staff", **BY)
        await store.join("bob", "staff", organization_id="other", **BY)
        await store.join("anna", "on_call", organization_id="acme", **BY)
        await store.grant("anna", "!messages:receive:email", organization_id="acme", **BY)

        assert await permissions(one, "anna") == {SEND}
        assert await permissions(one, "anna", "acme") == {
            SEND,
            "messages:*:*",
            "messages:receive:sms",
            "!messages:receive:email",
        }
        assert await permissions(one, "bob", "acme") == {SEND}  # his role is another organization's
        channels = ["email", "sms", "telegram"]
        granted = await one.gate.granted(["anna"], Direction.RECEIVE, channels, organization_id="acme")
        assert granted == {"anna": frozenset({"sms", "telegram"})}
        sending = await one.gate.granted(["anna"], Direction.SEND, channels, organization_id="acme")
        assert sending == {"anna": frozenset(channels)}

        # A denial of the whole direction excludes one person, whatever else is granted.
        await store.grant("anna", "!messages:*:*", **BY)
        assert await one.gate.granted(["anna"], Direction.SEND, channels, organization_id="acme") == {
            "anna": frozenset()
        }


async def test_a_thousand_and_one_subjects_are_one_read(dsn: str) -> None:
    async with process(dsn) as one:
        subjects = [f"person-{number}" for number in range(1_001)]
        reads = counted(one.database)
        found = await one.entitlements.permissions_of(subjects, organization_id=None)
        assert len(reads) == 1 and set(found) == set(subjects)
        await one.entitlements.permissions_of(subjects, organization_id=None)
        assert len(reads) == 1  # remembered
        one.clock.advance(TRUST_S - 1)  # and still so as long as the listener lives
        await one.entitlements.permissions_of(subjects, organization_id=None)
        assert len(reads) == 1
        with pytest.raises(ValidationError):
            await one.entitlements.permissions_of([*subjects, "one more"], organization_id=None)


async def test_a_change_by_another_process_or_by_hand_is_seen_at_once(dsn: str) -> None:
    async with process(dsn) as one, process(dsn) as other:
        assert await permissions(one, "anna") == {SEND, RECEIVE}
        assert await permissions(one, "bob") == {SEND, RECEIVE}
        reads = counted(one.database)

        # Another process denies, and only what is known of that person is read again.
        await other.entitlements.grant("anna", "!messages:receive:*", **BY)
        await one.hears(Change(table="entitlements", keys=("anna",)))
        assert "!messages:receive:*" in await permissions(one, "anna")
        await permissions(one, "bob")
        assert len(reads) == 1

        # SQL by hand, of a role: everybody is read again.
        await other.database.execute("DELETE FROM outbound.entitlements WHERE permission = $1", SEND)
        await one.hears(Change(table="entitlements", keys=(EVERYONE,)))
        assert await permissions(one, "bob") == {RECEIVE}

        # A bulk load of more people than a notification names, and a truncated table.
        await permissions(one, "p7")
        await other.database.execute(
            "INSERT INTO outbound.entitlements"
            " SELECT 'p' || n, 'messages:*:sms', now() FROM generate_series(1, 500) AS n"
        )
        await one.hears(Change(table="entitlements", keys=None))
        assert "messages:*:sms" in await permissions(one, "p7")
        one.seen.clear()
        await other.database.execute("TRUNCATE outbound.entitlements")
        await one.hears(Change(table="entitlements", keys=None))
        assert await permissions(one, "p7") == frozenset()

        # Nothing was changed, so nothing is announced; what follows is heard, in order.
        one.seen.clear()
        await other.database.execute("UPDATE outbound.memberships SET role = 'x' WHERE false")
        await other.entitlements.join("anna", "staff", **BY)
        await one.hears(Change(table="memberships", keys=("anna",)))
        assert [change.table for change in one.seen if change] == ["memberships"]


async def test_while_the_connection_is_lost_nothing_remembered_is_used(dsn: str) -> None:
    async with process(dsn) as one, process(dsn) as other:
        assert await permissions(one, "anna") == {SEND, RECEIVE}

        # The listening connection is cut; the virtual clock keeps it from coming back.
        await other.database.execute("SELECT pg_terminate_backend($1)", one.pids[0])
        await one.until(lambda: not one.listener.is_live())
        await other.entitlements.revoke(EVERYONE, SEND, **BY)
        assert await permissions(one, "anna") == {RECEIVE}
        await other.entitlements.grant(EVERYONE, SEND, **BY)
        assert await permissions(one, "anna") == {SEND, RECEIVE}

        # It comes back after its pause, and what was missed meanwhile is forgotten.
        one.seen.clear()
        one.clock.advance(0.2)
        await one.until(one.listener.is_live)
        assert len(one.pids) == 2 and one.seen[0] is None
        reads = counted(one.database)
        await permissions(one, "anna")
        await permissions(one, "anna")
        assert len(reads) == 1
        await other.entitlements.revoke(EVERYONE, SEND, **BY)
        await one.hears(Change(table="entitlements", keys=(EVERYONE,)))
        assert await permissions(one, "anna") == {RECEIVE}


async def test_a_connection_without_a_sign_of_life_is_not_trusted(dsn: str) -> None:
    async with process(dsn) as one:
        await permissions(one, "anna")
        reads = counted(one.database)
        one.listener._alive_at = one.clock.monotonic() - TRUST_S  # the last ping was answered so long ago
        await permissions(one, "anna")
        await permissions(one, "anna")
        assert len(reads) == 2


async def test_a_server_that_is_away_is_tried_again_with_longer_pauses() -> None:
    clock, attempts = ManualClock(), list[float]()

    async def connect() -> None:
        attempts.append(clock.monotonic())
        raise ConnectionRefusedError

    listener = ChangeListener(connect=connect, clock=clock)  # type: ignore[arg-type]
    running = asyncio.create_task(listener.run())
    for _ in range(400):
        await asyncio.sleep(0)
        clock.advance(0.1)
    running.cancel()
    pauses = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert pauses[:4] == pytest.approx([0.2, 0.4, 0.8, 1.6], abs=0.11)
    assert max(pauses) == pytest.approx(10.0, abs=0.2)
    assert not listener.is_live()


class Counting:
    """A company's own service."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[str, ...], str | None]] = []
        self.answer = {"anna": frozenset({"messages:receive:email", "!messages:receive:sms"})}

    async def permissions_of(
        self, subjects: Sequence[str], *, organization_id: str | None
    ) -> Mapping[str, frozenset[str]]:
        self.asked.append((tuple(subjects), organization_id))
        return self.answer


@pytest.mark.scenario("D4-005")
async def test_a_decision_is_composed_from_direction_and_channel_and_remembered_for_500_ms() -> None:
    clock, service = ManualClock(), Counting()
    listener = ChangeListener(connect=lambda: None, clock=clock)  # type: ignore[arg-type, return-value]
    gate = PermissionGate(entitlements=service, clock=clock, listener=listener)

    async def granted(direction: Direction, *channels: str, organization: str | None = None) -> frozenset[str]:
        return (await gate.granted(["anna"], direction, channels, organization_id=organization))["anna"]

    # Given messages:receive:email is granted and messages:receive:sms is denied.
    assert await granted(Direction.RECEIVE, "email", "sms") == {"email"}
    assert await granted(Direction.SEND, "email") == frozenset()
    assert len(service.asked) == 2  # the other direction is another permission

    # Within 500 ms the service is not asked again, whatever it would answer now.
    service.answer = {}
    clock.advance(0.499)
    assert await granted(Direction.RECEIVE, "email", "sms") == {"email"}
    assert len(service.asked) == 2
    # Another organization and another channel are other decisions.
    assert await granted(Direction.RECEIVE, "email", organization="acme") == frozenset()
    assert await granted(Direction.RECEIVE, "telegram") == frozenset()
    assert len(service.asked) == 4

    # After 500 ms it is.
    clock.advance(0.001)
    assert await granted(Direction.RECEIVE, "email", "sms") == frozenset()
    assert len(service.asked) == 5


async def test_the_gate_asks_in_parts_that_the_service_takes() -> None:
    clock, service = ManualClock(), Counting()
    listener = ChangeListener(connect=lambda: None, clock=clock)  # type: ignore[arg-type, return-value]
    gate = PermissionGate(entitlements=service, clock=clock, listener=listener)
    subjects = [f"p{number}" for number in range(2_500)]
    assert len(await gate.granted(subjects, Direction.RECEIVE, ["email"], organization_id=None)) == 2_500
    assert [len(part) for part, _ in service.asked] == [1_001, 1_001, 498]


@pytest.mark.parametrize(
    ("action", "values", "field"),
    [
        ("grant", ("anna", "messages:receive"), "permission"),
        ("grant", ("anna", "!!messages:receive:email"), "permission"),
        ("grant", ("", RECEIVE), "subject"),
        ("grant", ("a\nb", RECEIVE), "subject"),
        ("grant", ("role:No Role", RECEIVE), "role"),
        ("join", ("anna", "everyone"), "role"),
        ("join", ("anna", "No Role"), "role"),
        ("join", ("role:staff", "boss"), "subject"),
    ],
)
async def test_a_wrong_entitlement_is_refused_and_nothing_is_stored(
    dsn: str, action: str, values: tuple[str, str], field: str
) -> None:
    async with process(dsn, listens=False) as one:
        with pytest.raises(ValidationError) as raised:
            await getattr(one.entitlements, action)(*values, **BY)
        assert raised.value.fields[0].field == field
        assert await one.database.fetchval("SELECT count(*) FROM outbound.entitlements") == 2
        assert await one.database.fetchval("SELECT count(*) FROM outbound.memberships") == 0
        assert await one.database.fetchval("SELECT count(*) FROM outbound.changes") == 0


async def test_changes_are_on_record_and_a_repeat_changes_nothing(dsn: str) -> None:
    async with process(dsn, listens=False) as one:
        store = one.entitlements
        assert [await store.grant("anna", RECEIVE, organization_id="acme", **BY) for _ in range(2)] == [True, False]
        assert [await store.join("anna", "staff", **BY) for _ in range(2)] == [True, False]
        assert [await store.leave("anna", "staff", **BY) for _ in range(2)] == [True, False]
        recorded = await one.log.of("anna")
        assert {change["action"] for change in recorded} == {"grant", "join", "leave"} and len(recorded) == 3
        assert {change["changed_by"] for change in recorded} == {"operator:anna"}
        entitlements, memberships = await store.listed("anna", after=None, limit=10)
        assert [(row["permission"], row["organization_id"]) for row in entitlements] == [(RECEIVE, "acme")]
        assert memberships == []


def a_service() -> EntitlementService:
    return Counting()


def no_service() -> object:
    return object()


def broken() -> object:
    raise RuntimeError("secret")


def test_a_company_brings_its_own_service() -> None:
    assert isinstance(load_entitlement_service(f"{__name__}:a_service"), Counting)


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("nothing", "must be module:factory"),
        ("no.such.module:make", "cannot be imported"),
        (f"{__name__}:missing", "cannot be imported"),
        (f"{__name__}:SEND", "is not callable"),
        (f"{__name__}:no_service", "has no method permissions_of"),
        (f"{__name__}:broken", "the factory raised RuntimeError"),
    ],
)
def test_a_service_that_cannot_be_used_stops_the_start(reference: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as raised:
        load_entitlement_service(reference)
    assert "secret" not in str(raised.value)
