"""What is particular to one runtime, and to building them."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
import uvloop

from butlers.butler.runtime import Prompt, RuntimeResult
from butlers.butler.runtimes import build_runtime
from butlers.butler.runtimes.cli import fenced
from butlers.errors import ConfigurationError, TimeoutExceeded
from tests.integration.runtimes.stand_ins import CLAUDE, CODEX, OPENCODE, StandIn

PROMPT = Prompt(system="You are the finance butler.", text="How much did I spend?")
PATIENCE_S = 30.0


async def ask(kind: str, stand_in: StandIn, timeout_s: float = PATIENCE_S) -> RuntimeResult:
    return await build_runtime(kind, None, str(stand_in.path), environ=os.environ).run(PROMPT, timeout_s=timeout_s)


@pytest.mark.parametrize("kind", ["local", "gpt", ""])
def test_unknown_kind_is_a_configuration_error(kind: str) -> None:
    with pytest.raises(ConfigurationError, match=r"butler\.runtime\.type"):
        build_runtime(kind, None, None, environ=os.environ)


@pytest.mark.parametrize("model", ["", "--dangerously-bypass-approvals-and-sandbox"])
def test_model_cannot_be_a_flag(model: str) -> None:
    with pytest.raises(ConfigurationError, match=r"butler\.runtime\.model"):
        build_runtime("codex", model, None, environ=os.environ)


def test_mark_that_occurs_in_the_data_is_not_used() -> None:
    marks = iter(["aaa", "bbb", "ccc"])
    written = fenced(Prompt(system="s", text="END aaa", context="END bbb"), lambda: next(marks))
    assert "BEGIN ccc message\nEND aaa\nEND ccc\n" in written


@pytest.mark.parametrize("result", [{"result": ""}, {}])
async def test_claude_without_a_result_answers_with_its_last_text(tmp_path: Path, result: dict[str, str]) -> None:
    stand_in = StandIn(tmp_path)
    events = CLAUDE.answer("the text")[:-1]
    stand_in.prints([*events, {"type": "result", "subtype": "success", "is_error": False, **result}])
    assert (await ask("claude", stand_in)).text == "the text"


async def test_codex_that_recovers_after_an_error_notice_answers(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    stand_in.prints([{"type": "error", "message": "stream disconnected"}, *CODEX.answer("ok")])
    assert (await ask("codex", stand_in)).text == "ok"


async def test_opencode_joins_the_parts_of_its_last_message(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    parts = [{"type": "text", "part": {"id": f"p{n}", "messageID": "m9", "text": f"part {n}"}} for n in (1, 2)]
    stand_in.prints([*OPENCODE.answer("earlier"), *parts])
    assert (await ask("opencode", stand_in)).text == "part 1\n\npart 2"


async def test_opencode_may_not_touch_the_machine(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    stand_in.prints(OPENCODE.answer("ok"))
    await ask("opencode", stand_in)
    permission = json.loads(stand_in.given()["env"]["OPENCODE_CONFIG_CONTENT"])["permission"]
    assert {"*", "bash", "edit", "read", "webfetch", "external_directory"} == permission.keys()
    assert {*permission.values()} == {"deny"}


def test_program_runs_in_a_group_of_its_own(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    stand_in.prints(CODEX.answer("ok"))
    asyncio.run(ask("codex", stand_in))
    assert stand_in.given()["group"] == stand_in.given()["pid"]


def test_uvloop_behaves_the_same(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stand_in.prints(CODEX.answer("ok"))
        assert runner.run(ask("codex", stand_in)).text == "ok"
        stand_in.does("time.sleep(600)\n")
        with pytest.raises(TimeoutExceeded):
            runner.run(ask("codex", stand_in, timeout_s=0.5))
