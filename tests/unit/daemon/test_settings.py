"""Flag over environment over file over default, and every mistake names its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from butlers.daemon.settings import Settings, default_data_dir, load_settings, variable_of
from butlers.errors import ConfigurationError
from butlers.simulators import simulator_ports


def load(tmp_path: Path, environment: dict[str, str] | None = None, file: str = "", **flags: Any) -> Settings:
    (tmp_path / "butlers.toml").write_text(file)
    return load_settings({"data_dir": tmp_path} | flags, environment or {})


def mistake(tmp_path: Path, environment: dict[str, str] | None = None, file: str = "", **flags: Any) -> Any:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, environment, file, **flags)
    return caught.value


def test_the_nearest_source_wins(tmp_path: Path) -> None:
    file, environment = "heartbeat_s = 1.0\n", {"BUTLERS_HEARTBEAT_S": "2"}
    assert load(tmp_path).heartbeat_s == 30
    assert load(tmp_path, file=file).heartbeat_s == 1
    assert load(tmp_path, environment, file).heartbeat_s == 2
    assert load(tmp_path, environment, file, heartbeat_s="3").heartbeat_s == 3


def test_ports_are_merged_one_by_one(tmp_path: Path) -> None:
    environment = {"BUTLERS_PORT_GENERAL": "2", "BUTLERS_PORT_HEALTH": "2", "BUTLERS_PORT_OFFSET": "7"}
    settings = load(tmp_path, environment, "[ports]\ngeneral = 1\ntravel = 1\n", ports={"health": "3"})
    assert settings.ports == {"general": 2, "travel": 1, "health": 3}
    assert settings.port_offset == 7
    assert settings.port("general", 40101) == 2, "a port that is named takes no offset"
    assert settings.port("finance", 40105) == 40112
    assert settings.simulator_port("smtp_simulator") == simulator_ports()["smtp_simulator"] + 7


@pytest.mark.parametrize(
    "address",
    ["postgres", "memory", "redis://host", "redis://u:p@host:1/2?prefix=a.b-c", "rediss://host:1", "unix:///run/redis"],
)
def test_a_queue_is_postgres_memory_or_a_redis(tmp_path: Path, address: str) -> None:
    assert load(tmp_path).outbound_queue == "postgres"
    assert load(tmp_path, outbound_queue=address).outbound_queue == address


@pytest.mark.parametrize(
    "address",
    [
        *("", "Postgres", "sqs", "redis:", "redis://", "redis://:secret@", "http://host", "unix://", "redis://[secret"),
        *(
            "redis://host:secret",
            "redis://host/0?prefix=",
            "redis://host/0?prefix={secret}",
            "postgres://u:secret@h/db",
        ),
    ],
)
def test_any_other_queue_is_refused_without_repeating_it(tmp_path: Path, address: str) -> None:
    error = mistake(tmp_path, outbound_queue=address)
    assert (error.source, error.key) == ("command line", "--set outbound_queue")
    assert "use postgres, memory, redis://host:port/db" in str(error)
    assert "secret" not in str(error)
    assert "secret" not in repr(load(tmp_path, outbound_queue="redis://:secret@host"))


def test_the_public_address_is_one_that_unsubscribe_links_can_have(tmp_path: Path) -> None:
    for address in ("https://mail.example.org/door", "http://127.0.0.1:8080", "http://localhost"):
        assert load(tmp_path, public_url=address).public_url == address
    for wrong in ("http://butlers.lan:8080", "https://user@host", "https://host:port", "https://a b", "https://h?q=1"):
        assert mistake(tmp_path, public_url=wrong).key == "--set public_url", wrong


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    assert load(tmp_path, {"DATABASE_URL": "", "BUTLERS_LLM": ""}).database_url is None


def test_every_setting_has_its_own_variable() -> None:
    names = [variable_of(field) for field in Settings.model_fields]
    assert len(set(names)) == len(names)
    assert (variable_of("database_url"), variable_of("llm")) == ("DATABASE_URL", "BUTLERS_LLM")


@pytest.mark.parametrize(
    ("case", "source", "key"),
    [
        ({"llm": "maybe"}, "command line", "--set llm"),
        ({"port_offset": -1}, "command line", "--port-offset"),
        ({"surprise": "1"}, "command line", "--set surprise"),
        ({"environment": {"BUTLERS_LEASE_TTL_S": "soon"}}, "environment", "BUTLERS_LEASE_TTL_S"),
        ({"file": "surprise = 1\n"}, "butlers.toml", "surprise"),
        ({"file": "llm = 'maybe'\n"}, "butlers.toml", "llm"),
        ({"file": "[butlers\n"}, "butlers.toml", "(file)"),
    ],
)
def test_a_mistake_names_its_source_and_key(tmp_path: Path, case: dict[str, Any], source: str, key: str) -> None:
    error = mistake(tmp_path, **case)
    assert (Path(error.source).name, error.key) == (source, key)
    assert error.remedy


@pytest.mark.parametrize("number", ["0", "-1", "65536", "x"])
def test_what_is_no_port_is_refused(tmp_path: Path, number: str) -> None:
    with pytest.raises(ConfigurationError, match="--port general"):
        load_settings({"data_dir": tmp_path, "ports": {"general": number}}, {})


def test_ports_that_are_no_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="ports"):
        load_settings({"data_dir": tmp_path, "ports": "3"}, {})


def test_a_file_that_was_named_must_exist(tmp_path: Path) -> None:
    assert mistake(tmp_path, config=tmp_path / "missing.toml").key == "--config"
    assert mistake(tmp_path, {"BUTLERS_CONFIG": str(tmp_path / "missing.toml")}).problem == "file not found"


def test_the_usual_data_directory() -> None:
    assert default_data_dir({"XDG_DATA_HOME": "/data"}) == Path("/data/butlers")
    assert default_data_dir({}) == Path.home() / ".local" / "share" / "butlers"


@pytest.mark.parametrize(
    ("host", "required"), [("127.0.0.1", False), ("::1", False), ("0.0.0.0", True), ("10.0.0.1", True)]
)
def test_leaving_the_machine_requires_tokens(tmp_path: Path, host: str, required: bool) -> None:
    assert load(tmp_path, host=host).token_required is required
    assert load(tmp_path, host=host, api_token_required="true").token_required is True
