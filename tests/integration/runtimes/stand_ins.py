"""Small programs that speak the formats of the real command lines, written to disk and run for real.

A stand-in first writes down what it was given (arguments, stdin, environment, directory) and then does what the test
told it to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Event = dict[str, Any]

_PREAMBLE = """\
#!{python}
import json, os, subprocess, sys, time
given = {{"argv": sys.argv[1:], "stdin": sys.stdin.read(), "env": dict(os.environ), "cwd": os.getcwd(),
         "files": os.listdir("."), "group": os.getpgrp(), "pid": os.getpid()}}
with open({record!r}, "w") as record:
    json.dump(given, record)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """How one of the programs says the same things."""

    kind: str
    arguments: Callable[[str | None], list[str]]
    answer: Callable[[str], list[Event]]  # with noise, one earlier message, 2 tool calls, 120 in and 45 out
    failure: Callable[[str], list[Event]]
    names_model: bool

    def plain_answer(self, said: str) -> list[Event]:
        """The same answer by a program that called no tool."""
        return [event for event in self.answer(said) if not uses_tools(event)]


def uses_tools(event: Event) -> bool:
    """Whether an event of any of the programs tells of a tool."""
    if event.get("type") == "tool_use":
        return True
    if event.get("type") == "assistant":
        return any(block.get("type") == "tool_use" for block in event["message"]["content"])
    item = event.get("item")
    return isinstance(item, dict) and item.get("type") in ("command_execution", "mcp_tool_call")


