"""`claude -p --output-format stream-json --verbose`: JSON lines; the prompt is stdin because there is no argument.

Print mode refuses stream-json without `--verbose`.

    {"type": "system", "subtype": "init", "model": "...", ...}
    {"type": "assistant", "message": {"id": "...", "model": "...", "content": [
        {"type": "text", "text": "..."}, {"type": "tool_use", "id": "...", "name": "..."}]}, "parent_tool_use_id": null}
    {"type": "user", "message": {...}}                                       results of tools
    {"type": "result", "subtype": "success", "is_error": false, "result": "...", "usage": {...}}

`is_error` decides and `subtype` does not: a failure of the provider arrives as subtype "success" with exit code 0. Some
versions leave `result` empty or out, so the last text of the assistant stands in. Messages with a
`parent_tool_use_id` belong to a sub-agent and are not the answer. `input_tokens` is what was not cached, so the cached
parts are added.

What the program reads here comes from strangers, so it gets no tools (`--tools ""`), and none of the servers that its
user has configured (`--strict-mcp-config`): each flag alone leaves the other kind.
"""

from __future__ import annotations

from butlers.butler.runtimes.cli import Dialect
from butlers.butler.runtimes.events import Reading, items, mapping, number, text

_SYNTHETIC = "<synthetic>"  # the model name of messages that the program itself made up
_INPUT_PARTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


def _arguments(model: str | None) -> list[str]:
    chosen = ["--model", model] if model else []
    return ["-p", "--output-format", "stream-json", "--verbose", "--tools", "", "--strict-mcp-config", *chosen]


def _read(reading: Reading, event: dict[str, object]) -> None:
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
    said = "".join(text(block.get("text")) for block in content if block.get("type") == "text")
    if is_main and said:
        reading.say(said)
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
    arguments=_arguments,
    environment=frozenset(
        {
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "ANTHROPIC_BASE_URL",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "CLAUDE_CONFIG_DIR",
        }
    ),
    read=_read,
)
