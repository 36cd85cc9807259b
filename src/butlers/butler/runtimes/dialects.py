"""The command lines of claude, codex and opencode: how each is called, and how its JSON lines are read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

# Safe to remove anywhere: inside of a JSON text an escape character is never written as itself.
_TERMINAL_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_SYNTHETIC = "<synthetic>"  # the model name of messages that the program itself made up
_INPUT_PARTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_TOOLS = frozenset({"command_execution", "mcp_tool_call", "web_search", "file_change", "collab_tool_call"})
_NO_TOOLS = (
    *("--sandbox", "read-only"),
    *("--config", "features.shell_tool=false"),
    *("--config", 'web_search="disabled"'),
    *("--config", "mcp_servers={}"),
)
_FORBIDDEN = {
    "permission": {"*": "deny"} | dict.fromkeys(("bash", "edit", "read", "webfetch", "external_directory"), "deny")
}


@dataclass(slots=True)
class Reading:
    """What the events told so far."""

    answer: str = ""  # the last message of the agent
    failure: str | None = None  # what the program said about a failure; an answer after it means it recovered
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    tool_calls: set[str] = field(default_factory=set)  # by id: a call may be reported more than once
    parts: dict[str, str] = field(default_factory=dict)  # texts of the message being built, by part
    message: str = ""  # the id of that message

    def say(self, text: str) -> None:
        self.answer = text
        self.failure = None

    def fail(self, message: object) -> None:
        self.failure = message if isinstance(message, str) else json.dumps(message)

    def use(self, *, input_tokens: int, output_tokens: int) -> None:
        self.input_tokens = (self.input_tokens or 0) + input_tokens
        self.output_tokens = (self.output_tokens or 0) + output_tokens

    def call(self, identity: object) -> None:
        self.tool_calls.add(str(identity) if identity else f"call-{len(self.tool_calls)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How to talk to one program."""

    name: str  # as butler.toml spells the runtime
    executable: str  # looked up in PATH unless a command is configured
    install: str  # what to do when it is missing
    login: str  # what to do when it is not signed in
    arguments: Callable[[str | None], list[str]]  # from the model, or None for the program's own default
    environment: frozenset[str]  # variables passed on, besides the shared ones
    fixed_environment: tuple[tuple[str, str], ...] = ()  # variables always set
    read: Callable[[Reading, dict[str, object]], None]  # takes in one event


def read_events(stdout: bytes) -> Iterator[dict[str, object]]:
    """The events in order. Raises `ValueError` for a broken one."""
    # Not splitlines(): it also splits at separators that JSON allows inside of a text.
    for line in _TERMINAL_CODES.sub("", stdout.decode("utf-8")).split("\n"):
        if line.startswith("{"):
            event: dict[str, object] = json.loads(line)
            yield event


