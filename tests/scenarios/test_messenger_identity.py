"""What Messenger is and loads, what it must not have, and the configuration that stops a start."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from butlers.daemon.cli.exits import CONFIGURATION
from butlers.daemon.settings import shipped_roster
from butlers.daemon.simulation import Simulated, simulated_environment
from butlers.daemon.system import System
from butlers.errors import ConfigurationError
from butlers.ids import Uuid7Factory
from butlers.roster import load_roster
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import call, changed_roster, deliver, execute, route, wish
from tests.system import running_system


@pytest.mark.scenario("M0-001")
@pytest.mark.scenario("M0-002")
@pytest.mark.scenario("M0-031")
@pytest.mark.scenario("M0-032")
async def test_messenger_is_a_delivery_plane_without_schedules_or_skills(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    shipped = load_roster(shipped_roster())["messenger"]
    assert shipped.butler.port == 40104
    assert shipped.butler.description == "Outbound delivery execution plane for Telegram and Email"
    assert (shipped.butler.runtime.type, shipped.butler.runtime.max_concurrent_sessions) == ("codex", 3)
    assert (shipped.butler.db.name, shipped.schema_name) == ("butlers", "messenger")
    telegram, email, calendar = shipped.modules.telegram, shipped.modules.email, shipped.modules.calendar
    assert telegram is not None
    assert email is not None
    assert calendar is not None
    assert (calendar.provider, calendar.conflicts) == ("google", "suggest")
    assert (telegram.bot.enabled, telegram.user.enabled, telegram.bot.token_env) == (
        True,
        False,
        "BUTLER_TELEGRAM_TOKEN",
    )
    assert (email.bot.enabled, email.user.enabled) == (True, False)
    assert (email.bot.address_env, email.bot.password_env) == ("BUTLER_EMAIL_ADDRESS", "BUTLER_EMAIL_PASSWORD")
    assert shipped.butler.schedule == []
    assert shipped.skills == ()
    assert not (shipped_roster() / "messenger" / "skills").exists()

    async with running_system(tmp_path, postgres_server) as running:
        status = await call(running, "messenger", "status", {})
        assert set(status["modules"]) == {"calendar", "telegram", "email"}
        (registered,) = [
            b for b in (await call(running, "switchboard", "list_butlers", {}))["butlers"] if b["name"] == "messenger"
        ]
        assert registered["description"] == shipped.butler.description
        assert set(registered["modules"]) == {"calendar", "telegram", "email"}
        assert (await call(running, "messenger", "schedule_list", {}))["schedules"] == []
        assert (await call(running, "messenger", "tick", {}))["ran"] == []
        schemas = await running.database.fetch(
            "select table_schema from information_schema.tables where table_name = 'delivery_requests'"
        )
        assert [row["table_schema"] for row in schemas] == ["messenger"]


async def test_a_disabled_channel_is_not_served_and_asks_for_no_credentials(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    roster = changed_roster(
        tmp_path, "messenger", (r"^\[modules\.email\.bot\]", "[modules.email.bot]\nenabled = false")
    )
    async with running_system(tmp_path, postgres_server, roster_dir=roster) as running:
        assert (await deliver(running, wish("by telegram")))["status"] == "ok"
        refused = await execute(running, route(running, wish("by mail", channel="email")))
        assert refused["error"]["fields"][0]["field"] == "delivery.channel"


@pytest.mark.scenario("M1-040")
async def test_credentials_are_identity_scoped_and_their_variable_names_are_checked(tmp_path: Path) -> None:
    for number, name in enumerate(("", " ", "1TOKEN", "A-B", "A B", "TOKEN=x")):
        change = (r'token_env = "BUTLER_TELEGRAM_TOKEN"', f'token_env = "{name}"')
        with pytest.raises(ConfigurationError) as refused:
            load_roster(changed_roster(tmp_path / str(number), "messenger", change))
        assert "modules.telegram.bot.token_env" in str(refused.value)
        assert "butler.toml" in str(refused.value)
        assert refused.value.remedy
    await _start_refused(tmp_path / "0" / "roster", "modules.telegram.bot.token_env")
    # A credential belongs to a scope, not to the module as a whole.
    with pytest.raises(ConfigurationError):
        load_roster(
            changed_roster(tmp_path / "unscoped", "messenger", (r"^\[modules\.telegram\.bot\]", "[modules.telegram]"))
        )


@pytest.mark.scenario("M1-041")
async def test_inline_secrets_are_refused_and_not_repeated(tmp_path: Path) -> None:
    inline = {
        "token": (r"^token_env = .*$", 'token = "123456:very-secret"'),
        "password": (r"^password_env = .*$", 'password = "very-secret"'),
        "api_key": (r"^provider = .*$", 'api_key = "very-secret"'),
    }
    for key, change in inline.items():
        with pytest.raises(ConfigurationError) as refused:
            load_roster(changed_roster(tmp_path / key, "messenger", change))
        assert refused.value.key.endswith(key)
        assert "very-secret" not in str(refused.value)
        assert "environment variable" in refused.value.remedy
    assert "very-secret" not in await _start_refused(tmp_path / "token" / "roster", "modules.telegram.bot.token")


@pytest.mark.scenario("M1-042")
async def test_a_missing_value_of_an_enabled_scope_stops_the_start_and_of_a_disabled_one_does_not(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server, names=["messenger"], start=False) as running:
        complete = simulated_environment(Simulated({"telegram", "mail"}), running.roster, {})
        assert complete.keys() == {"BUTLER_TELEGRAM_TOKEN", "BUTLER_EMAIL_ADDRESS", "BUTLER_EMAIL_PASSWORD"}

        def system(environment: dict[str, str]) -> System:
            return System(
                settings=running.settings,
                roster=running.roster,
                names=["messenger"],
                environment=environment,
                clock=running.clock,
                new_id=Uuid7Factory(running.clock),
            )

        for variable in complete:
            for given in ({}, {variable: ""}):
                environment: dict[str, Any] = {k: v for k, v in complete.items() if k != variable} | given
                with pytest.raises(ConfigurationError, match=variable):
                    await system(environment).start()
        # Nothing is left listening, and the user scopes, which are off, were asked for nothing.
        whole = system(complete)
        await whole.start()
        await whole.stop()


async def _start_refused(roster: Path, key: str) -> str:
    """`butlers up` with that roster ends at once and names the key; what it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "butlers.daemon.cli", "up", "--data-dir", str(roster.parent / "data")),
        env=os.environ | {"BUTLERS_ROSTER": str(roster)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(30):
        said = (await process.communicate())[0].decode()
    assert process.returncode == CONFIGURATION, said
    assert key in said
    assert "Traceback" not in said
    return said
