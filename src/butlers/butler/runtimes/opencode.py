"""`opencode run --format json`: JSON lines; the prompt is stdin because there is no argument.

    {"type": "step_start", "sessionID": "...", "part": {"id": "...", "messageID": "...", "type": "step-start"}}
    {"type": "tool_use", "part": {"callID": "...", "tool": "...", "state": {"status": "completed", ...}}}
    {"type": "text", "part": {"id": "...", "messageID": "...", "text": "..."}}
    {"type": "step_finish", "part": {"reason": "stop", "tokens": {"input": 1, "output": 1, "reasoning": 0,
                                                                  "cache": {"read": 0, "write": 0}}}}
    {"type": "error", "error": {"name": "...", "data": {"message": "..."}}}

A part may be printed again when it has grown, so the parts of a message are kept by id and the last message is the
answer. Every step reports its own tokens, and some versions exit before the last report. The stream does not name the
model. The program runs shell commands and edits files without asking unless its configuration forbids it, and what it
reads here comes from strangers, so every tool is forbidden.
"""

from __future__ import annotations

import json

from butlers.butler.runtimes.cli import Dialect
from butlers.butler.runtimes.events import Reading, mapping, number, text

_FORBIDDEN = {
    "permission": {"*": "deny"} | dict.fromkeys(("bash", "edit", "read", "webfetch", "external_directory"), "deny")
}


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