class StandIn:
    """One executable in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "stand-in"
        self._record = directory / "given.json"

    def does(self, body: str) -> None:
        self.path.write_text(_PREAMBLE.format(python=sys.executable, record=str(self._record)) + body)
        self.path.chmod(0o755)

    def prints(self, events: list[Event], *, before: str = "", after: str = "", exit_code: int = 0) -> None:
        """Print events, with more Python source to run before and after."""
        lines = [json.dumps(event, ensure_ascii=False) for event in events]
        utf8 = "sys.stdout.reconfigure(encoding='utf-8')"
        self.does(f"{utf8}\n{before}\nprint(*{lines!r}, sep='\\n', flush=True)\n{after}\nsys.exit({exit_code})\n")

    def given(self) -> dict[str, Any]:
        given: dict[str, Any] = json.loads(self._record.read_text())
        return given


def _codex_answer(answer: str) -> list[Event]:
    return [
        {"type": "thread.started", "thread_id": "t"},
        {"type": "turn.started"},
        {"type": "error", "message": "Reconnecting... 1/5"},
        {"type": "item.started", "item": {"id": "item_0", "type": "command_execution", "command": "ls"}},
        {"type": "item.completed", "item": {"id": "item_0", "type": "command_execution", "exit_code": 0}},
        {"type": "item.completed", "item": {"id": "item_1", "type": "mcp_tool_call", "tool": "notify"}},
        {"type": "item.completed", "item": {"id": "item_2", "type": "reasoning", "text": "hmm"}},
        {"type": "item.completed", "item": {"id": "item_3", "type": "agent_message", "text": "Let me look."}},
        {"type": "from.the.future", "item": "?"},
        {"type": "item.completed", "item": {"id": "item_4", "type": "agent_message", "text": answer}},
        {
            "type": "turn.completed",
            "usage": {"input_tokens": 120, "cached_input_tokens": 100, "output_tokens": 45},
        },
    ]


def _codex_failure(said: str) -> list[Event]:
    return [
        {"type": "thread.started", "thread_id": "t"},
        {"type": "item.completed", "item": {"id": "item_0", "type": "agent_message", "text": "Let me look."}},
        {"type": "error", "message": said},
        {"type": "turn.failed", "error": {"message": said}},
    ]


def _claude_message(identity: str, *content: Event, parent: str | None = None) -> Event:
    message = {"id": identity, "type": "message", "role": "assistant", "model": "m-1", "content": list(content)}
    return {"type": "assistant", "message": message, "parent_tool_use_id": parent, "session_id": "s"}


def _claude_answer(answer: str) -> list[Event]:
    usage = {
        "input_tokens": 20,
        "cache_creation_input_tokens": 60,
        "cache_read_input_tokens": 40,
        "output_tokens": 45,
    }
    call = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}
    task = {"type": "tool_use", "id": "toolu_2", "name": "Task", "input": {}}
    return [
        {"type": "system", "subtype": "init", "model": "m-1", "tools": []},
        _claude_message("msg_1", {"type": "text", "text": "Let me look."}),
        _claude_message("msg_1", call),
        _claude_message("msg_1", call),
        {"type": "user", "message": {"role": "user", "content": [{"type": "tool_result", "content": "x"}]}},
        _claude_message("msg_2", task),
        _claude_message("msg_3", {"type": "text", "text": "I am the sub-agent"}, parent="toolu_2"),
        {"type": "from_the_future", "message": "?"},
        _claude_message("msg_4", {"type": "text", "text": answer}),
        {"type": "result", "subtype": "success", "is_error": False, "result": answer, "usage": usage},
    ]


def _claude_failure(said: str) -> list[Event]:
    return [
        {"type": "system", "subtype": "init", "model": "m-1"},
        _claude_message("msg_1", {"type": "text", "text": said}),
        {"type": "result", "subtype": "success", "is_error": True, "result": said},
    ]


def _opencode_event(kind: str, **part: Any) -> Event:
    return {"type": kind, "timestamp": 1, "sessionID": "ses", "part": part}


def _opencode_tokens(input_tokens: int, output_tokens: int, reasoning: int, read: int, write: int) -> Event:
    cache = {"read": read, "write": write}
    return {"input": input_tokens, "output": output_tokens, "reasoning": reasoning, "cache": cache}


def _opencode_answer(answer: str) -> list[Event]:
    return [
        _opencode_event("step_start", id="p1", messageID="m1"),
        _opencode_event("text", id="p2", messageID="m1", text="Let me look."),
        _opencode_event("tool_use", id="p3", messageID="m1", callID="c1", tool="read", state={"status": "running"}),
        _opencode_event("tool_use", id="p3", messageID="m1", callID="c1", tool="read", state={"status": "completed"}),
        _opencode_event("tool_use", id="p4", messageID="m1", callID="c2", tool="list", state={"status": "completed"}),
        _opencode_event("step_finish", messageID="m1", reason="tool-calls", tokens=_opencode_tokens(10, 5, 5, 0, 50)),
        {"type": "from.the.future", "part": "?"},
        _opencode_event("text", id="p5", messageID="m2", text=answer[:1]),
        _opencode_event("text", id="p5", messageID="m2", text=answer),
        _opencode_event("step_finish", messageID="m2", reason="stop", tokens=_opencode_tokens(10, 30, 5, 50, 0)),
    ]


def _opencode_failure(said: str) -> list[Event]:
    return [
        _opencode_event("step_start", id="p1", messageID="m1"),
        {"type": "error", "sessionID": "ses", "error": {"name": "APIError", "data": {"message": said}}},
    ]


def _with_model(before: list[str], after: list[str]) -> Callable[[str | None], list[str]]:
    return lambda model: [*before, *(["--model", model] if model else []), *after]


CODEX = Speech(
    kind="codex",
    arguments=_with_model(
        [
            *("exec", "--json", "--skip-git-repo-check", "--ephemeral", "--sandbox", "read-only"),
            *("--config", "features.shell_tool=false", "--config", 'web_search="disabled"'),
            *("--config", "mcp_servers={}"),
        ],
        ["-"],
    ),
    answer=_codex_answer,
    failure=_codex_failure,
    names_model=False,
)
CLAUDE = Speech(
    kind="claude",
    arguments=_with_model(
        ["-p", "--output-format", "stream-json", "--verbose", "--tools", "", "--strict-mcp-config"], []
    ),
    answer=_claude_answer,
    failure=_claude_failure,
    names_model=True,
)
OPENCODE = Speech(
    kind="opencode",
    arguments=_with_model(["run", "--format", "json"], []),
    answer=_opencode_answer,
    failure=_opencode_failure,
    names_model=False,
)

SPEECHES = (CODEX, CLAUDE, OPENCODE)
