"""The pipeline comes to the permissions that the online service reads: roles, everyone, organizations and denials."""

from __future__ import annotations

import random
from collections.abc import Mapping
from uuid import UUID, uuid4

import pytest
from benchmarks.planning import people
from benchmarks.planning.recipients import HORIZON
from pyspark.sql import SparkSession

from butlers.clock import ManualClock
from butlers.outbound import MIGRATIONS
from butlers.outbound.change_log import ChangeLog
from butlers.outbound.changes import ChangeListener
from butlers.outbound.entitlements import EVERYONE, StoredEntitlements
from butlers.outbound.values import Message
from butlers.pipeline.sources.audience import read_circumstances
from butlers.pipeline.sources.postgres import read_table, snapshots
from butlers.pipeline.tables.deliveries import ENTITLEMENTS, MEMBERSHIPS
from butlers.pipeline.transforms.audience_plan import effective_permissions
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database_uri

SUBJECTS = [f"person-{number}" for number in range(60)] + ["campaigns", "role:staff"]
ROLES, ORGANIZATIONS = ("staff", "on_call", "guests"), ("", "acme", "other")
PERMISSIONS = ("messages:receive:*", "messages:receive:sms", "messages:*:*", "!messages:receive:email", "!messages:*:*")


async def settle(store: StoredEntitlements) -> None:
    """The same people hold all kinds of things at every run; some hold nothing of their own."""
    chance = random.Random(4)
    for _ in range(80):
        holder = chance.choice([*SUBJECTS[5:], *(f"role:{role}" for role in ROLES), EVERYONE])
        await store.grant(
            holder, chance.choice(PERMISSIONS), organization_id=chance.choice(ORGANIZATIONS), changed_by="test"
        )
    for _ in range(80):
        member, role = chance.choice(SUBJECTS[:-1]), chance.choice(ROLES)
        await store.join(member, role, organization_id=chance.choice(ORGANIZATIONS), changed_by="test")


def in_spark(spark: SparkSession, dsn: str, organization: str) -> Mapping[str, frozenset[str]]:
    with snapshots():
        tables = (read_table(spark, dsn, ENTITLEMENTS), read_table(spark, dsn, MEMBERSHIPS))
        own, of_everyone = effective_permissions(*tables, organization)
        [(everyone,)] = of_everyone.collect()
        held = {row["recipient_id"]: frozenset(row["own"]) for row in own.collect()}
    return {subject: held.get(subject, frozenset()) | frozenset(everyone) for subject in SUBJECTS}


@pytest.mark.timeout(300)
async def test_permissions_are_the_online_services(spark: SparkSession, postgres_server: EmbeddedPostgres) -> None:
    async with cloned_database_uri(postgres_server, [MIGRATIONS]) as dsn, await Database.connect(dsn) as database:
        clock = ManualClock()
        store = StoredEntitlements(
            database=database,
            clock=clock,
            log=ChangeLog(database=database, new_id=uuid4),
            listener=ChangeListener(connect=lambda: None, clock=clock),  # type: ignore[arg-type, return-value]
        )
        await settle(store)
        seen = set()
        for organization in ORGANIZATIONS:
            online = await store.permissions_of(SUBJECTS, organization_id=organization or None)
            assert in_spark(spark, dsn, organization) == online
            message = Message(id=UUID(int=1), sender_id="campaigns", event="x", organization_id=organization or None)
            circumstances, _ = read_circumstances(dsn, message, now=people.NOW, horizon=people.NOW + HORIZON)
            assert circumstances.sender_permissions == online["campaigns"]
            seen |= set(online.values())
        assert len(seen) > 10  # so many kinds of people, or the comparison says little

        # Without the two grants of a fresh system, who holds nothing may do nothing.
        await database.execute("DELETE FROM outbound.entitlements WHERE subject_id = $1", EVERYONE)
        assert (
            in_spark(spark, dsn, "")["person-0"]
            == (await store.permissions_of(["person-0"], organization_id=None))["person-0"]
        )