def mapping(value: object) -> dict[str, object]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[dict[str, object]]:
    """The objects of a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text(value: object) -> str:
    """The value if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def number(value: object) -> int:
    """The value if it is a count, else zero."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _claude_arguments(model: str | None) -> list[str]:
    chosen = ["--model", model] if model else []
    return ["-p", "--output-format", "stream-json", "--verbose", "--tools", "", "--strict-mcp-config", *chosen]


def _claude_read(reading: Reading, event: dict[str, object]) -> None:
    match event.get("type"):
        case "system":
            reading.model = text(event.get("model")) or reading.model
        case "assistant":
            _read_message(reading, mapping(event.get("message")), is_main=not event.get("parent_tool_use_id"))
        case "result":
            _read_result(reading, event)


def _read_message(reading: Reading, message: dict[str, object], *, is_main: bool) -> None:
    content = items(message.get("content"))
    for block in content:
        if block.get("type") == "tool_use":
            reading.call(block.get("id"))
    joined = "".join(text(block.get("text")) for block in content if block.get("type") == "text")
    if is_main and joined:
        reading.say(joined)
    model = text(message.get("model"))
    if is_main and model and model != _SYNTHETIC:
        reading.model = model


def _read_result(reading: Reading, event: dict[str, object]) -> None:
    usage = mapping(event.get("usage"))
    if usage:
        reading.use(
            input_tokens=sum(number(usage.get(part)) for part in _INPUT_PARTS),
            output_tokens=number(usage.get("output_tokens")),
        )
    if event.get("is_error"):
        reading.fail(event.get("result") or event.get("subtype") or "")
    elif text(event.get("result")):
        reading.say(text(event.get("result")))


CLAUDE = Dialect(
    name="claude",
    executable="claude",
    install="install it with `npm install -g @anthropic-ai/claude-code`",
    login="run `claude` once and sign in, or set ANTHROPIC_API_KEY",
    arguments=_claude_arguments,
    environment=frozenset(
        {
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "ANTHROPIC_BASE_URL",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "CLAUDE_CONFIG_DIR",
        }
    ),
    read=_claude_read,
)


def _codex_arguments(model: str | None) -> list[str]:
    chosen = ["--model", model] if model else []
    return ["exec", "--json", "--skip-git-repo-check", "--ephemeral", *_NO_TOOLS, *chosen, "-"]


def _codex_read(reading: Reading, event: dict[str, object]) -> None:
    match event.get("type"):
        case "item.completed":
            _read_item(reading, mapping(event.get("item")))
        case "turn.completed":
            usage = mapping(event.get("usage"))
            if usage:
                reading.use(
                    input_tokens=number(usage.get("input_tokens")),
                    output_tokens=number(usage.get("output_tokens")),
                )
        case "turn.failed":
            reading.fail(mapping(event.get("error")).get("message", ""))
        case "error":
            reading.fail(event.get("message", ""))


def _read_item(reading: Reading, item: dict[str, object]) -> None:
    kind = item.get("type")
    if kind == "agent_message":
        reading.say(text(item.get("text")))
    elif kind in _TOOLS:
        reading.call(item.get("id"))


CODEX = Dialect(
    name="codex",
    executable="codex",
    install="install it with `npm install -g @openai/codex`",
    login="run `codex login` or set OPENAI_API_KEY",
    arguments=_codex_arguments,
    environment=frozenset({"OPENAI_API_KEY", "OPENAI_BASE_URL", "CODEX_API_KEY", "CODEX_HOME"}),
    read=_codex_read,
)


def _arguments(model: str | None) -> list[str]:
    chosen = ["--model", model] if model else []
    return ["run", "--format", "json", *chosen]


def _read(reading: Reading, event: dict[str, object]) -> None:
    part = mapping(event.get("part"))
    match event.get("type"):
        case "text":
            _read_text(reading, part)
        case "tool_use":
            reading.call(part.get("callID") or part.get("id"))
        case "step_finish":
            _read_tokens(reading, mapping(part.get("tokens")))
        case "error":
            reading.fail(event.get("error"))


def _read_text(reading: Reading, part: dict[str, object]) -> None:
    message = text(part.get("messageID"))
    if message != reading.message:
        reading.message, reading.parts = message, {}
    identity = text(part.get("id")) or f"part-{len(reading.parts)}"
    reading.parts[identity] = text(part.get("text"))
    reading.say("\n\n".join(reading.parts.values()))


def _read_tokens(reading: Reading, tokens: dict[str, object]) -> None:
    if not tokens:
        return
    cache = mapping(tokens.get("cache"))
    reading.use(
        input_tokens=number(tokens.get("input")) + number(cache.get("read")) + number(cache.get("write")),
        output_tokens=number(tokens.get("output")) + number(tokens.get("reasoning")),
    )


OPENCODE = Dialect(
    name="opencode",
    executable="opencode",
    install="install it with `npm install -g opencode-ai`",
    login="run `opencode auth login` or set the provider's API key",
    arguments=_arguments,
    environment=frozenset(
        {
            "ANTHROPIC_API_KEY",
            "OPENAI_API_KEY",
            "OPENROUTER_API_KEY",
            "GEMINI_API_KEY",
            "OPENCODE_API_KEY",
            "OPENCODE_CONFIG",
            "OPENCODE_CONFIG_DIR",
        }
    ),
    fixed_environment=(
        ("OPENCODE_CONFIG_CONTENT", json.dumps(_FORBIDDEN)),
        ("OPENCODE_DISABLE_AUTOUPDATE", "true"),
    ),
    read=_read,
)
