from __future__ import annotations

from pathlib import Path

import pytest

from butlers.courier.config import load_config, parse_config
from butlers.courier.messages import Overflow
from butlers.errors import ConfigurationError

SEED = """\
streams:
  defaultLeaseMs: 20000
  maxDepth: 1000
  perStreamCaps: { "agents/*": { maxDepth: 500 }, "agents/jen/inbox": { leaseMs: 5000, overflow: dropOldest } }
triggers:
  - { id: t, when: {type: sprint.log, from: agents/Jen/outbox}, do: [{action: notify, to: agents/architect/inbox}] }
auth:
  tokens:
    - { token: "dev-local", scopes: ["streams:*:enqueue","streams:*:subscribe","views:*:read"] }
"""
RULE = "{id: a, when: {}, do: [{action: route, to: x}]}"


def test_the_defaults_are_those_of_the_design():
    config = parse_config("", source="x")
    policy = config.streams.policy_of("any")
    assert (policy.lease_s, policy.max_depth, policy.overflow) == (30.0, 100_000, Overflow.REJECT)
    assert (config.gateway.host, config.gateway.port, config.journal.kind) == ("127.0.0.1", 8787, "none")


def test_every_key_of_the_design_is_read():
    config = parse_config(SEED, source="x")
    assert config.streams.policy_of("other").lease_s == 20.0
    assert config.streams.policy_of("other").max_depth == 1_000
    assert config.streams.policy_of("agents/tom/inbox").max_depth == 500
    jen = config.streams.policy_of("agents/jen/inbox")
    assert (jen.max_depth, jen.lease_s, jen.overflow) == (500, 5.0, Overflow.DROP_OLDEST)
    assert config.triggers[0].id == "t"
    token = config.auth.find("dev-local")
    assert token is not None
    assert token.parsed()[0].allows("streams", "agents/jen/inbox", "enqueue")
    assert config.auth.find("dev-loca") is None


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("streams:\n  perStreamCaps: {'agents/je*': {maxDepth: 1}}", 2, "streams.perStreamCaps"),
        ("auth:\n  tokens:\n    - {token: some-token, scopes: ['streams:**:enqueue']}", 3, "auth.tokens.0.scopes"),
        (SEED.replace("maxDepth: 1000", "maxDepth: many"), 3, "streams.maxDepth"),
        (SEED.replace("maxDepth: 1000", "maxDepht: 1"), 3, "streams.maxDepht"),
        (SEED.replace("action: notify", "action: sing"), 6, "triggers.0.do.0"),
        (SEED.replace("views:*:read", "views:*:write"), 9, "auth.tokens.0.scopes"),
        (SEED.replace("overflow: dropOldest", "overflow: shrug"), 4, "streams.perStreamCaps.agents/jen/inbox.overflow"),
        ("journal: {kind: jsonl}", 1, "journal"),
        ("streams: [", 1, ""),
        ("- 1", 1, ""),
        ("gateway:\n  pingS: 60", 2, "gateway.pingS"),
        (f"triggers: [{RULE}, {RULE}]", 1, ""),
        ("a: !!python/object/apply:os.system [ls]", 1, ""),
    ],
)
def test_a_wrong_file_is_refused_with_its_line_and_key(text: str, line: int, key: str):
    with pytest.raises(ConfigurationError) as refused:
        parse_config(text, source="courier.yaml")
    assert (refused.value.source, refused.value.key) == (f"courier.yaml:{line}", key)


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ConfigurationError) as refused:
        load_config(tmp_path / "none.yaml")
    assert str(tmp_path / "none.yaml") in str(refused.value)


def test_a_token_is_not_shown():
    assert "dev-local" not in repr(parse_config(SEED, source="x"))


def test_a_store_is_redis_and_goes_without_a_journal():
    config = parse_config("store: redis://jen:very-secret@cache:6379/2\nstorePrefix: a.b-c", source="x")
    assert (config.store_prefix, parse_config("", source="x").store) == ("a.b-c", None)
    assert "very-secret" not in repr(config)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("gateway: {}\nstore: http://jen:very-secret@cache/0", 2, "redis://host"),
        ("journal: {kind: jsonl, path: x}\n\nstore: redis://:very-secret@cache", 3, "journal"),
        ("store: 3", 1, "string"),
        ("storePrefix: 'a{b}'", 1, "match"),
    ],
)
def test_a_wrong_store_is_refused_with_its_line_and_without_its_password(text: str, line: int, problem: str):
    with pytest.raises(ConfigurationError, match=problem) as refused:
        parse_config(text, source="c.yaml")
    assert refused.value.source == f"c.yaml:{line}"
    assert "very-secret" not in str(refused.value)
