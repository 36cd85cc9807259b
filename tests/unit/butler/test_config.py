"""The rules of butler.toml (seed 001 section 11): every mistake names the file, the key and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.errors import ConfigurationError
from butlers.roster import ButlerConfig, check_credentials, load_butler, load_roster

SECRET = "123456:correct-horse-battery-staple"
MINIMUM = """
[butler]
name = "finance"
port = 40105
description = "Receipts and bills"

[butler.db]
schema = "finance"
"""
BOTH_CHANNELS = """
[modules.telegram.bot]
[modules.telegram.user]
[modules.email.bot]
[modules.email.user]
"""


def write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "butler.toml").write_text(text, encoding="utf-8")
    return folder


def load(folder: Path, addition: str = "") -> ButlerConfig:
    return load_butler(write(folder, MINIMUM + addition))


def mistake(folder: Path, text: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        load_butler(write(folder, text))
    error = caught.value
    assert error.source == str(folder / "butler.toml")
    assert error.remedy
    assert error.source in str(error) and error.key in str(error) and error.remedy in str(error)
    return error


def test_a_short_file_is_completed_with_the_defaults(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert (config.name, config.butler.port, config.schema_name) == ("finance", 40105, "finance")
    assert config.butler.db.name == "butlers"
    assert config.butler.runtime.type == "local"
    assert config.butler.runtime.max_concurrent_sessions == 3
    assert config.butler.security.trusted_route_callers == ["switchboard"]
    assert config.butler.schedule == []
    assert config.modules.enabled() == ()
    assert config.source == str(tmp_path / "butler.toml")


def test_instructions_and_skills_come_from_the_folder(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Be brief.")
    (tmp_path / "skills" / "b").mkdir(parents=True)
    (tmp_path / "skills" / "a").mkdir()
    (tmp_path / "skills" / "README").write_text("not a skill")
    config = load(tmp_path)
    assert config.instructions == "Be brief."
    assert config.skills == ("a", "b")


@pytest.mark.parametrize(
    ("addition", "key"),
    [
        ("[surprise]\n", "surprise"),
        ("[butler.surprise]\n", "butler.surprise"),
        ("[butler.runtime]\nmodle = 'x'\n", "butler.runtime.modle"),
        ("[buffer]\nqueue_size = 5\n", "buffer.queue_size"),
        ("[delivery]\nretries = 5\n", "delivery.retries"),
        ("[modules.pigeon]\n", "modules.pigeon"),
        ("[modules.telegram.bot]\ntoken_environment = 'A'\n", "modules.telegram.bot.token_environment"),
        ("[modules.telegram.friend]\n", "modules.telegram.friend"),
        ("[modules.memory]\nsize = 1\n", "modules.memory.size"),
        ("[[butler.schedule]]\nname='a'\ncron='* * * * *'\nprompt='p'\nevery=1\n", "butler.schedule.0.every"),
    ],
)
def test_an_unknown_key_is_refused(tmp_path: Path, addition: str, key: str) -> None:
    error = mistake(tmp_path, MINIMUM + addition)
    assert (error.key, error.problem) == (key, "unknown key")


@pytest.mark.parametrize("key", ["instructions", "skills", "source"])
def test_what_the_folder_says_cannot_be_said_in_the_file(tmp_path: Path, key: str) -> None:
    error = mistake(tmp_path, f"{key} = 'x'\n{MINIMUM}")
    assert (error.key, error.problem) == (key, "unknown key")


@pytest.mark.parametrize(
    ("addition", "key"),
    [
        (f"[modules.telegram.bot]\ntoken = '{SECRET}'\n", "modules.telegram.bot.token"),
        (f"[modules.email.bot]\npassword = '{SECRET}'\n", "modules.email.bot.password"),
        (f"[butler.runtime]\napi_key = '{SECRET}'\n", "butler.runtime.api_key"),
        (f"[butler.runtime]\nAPIKEY = '{SECRET}'\n", "butler.runtime.APIKEY"),
        (f"[made_up]\nclient_secret = '{SECRET}'\n", "made_up.client_secret"),
        (
            f"[[butler.schedule]]\nname='a'\ncron='* * * * *'\nprompt='p'\njob_args={{db_password='{SECRET}'}}\n",
            "butler.schedule.0.job_args.db_password",
        ),
    ],
)
def test_a_secret_in_the_file_is_refused_and_never_repeated(tmp_path: Path, addition: str, key: str) -> None:
    error = mistake(tmp_path, MINIMUM + addition)
    assert error.key == key
    assert error.problem == "secrets must not stand in butler.toml"
    assert f"{key}_env" in error.remedy
    assert SECRET not in str(error)


@pytest.mark.parametrize("name", ["", " ", "1TOKEN", "BUTLER-TOKEN", "BUTLER TOKEN", "A=B", SECRET, "TÖKEN", "A\\n"])
@pytest.mark.parametrize(
    ("scope", "field"),
    [
        ("telegram.bot", "token_env"),
        ("telegram.user", "token_env"),
        ("email.bot", "address_env"),
        ("email.bot", "password_env"),
        ("email.user", "password_env"),
    ],
)
def test_a_bad_variable_name_is_refused_even_in_a_disabled_scope(
    tmp_path: Path, scope: str, field: str, name: str
) -> None:
    error = mistake(tmp_path, f'{MINIMUM}[modules.{scope}]\nenabled = false\n{field} = "{name}"\n')
    assert error.key == f"modules.{scope}.{field}"
    assert "name of an environment variable" in error.problem
    assert SECRET not in str(error)


@given(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,30}", fullmatch=True))
def test_every_proper_variable_name_is_taken(name: str) -> None:
    document: dict[str, Any] = {
        "butler": {"name": "a", "port": 1, "description": "d", "db": {"schema": "a"}},
        "modules": {"telegram": {"bot": {"token_env": name}}},
    }
    assert list(ButlerConfig.model_validate(document).modules.required_variables()) == [
        ("modules.telegram.bot.token_env", name)
    ]


def test_the_default_variables_are_those_of_the_documents(tmp_path: Path) -> None:
    addition = BOTH_CHANNELS.replace("user]", "user]\nenabled = true")
    assert dict(load(tmp_path, addition).modules.required_variables()) == {
        "modules.telegram.bot.token_env": "BUTLER_TELEGRAM_TOKEN",
        "modules.telegram.user.token_env": "USER_TELEGRAM_TOKEN",
        "modules.email.bot.address_env": "BUTLER_EMAIL_ADDRESS",
        "modules.email.bot.password_env": "BUTLER_EMAIL_PASSWORD",
        "modules.email.user.address_env": "USER_EMAIL_ADDRESS",
        "modules.email.user.password_env": "USER_EMAIL_PASSWORD",
    }


COMPLETE = {"BUTLER_TELEGRAM_TOKEN": "t", "BUTLER_EMAIL_ADDRESS": "a@b.example", "BUTLER_EMAIL_PASSWORD": "p"}


@pytest.mark.parametrize("missing", sorted(COMPLETE))
@pytest.mark.parametrize("how", ["absent", "empty"])
def test_a_missing_variable_of_an_enabled_scope_blocks_the_start(tmp_path: Path, missing: str, how: str) -> None:
    config = load(tmp_path, BOTH_CHANNELS)
    environment = COMPLETE | {missing: ""}
    if how == "absent":
        del environment[missing]
    with pytest.raises(ConfigurationError) as caught:
        check_credentials(config, environment)
    assert missing in caught.value.problem
    assert caught.value.key.startswith("modules.")
    assert caught.value.source == config.source


def test_a_disabled_scope_needs_no_variable(tmp_path: Path) -> None:
    check_credentials(load(tmp_path, BOTH_CHANNELS), COMPLETE)  # the user scopes are off unless they say otherwise
    check_credentials(load(tmp_path, "[modules.telegram.bot]\nenabled = false\n"), {})


def test_the_configured_name_is_the_one_that_is_required(tmp_path: Path) -> None:
    config = load(tmp_path, "[modules.telegram.bot]\ntoken_env = 'MY_BOT'\n")
    check_credentials(config, {"MY_BOT": "t"})
    with pytest.raises(ConfigurationError, match="MY_BOT"):
        check_credentials(config, {"BUTLER_TELEGRAM_TOKEN": "t"})


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (MINIMUM.replace("40105", "0"), "butler.port"),
        (MINIMUM.replace("40105", "65536"), "butler.port"),
        (MINIMUM.replace("40105", "'40105'"), "butler.port"),
        (MINIMUM.replace("40105", "true"), "butler.port"),
        (MINIMUM.replace('name = "finance"', 'name = "Finance"'), "butler.name"),
        (MINIMUM.replace('name = "finance"', 'name = ""'), "butler.name"),
        (MINIMUM.replace('schema = "finance"', "schema = 'a; drop'"), "butler.db.schema"),
        (MINIMUM.replace('schema = "finance"', ""), "butler.db.schema"),
        (MINIMUM.replace("Receipts and bills", ""), "butler.description"),
        (MINIMUM + "[butler.runtime]\ntype = 'gpt'\n", "butler.runtime.type"),
        (MINIMUM + "[butler.runtime]\nmax_concurrent_sessions = 0\n", "butler.runtime.max_concurrent_sessions"),
        (MINIMUM + "[butler.runtime]\ntimeout_s = 0\n", "butler.runtime.timeout_s"),
        (MINIMUM + "[buffer]\nqueue_capacity = 0\n", "buffer.queue_capacity"),
        (MINIMUM + "[buffer]\nworker_count = 1.5\n", "buffer.worker_count"),
        (MINIMUM + "[delivery]\njitter = 1.1\n", "delivery.jitter"),
        (MINIMUM + "[delivery.timeout_s]\ntelegram = 'long'\n", "delivery.timeout_s.telegram"),
        (MINIMUM + "[modules]\ntelegram = true\n", "modules.telegram"),
        (MINIMUM + "[modules.calendar]\nprovider = 'outlook'\n", "modules.calendar.provider"),
        ("", "butler"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(tmp_path: Path, text: str, key: str) -> None:
    assert mistake(tmp_path, text).key == key


@pytest.mark.parametrize(
    "cron", ["", "* * * *", "* * * * * *", "@daily", "61 * * * *", "every day", "0 0 31 2 *", "0 0 30 2 *"]
)
def test_a_schedule_that_never_or_not_so_runs_is_refused(tmp_path: Path, cron: str) -> None:
    error = mistake(tmp_path, f"{MINIMUM}[[butler.schedule]]\nname='a'\ncron='{cron}'\nprompt='p'\n")
    assert error.key == "butler.schedule.0.cron"


@pytest.mark.parametrize("what", ["dispatch_mode='job'\nprompt='p'", "dispatch_mode='prompt'\njob_name='j'", ""])
def test_a_schedule_must_say_what_to_run(tmp_path: Path, what: str) -> None:
    error = mistake(tmp_path, f"{MINIMUM}[[butler.schedule]]\nname='a'\ncron='* * * * *'\n{what}\n")
    assert error.key == "butler.schedule.0"
    assert "needs" in error.problem


def test_schedule_names_are_unique(tmp_path: Path) -> None:
    entry = "[[butler.schedule]]\nname='a'\ncron='* * * * *'\nprompt='p'\n"
    assert mistake(tmp_path, MINIMUM + entry + entry).key == "butler.schedule"


def test_what_is_no_toml_is_refused(tmp_path: Path) -> None:
    assert mistake(tmp_path, "[butler\n").problem.startswith("not valid TOML")
    (tmp_path / "butler.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(ConfigurationError, match="not valid TOML"):
        load_butler(tmp_path)


def test_a_folder_without_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="file not found"):
        load_butler(tmp_path)
    with pytest.raises(ConfigurationError, match=r"no butler\.toml found"):
        load_roster(tmp_path)


@pytest.mark.parametrize(
    ("key", "second"),
    [
        ("butler.name", MINIMUM.replace("40105", "40106").replace('schema = "finance"', 'schema = "travel"')),
        ("butler.port", MINIMUM.replace("finance", "travel")),
        ("butler.db.schema", MINIMUM.replace("40105", "40106").replace('name = "finance"', 'name = "travel"')),
    ],
)
def test_names_ports_and_schemas_are_distinct(tmp_path: Path, key: str, second: str) -> None:
    write(tmp_path / "a", MINIMUM)
    write(tmp_path / "b", second)
    with pytest.raises(ConfigurationError) as caught:
        load_roster(tmp_path)
    assert caught.value.key == key
    assert str(tmp_path / "a" / "butler.toml") in caught.value.problem
    assert caught.value.source == str(tmp_path / "b" / "butler.toml")


def test_a_roster_is_found_by_name(tmp_path: Path) -> None:
    write(tmp_path / "some folder", MINIMUM)
    write(tmp_path / "b", MINIMUM.replace("40105", "40106").replace("finance", "travel"))
    (tmp_path / "notes").mkdir()
    assert sorted(load_roster(tmp_path)) == ["finance", "travel"]
