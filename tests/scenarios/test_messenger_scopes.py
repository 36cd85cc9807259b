"""Bot and owner are two identities: each scope has its own credential, and neither is ever used for the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from butlers.daemon.cli.exits import CONFIGURATION
from butlers.errors import ConfigurationError
from butlers.storage.embedded import EmbeddedPostgres
from tests.integration.processes.command import butlers
from tests.ports import free_offset
from tests.scenarios.messenger_door import (
    attempts,
    call,
    changed_roster,
    deliver,
    mails,
    rows,
    sends,
    stored,
    wish,
)
from tests.system import RunningSystem, running_system

OWNERS_TOKEN = "888000002:simulated-owner-not-a-secret"
OWNERS_ID = 888000002
OWNER_MAIL = "owner@butlers.example"
TELEGRAM = (r"^\[modules\.telegram\.user\]\nenabled = false", "[modules.telegram.user]\nenabled = true")
EMAIL = (r"^\[modules\.email\.user\]\nenabled = false", "[modules.email.user]\nenabled = true")


async def send(running: RunningSystem, name: str = "telegram_send_message", **arguments: Any) -> dict[str, Any]:
    return await call(running, "messenger", name, arguments, caller="messenger")


async def said_by(running: RunningSystem, bot: int | None, chat: int) -> list[str]:
    """What that identity wrote into a chat; None is the bot."""
    whose = f"?bot={bot}" if bot else ""
    lines = (await running.control("GET", f"/chats/{chat}/transcript{whose}"))["messages"]
    return [line["text"] for line in lines]


async def keep(running: RunningSystem, *, secured: bool = True, **credentials: str) -> None:
    """Write credentials to the owner's contact, as a person would."""
    now, owner = running.clock.now(), uuid4()
    await running.database.execute(
        "insert into shared.contacts (id, name, is_owner, created_at, updated_at) values ($1, 'Owner', true, $2, $2)",
        owner,
        now,
    )
    for kind, value in credentials.items():
        await running.database.execute(
            "insert into shared.contact_info (id, contact_id, type, value, is_primary, secured, created_at)"
            " values ($1, $2, $3, $4, true, $6, $5)",
            uuid4(),
            owner,
            kind,
            value,
            now,
            secured,
        )


