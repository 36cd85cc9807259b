"""Tokens: who they stand for, and that they stay private."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from butlers.butler.identity import Caller, Grant, TokenFile
from butlers.clock import ManualClock
from butlers.errors import ConfigurationError, ValidationError
from butlers.operations.operation import Role


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "tokens.json"


@pytest.fixture
def tokens(path: Path) -> TokenFile:
    return TokenFile(path, ManualClock())


def test_a_token_stands_for_its_caller(tokens: TokenFile) -> None:
    token = tokens.issue("anna", Role.CLIENT)
    assert tokens.caller_of(token.secret) == Caller(name="anna", role=Role.CLIENT)
    assert tokens.secret_of("anna") == token.secret


@pytest.mark.parametrize("secret", ["", "unknown", "\ud800", "x" * 100_000])
def test_an_unknown_token_stands_for_nobody(tokens: TokenFile, secret: str) -> None:
    assert tokens.caller_of(secret) is None
    tokens.issue("anna", Role.CLIENT)
    assert tokens.caller_of(secret) is None
    assert tokens.secret_of("ben") is None


def test_a_new_token_makes_the_old_one_worthless(tokens: TokenFile) -> None:
    old, new = tokens.issue("anna", Role.CLIENT), tokens.issue("anna", Role.OPERATOR)
    assert tokens.caller_of(old.secret) is None
    assert tokens.caller_of(new.secret) == Caller(name="anna", role=Role.OPERATOR)
    assert len(tokens.tokens()) == 1


def test_a_revoked_token_is_refused_by_a_service_that_knew_it(path: Path, tokens: TokenFile) -> None:
    secret = tokens.issue("anna", Role.CLIENT).secret
    service = TokenFile(path, ManualClock())
    assert service.caller_of(secret) is not None
    assert tokens.revoke("anna") is True
    assert service.caller_of(secret) is None
    assert tokens.revoke("anna") is False


def test_ensure_keeps_a_token_and_replaces_one_of_another_role(tokens: TokenFile) -> None:
    first = tokens.ensure("general", Role.BUTLER)
    assert tokens.ensure("general", Role.BUTLER) == first
    changed = tokens.ensure("general", Role.OPERATOR)
    assert changed.secret != first.secret
    assert tokens.caller_of(first.secret) is None


def test_the_file_is_private_from_the_first_byte(path: Path, tokens: TokenFile) -> None:
    tokens.issue("anna", Role.CLIENT)
    assert path.stat().st_mode & 0o777 == 0o600
    tokens.issue("ben", Role.CLIENT)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_a_file_that_others_can_read_is_refused(path: Path, tokens: TokenFile, mode: int) -> None:
    secret = tokens.issue("anna", Role.CLIENT).secret
    path.chmod(mode)
    with pytest.raises(ConfigurationError) as caught:
        TokenFile(path, ManualClock()).caller_of(secret)
    assert "chmod 600" in caught.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"tokens": 5}',
        '{"tokens": ["SECRET"]}',
        '{"tokens": [{"name": "SECRET"}]}',
        '{"tokens": [{"name": "a", "role": "SECRET", "secret": "s", "issued_at": ""}]}',
    ],
)
def test_a_damaged_file_is_a_clear_mistake_that_quotes_nothing(path: Path, tokens: TokenFile, text: str) -> None:
    path.parent.mkdir()
    path.touch(mode=0o600)
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        tokens.tokens()
    assert caught.value.problem == "is not a token file"
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_secret_is_not_in_the_repr(tokens: TokenFile) -> None:
    token = tokens.issue("anna", Role.CLIENT)
    assert token.secret not in repr(token)
    assert len(token.secret) >= 43, "32 random bytes"


def test_tokens_issued_at_one_time_by_many_are_all_kept(path: Path) -> None:
    names = [f"caller-{number}" for number in range(16)]
    threads = [
        threading.Thread(target=lambda name=name: TokenFile(path, ManualClock()).issue(name, Role.CLIENT))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [token.name for token in TokenFile(path, ManualClock()).tokens()] == sorted(names)


def test_the_file_keeps_what_it_was_told(path: Path, tokens: TokenFile) -> None:
    token = tokens.issue("anna", Role.CONNECTOR)
    assert json.loads(path.read_text()) == {
        "tokens": [
            {"name": "anna", "role": "connector", "secret": token.secret, "issued_at": "2026-01-01T00:00:00+00:00"}
        ]
    }


def test_a_token_keeps_what_it_may_speak_for(path: Path) -> None:
    grant = Grant(channel="telegram", endpoint="bot", senders=("7", "8"))
    secret = TokenFile(path, ManualClock()).issue("bridge", Role.CLIENT, (grant,)).secret
    caller = TokenFile(path, ManualClock()).caller_of(secret)
    assert caller == Caller(name="bridge", role=Role.CLIENT, grants=(grant,))


def test_a_file_of_an_earlier_version_loads_and_is_written_as_it_was(path: Path) -> None:
    entry = {"name": "anna", "role": "client", "secret": "s3cret-s3cret", "issued_at": "2026-01-01T00:00:00+00:00"}
    path.parent.mkdir(parents=True)
    path.touch(mode=0o600)
    path.write_text(json.dumps({"tokens": [entry]}))
    tokens = TokenFile(path, ManualClock())
    assert tokens.caller_of("s3cret-s3cret") == Caller(name="anna", role=Role.CLIENT)
    tokens.issue("ben", Role.CLIENT)
    assert entry in json.loads(path.read_text())["tokens"]


def test_two_names_differ_in_more_than_case(path: Path) -> None:
    tokens = TokenFile(path, ManualClock())
    tokens.issue("anna", Role.CLIENT)
    with pytest.raises(ValidationError, match="only in upper and lower case"):
        tokens.issue("Anna", Role.CLIENT)
    assert [token.name for token in tokens.tokens()] == ["anna"]
