"""The shipped roster is the one that the source documents configure."""

from __future__ import annotations

import pytest

from butlers.butler.modules import in_dependency_order
from butlers.daemon.settings import shipped_roster
from butlers.roster import ButlerConfig, load_roster

PORTS = {
    "switchboard": 40100,
    "general": 40101,
    "relationship": 40102,
    "health": 40103,
    "messenger": 40104,
    "finance": 40105,
    "travel": 40106,
}


@pytest.fixture(scope="module")
def roster() -> dict[str, ButlerConfig]:
    return load_roster(shipped_roster())


def test_seven_butlers_each_on_its_port(roster: dict[str, ButlerConfig]) -> None:
    assert {name: config.butler.port for name, config in roster.items()} == PORTS


@pytest.mark.parametrize("name", sorted(PORTS))
def test_each_has_its_schema_in_the_one_database_and_trusts_switchboard(
    roster: dict[str, ButlerConfig], name: str
) -> None:
    butler = roster[name].butler
    assert (butler.db.name, butler.db.schema_name) == ("butlers", name)
    assert butler.security.trusted_route_callers == ["switchboard"]


@pytest.mark.parametrize("name", sorted(PORTS))
def test_each_runs_codex_with_three_sessions(roster: dict[str, ButlerConfig], name: str) -> None:
    runtime = roster[name].butler.runtime
    assert (runtime.type, runtime.max_concurrent_sessions) == ("codex", 3)


def test_switchboard_names_its_model(roster: dict[str, ButlerConfig]) -> None:
    assert roster["switchboard"].butler.runtime.model == "gpt-5.3-codex-spark"


def test_switchboard_keeps_six_native_schedules(roster: dict[str, ButlerConfig]) -> None:
    schedules = roster["switchboard"].butler.schedule
    assert {entry.name: entry.cron for entry in schedules} == {
        "connector-stats-hourly-rollup": "5 * * * *",
        "connector-stats-daily-rollup": "15 0 * * *",
        "connector-stats-pruning": "30 1 * * *",
        "memory-consolidation": "0 */6 * * *",
        "memory-episode-cleanup": "0 4 * * *",
        "eligibility-sweep": "*/5 * * * *",
    }
    assert {entry.dispatch_mode for entry in schedules} == {"job"}
    assert {entry.job_name for entry in schedules} == {entry.name.replace("-", "_") for entry in schedules}
    assert all(entry.enabled for entry in schedules)


def test_messenger_has_no_schedules_and_no_skills(roster: dict[str, ButlerConfig]) -> None:
    assert roster["messenger"].butler.schedule == []
    assert roster["messenger"].skills == ()


def test_messenger_is_described_as_the_delivery_plane(roster: dict[str, ButlerConfig]) -> None:
    assert roster["messenger"].butler.description == "Outbound delivery execution plane for Telegram and Email"


def test_switchboards_buffer(roster: dict[str, ButlerConfig]) -> None:
    buffer = roster["switchboard"].buffer
    assert (buffer.queue_capacity, buffer.worker_count) == (100, 3)
    assert (buffer.scanner_interval_s, buffer.scanner_grace_s, buffer.scanner_batch_size) == (30, 10, 50)


@pytest.mark.parametrize(
    ("name", "modules"),
    [("switchboard", {"calendar", "telegram", "email", "memory"}), ("messenger", {"calendar", "telegram", "email"})],
)
def test_the_doors_modules_use_the_bot_and_never_the_user(
    roster: dict[str, ButlerConfig], name: str, modules: set[str]
) -> None:
    loaded = roster[name].modules
    assert set(loaded.enabled()) == modules
    assert loaded.calendar is not None and loaded.telegram is not None and loaded.email is not None
    assert (loaded.calendar.provider, loaded.calendar.conflicts) == ("google", "suggest")
    assert (loaded.telegram.bot.enabled, loaded.telegram.user.enabled) == (True, False)
    assert (loaded.email.bot.enabled, loaded.email.user.enabled) == (True, False)
    assert {variable for _, variable in loaded.required_variables()} == {
        "BUTLER_TELEGRAM_TOKEN",
        "BUTLER_EMAIL_ADDRESS",
        "BUTLER_EMAIL_PASSWORD",
    }


def test_the_modules_of_every_butler_can_be_ordered(roster: dict[str, ButlerConfig]) -> None:
    for config in roster.values():
        assert sorted(in_dependency_order(config.modules.enabled())) == sorted(config.modules.enabled())


def test_every_specialist_says_what_it_answers_to(roster: dict[str, ButlerConfig]) -> None:
    for name in set(PORTS) - {"switchboard", "messenger", "general"}:
        assert roster[name].butler.registry.triggers


def test_every_butler_has_instructions(roster: dict[str, ButlerConfig]) -> None:
    assert [name for name, config in roster.items() if not config.instructions.strip()] == []
