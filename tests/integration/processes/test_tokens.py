"""`butlers token`, and what a running system makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from butlers.daemon.demo.instance import Instance
from tests.integration.processes.command import answer, answer_here, butlers, butlers_here, telegram_event

pytestmark = pytest.mark.asyncio(loop_scope="session")


def _own(name: str, text: str) -> dict[str, Any]:
    """What a client says in its own name."""
    own = f"client:{name}"
    source = {"channel": "api", "provider": "internal", "endpoint_identity": own}
    return telegram_event(601, 6101, text) | {"source": source, "sender": {"identity": own}}


async def test_a_token_from_issue_to_revocation(running: Instance):
    where = ("--data-dir", running.data_dir)
    issued = answer("token", "issue", "ann", *where)
    assert (issued["name"], issued["role"]) == ("ann", "client")
    assert butlers_here("token", "show", "ann", *where).stdout.strip() == issued["token"]
    assert answer_here("token", "show", "ann", *where) == {"name": "ann", "token": issued["token"]}
    accepted = await running.ingest(_own("ann", "with a token"), token=issued["token"])
    assert accepted.status_code == 202

    completed = butlers("token", "revoke", "ann", *where)
    assert (completed.returncode, completed.stdout) == (0, "revoked ann\n")
    refused = await running.ingest(telegram_event(602, 6101, "with a worthless one"), token=issued["token"])
    assert refused.status_code == 401
    assert refused.json()["error"]["class"] == "validation_error"
    assert butlers_here("token", "show", "ann", *where).returncode == 2


async def test_machines_are_answered_too(tmp_path):
    answer_here("token", "issue", "ann", "--data-dir", tmp_path)
    assert answer_here("token", "revoke", "ann", "--data-dir", tmp_path) == {"revoked": "ann"}
    again = butlers_here("token", "revoke", "ann", "--json", "--data-dir", tmp_path)
    assert (again.returncode, again.stderr) == (2, "")
    assert json.loads(again.stdout)["error"]["fields"] == [{"field": "name", "error": "there is no token"}]


async def test_issuing_again_replaces_the_token(running: Instance):
    where = ("--data-dir", running.data_dir)
    old = butlers_here("token", "issue", "bob", *where).stdout.strip()
    new = butlers_here("token", "issue", "bob", *where).stdout.strip()
    codes = [(await running.ingest(_own("bob", "hello"), token=t)).status_code for t in (old, new)]
    assert codes == [401, 202]


async def test_list_shows_names_and_roles_and_no_secrets(running: Instance):
    spoken = ("--channel", "telegram", "--endpoint", "far_bot", "--sender", "7", "--sender", "8")
    where = ("--data-dir", running.data_dir)
    issued = answer_here("token", "issue", "eve", "--role", "connector", *spoken, *where)
    secret = issued["token"]
    rows = answer_here("token", "list", *where)["tokens"]
    listed = {row["name"]: row["role"] for row in rows}
    grants = {row["name"]: row["grants"] for row in rows}
    assert issued["grants"] == grants["eve"]
    assert grants["eve"] == [{"channel": "telegram", "endpoint": "far_bot", "senders": ["7", "8"]}]
    assert grants["operator"] == []
    assert listed["eve"] == "connector"
    assert listed["operator"] == "operator"
    assert listed["messenger"] == "butler"
    readable = butlers_here("token", "list", "--data-dir", running.data_dir)
    assert "eve" in readable.stdout
    assert "speaks for senders 7 8 at telegram:far_bot" in readable.stdout
    assert secret not in readable.stdout


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (["--role", "connector"], "--channel"),
        (["--role", "connector", "--channel", "telegram"], "--endpoint"),
        (["--endpoint", "bot"], "--channel"),
        (["--sender", "7"], "--channel"),
        (["--channel", "Tele gram", "--endpoint", "bot"], "--channel"),
        (["--channel", "telegram", "--endpoint", " "], "--endpoint"),
        (["--channel", "telegram", "--endpoint", "bot", "--sender", ""], "--sender"),
        (["--role", "operator", "--channel", "telegram", "--endpoint", "bot"], "--channel"),
    ],
)
async def test_a_grant_that_says_too_little_is_refused(options, field, tmp_path):
    refused = butlers_here("token", "issue", "eve", *options, "--json", "--data-dir", tmp_path)
    assert refused.returncode == 2
    assert [wrong["field"] for wrong in json.loads(refused.stdout)["error"]["fields"]] == [field]
    assert not (tmp_path / "tokens.json").exists()


async def test_only_the_owner_may_read_the_file(tmp_path):
    butlers_here("token", "issue", "ann", "--data-dir", tmp_path)
    file = tmp_path / "tokens.json"
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    for command in (["list"], ["show", "ann"], ["revoke", "ann"], ["issue", "bob"]):
        completed = butlers_here("token", *command, "--data-dir", tmp_path)
        assert completed.returncode == 3
        assert completed.stderr == f"butlers: {file}: mode: readable by others (chmod 600 {file})\n"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"tokens": [{"name": "hunter2"}]}', '{"tokens": 1}'])
async def test_a_damaged_file_is_named_and_not_quoted(content, tmp_path):
    file = tmp_path / "tokens.json"
    file.touch(mode=0o600)
    file.write_text(content)
    completed = butlers_here("token", "list", "--data-dir", tmp_path)
    assert completed.returncode == 3
    assert f"{file}: tokens: is not a token file" in completed.stderr
    assert "hunter2" not in completed.stderr


@pytest.mark.parametrize("name", ["", " ", "two words", "line\nbreak", "-", "../up", "x" * 65])
async def test_a_name_that_cannot_be_a_callers(name, tmp_path):
    assert butlers_here("token", "issue", "--data-dir", tmp_path, "--", name).returncode == 2
    assert not (tmp_path / "tokens.json").exists()


async def test_looking_makes_no_data_directory(tmp_path):
    assert butlers_here("token", "list", "--json", "--data-dir", tmp_path / "unknown").stdout == '{"tokens": []}\n'
    for command in ("show", "revoke"):
        completed = butlers_here("token", command, "ann", "--data-dir", tmp_path / "unknown")
        assert completed.returncode == 2
        assert completed.stderr == "butlers: there is no token for 'ann'\n"
    assert not (tmp_path / "unknown").exists()


async def test_a_token_of_the_systems_own_is_revoked_only_by_force(tmp_path: Path) -> None:
    where = ("--data-dir", tmp_path)
    for name in ("operator", "switchboard"):
        assert butlers_here("token", "issue", name, "--role", "operator", "--force", *where).returncode == 0
        refused = butlers_here("token", "revoke", name, *where)
        assert refused.returncode == 2
        assert f"butlers token issue {name} --force" in refused.stderr
        assert butlers_here("token", "show", name, *where).returncode == 0
        assert butlers_here("token", "revoke", name, "--force", *where).returncode == 0
        assert butlers_here("token", "show", name, *where).returncode == 2
