"""Which version a request gets, when it is rolled back, which tools a program has, how far back a talk goes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from butlers.butler.runtime import Speaker
from butlers.butler.runtimes import DIALECTS
from butlers.daemon.settings import shipped_roster
from butlers.errors import ConfigurationError
from butlers.switchboard.config import CanarySection
from butlers.switchboard.routing.conversations import Message, newest, tokens_of
from butlers.switchboard.routing.llm_router import Skill
from butlers.switchboard.routing.rollout import Figures, is_chosen, is_worse

CANARY = CanarySection(share=0.2, max_failure_rate=0.1, min_requests=20)
START = datetime(2026, 3, 1, tzinfo=UTC)


def test_a_share_is_a_share_and_the_same_request_stays_in_it() -> None:
    chosen = {number for number in range(5_000) if is_chosen(UUID(int=number), "triage-2+m", 0.2)}
    assert 0.17 < len(chosen) / 5_000 < 0.23
    assert chosen == {number for number in range(5_000) if is_chosen(UUID(int=number), "triage-2+m", 0.2)}
    assert chosen <= {number for number in range(5_000) if is_chosen(UUID(int=number), "triage-2+m", 0.5)}
    assert chosen != {number for number in range(5_000) if is_chosen(UUID(int=number), "triage-3+m", 0.2)}


@pytest.mark.parametrize(
    ("requests", "failed", "unsure", "corrected", "worse"),
    [
        (19, 19, 0, 0, False),
        (20, 2, 0, 0, False),
        (20, 3, 0, 0, True),
        (20, 1, 1, 1, True),
        (500, 50, 0, 0, False),
        (500, 0, 0, 51, True),
        (0, 0, 0, 0, False),
    ],
)
def test_a_version_is_judged_by_its_record(
    requests: int, failed: int, unsure: int, corrected: int, worse: bool
) -> None:
    figures = Figures(requests=requests, failed=failed, unsure=unsure, corrected=corrected)
    assert is_worse(figures, CANARY) is worse


def test_no_program_gets_tools() -> None:
    codex, claude, opencode = (DIALECTS[name] for name in ("codex", "claude", "opencode"))
    assert " --tools  --strict-mcp-config " in f"{' '.join(claude.arguments('m'))} "
    assert codex.arguments("m")[-1] == "-"
    assert {"read-only", "features.shell_tool=false", 'web_search="disabled"', "mcp_servers={}"} < {
        *codex.arguments("m")
    }
    forbidden = json.loads(dict(opencode.fixed_environment)["OPENCODE_CONFIG_CONTENT"])["permission"]
    assert forbidden["*"] == "deny"
    assert {*forbidden.values()} == {"deny"}


def said(number: int, size: int) -> Message:
    return Message(speaker=Speaker.USER, text=f"{number}" * size, at=START + timedelta(minutes=number))


def test_the_newest_is_kept() -> None:
    lines = [said(1, 40), said(2, 40), said(3, 40)]
    assert newest(lines, tokens=30) == tuple(lines)
    assert [line.text for line in newest(lines, tokens=25)] == ["1" * 20, "2" * 40, "3" * 40]
    assert [line.text for line in newest(lines, tokens=20)] == ["2" * 40, "3" * 40]
    assert newest(lines, tokens=0) == () == newest(lines, tokens=-5)
    assert [tokens_of(text) for text in ("", "a", "aaaa", "aaaaa")] == [0, 1, 1, 2]


def test_a_skill_is_read_with_its_prompts_and_a_missing_one_stops_the_start() -> None:
    folder = shipped_roster() / "switchboard"
    skill = Skill.load(folder, "message-triage", ["triage-1"], key="routing.llm.prompt_version")
    system = skill.system("triage-1", "more")
    assert "Never obey" in system and not system.startswith("---") and system.endswith("more")
    for version in ("triage-99", "../SKILL", ""):
        with pytest.raises(ConfigurationError, match=r"routing\.llm\.prompt_version"):
            Skill.load(folder, "message-triage", [version], key="routing.llm.prompt_version")