@pytest.mark.scenario("M1-048")
async def test_the_owners_scope_is_off_and_asks_for_nothing(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    # The variable is set, and still nothing uses it: the scope is not enabled.
    given = {"USER_TELEGRAM_TOKEN": OWNERS_TOKEN}
    async with running_system(tmp_path, postgres_server, environment=given) as running:
        running.telegram.world.add_bot(OWNERS_TOKEN, "owner")
        before = await stored(running)
        for name in ("telegram_send_message", "email_send_message"):
            refused = await send(running, name, message="as you", recipient="91", identity_scope="user")
            assert (refused["error"]["class"], refused["error"]["retryable"]) == ("validation_error", False)
            assert "scope user" in refused["error"]["message"]
        assert (await stored(running), await sends(running), await mails(running)) == (before, 0, [])
        assert (await deliver(running, wish("as the bot", recipient="91")))["status"] == "ok"
        assert (await said_by(running, None, 91), await said_by(running, OWNERS_ID, 91)) == (
            ["[health] as the bot"],
            [],
        )


@pytest.mark.scenario("M1-048")
async def test_each_scope_uses_its_own_token_and_never_the_others(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    roster = changed_roster(tmp_path, "messenger", TELEGRAM)
    given = {"USER_TELEGRAM_TOKEN": OWNERS_TOKEN}
    async with running_system(tmp_path, postgres_server, roster_dir=roster, environment=given) as running:
        running.telegram.world.add_bot(OWNERS_TOKEN, "owner")
        mine = await send(running, message="as you", recipient="92", identity_scope="user")
        assert mine["delivery"]["status"] == "delivered"
        await send(running, message="as the bot", recipient="92")
        await deliver(running, wish("routed", recipient="92"))
        assert await said_by(running, OWNERS_ID, 92) == ["[messenger] as you"]
        assert await said_by(running, None, 92) == ["[messenger] as the bot", "[health] routed"]
        assert [row["identity_scope"] for row in await rows(running)] == ["user", "bot", "bot"]
        # Circuits and budgets are apart, too.
        circuits = (await call(running, "messenger", "messenger_circuit_status", {}))["channels"]
        assert {"telegram.bot", "telegram.user"} <= circuits.keys()
        # A token that is not valid any more fails in its own scope; nothing falls back to the other identity.
        del running.telegram.world.state.bots[OWNERS_ID]
        failed = await send(running, message="who am I?", recipient="92", identity_scope="user")
        assert failed["error"]["class"] == "target_unavailable"
        assert [row["outcome"] for row in await attempts(running, (await rows(running))[-1]["id"])] == ["rejected"]
        assert len(await said_by(running, None, 92)) == 2
        assert (await deliver(running, wish("still me", recipient="92")))["status"] == "ok"


@pytest.mark.scenario("M1-048")
async def test_an_enabled_scope_without_a_value_stops_the_start_and_says_what_to_do(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    roster = changed_roster(tmp_path, "messenger", TELEGRAM)
    async with running_system(tmp_path, postgres_server, roster_dir=roster, start=False) as running:
        with pytest.raises(ConfigurationError) as refused:
            await running.start()
    assert refused.value.key == "modules.telegram.user.token_env"
    assert "messenger/butler.toml" in str(refused.value)
    assert "USER_TELEGRAM_TOKEN" in str(refused.value)
    assert refused.value.remedy
    # The same for whoever types it.
    with free_offset() as offset:
        away = ("--data-dir", tmp_path / "fresh", "--port-offset", offset)
        told = butlers("up", *away, environment={"BUTLERS_ROSTER": str(roster)})
    assert told.returncode == CONFIGURATION
    for word in ("messenger/butler.toml", "modules.telegram.user.token_env", "USER_TELEGRAM_TOKEN"):
        assert word in told.stderr


@pytest.mark.scenario("M1-048")
async def test_the_owners_contact_may_keep_the_credentials(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    roster = changed_roster(tmp_path, "messenger", TELEGRAM, EMAIL)
    async with running_system(tmp_path, postgres_server, roster_dir=roster, start=False) as running:
        running.telegram.world.add_bot(OWNERS_TOKEN, "owner")
        await keep(running, telegram_token=OWNERS_TOKEN, email=OWNER_MAIL, email_password="simulated")
        await running.start()
        await send(running, message="as you", recipient="93", identity_scope="user")
        assert await said_by(running, OWNERS_ID, 93) == ["[messenger] as you"]
        friend = {"recipient": "friend@elsewhere.example", "subject": "s", "message": "m"}
        for scope in ("user", "bot"):
            answer = await send(running, "email_send_message", identity_scope=scope, **friend)
            assert answer["delivery"]["status"] == "delivered", answer
        assert [mail["from"] for mail in await mails(running)] == [OWNER_MAIL, "butler@butlers.example"]
        # What the contact keeps is a secret: no row and no answer repeats it.
        everything = str([*await rows(running), *await attempts(running)])
        assert OWNERS_TOKEN not in everything


async def test_what_is_not_marked_as_secured_is_no_credential(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    roster = changed_roster(tmp_path, "messenger", TELEGRAM)
    async with running_system(tmp_path, postgres_server, roster_dir=roster, start=False) as running:
        await keep(running, secured=False, telegram_token=OWNERS_TOKEN)
        with pytest.raises(ConfigurationError) as told:
            await running.start()
        assert told.value.key == "modules.telegram.user.token_env"


async def test_the_environment_goes_before_the_contact(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    roster = changed_roster(tmp_path, "messenger", TELEGRAM)
    given = {"USER_TELEGRAM_TOKEN": OWNERS_TOKEN}
    async with running_system(tmp_path, postgres_server, roster_dir=roster, environment=given, start=False) as running:
        running.telegram.world.add_bot(OWNERS_TOKEN, "owner")
        await keep(running, telegram_token="888000003:an-older-one")
        await running.start()
        answer = await send(running, message="as you", recipient="94", identity_scope="user")
        assert answer["delivery"]["status"] == "delivered"
        assert await said_by(running, OWNERS_ID, 94) == ["[messenger] as you"]
