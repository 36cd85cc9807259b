"""`codex exec --json`: JSON lines, the prompt on stdin (`-`), no session kept (`--ephemeral`).

    {"type": "thread.started", "thread_id": "..."}
    {"type": "turn.started"}
    {"type": "item.completed", "item": {"id": "item_0", "type": "command_execution", ...}}
    {"type": "item.completed", "item": {"id": "item_1", "type": "agent_message", "text": "..."}}
    {"type": "turn.completed", "usage": {"input_tokens": 1, "cached_input_tokens": 0, "output_tokens": 1}}
    {"type": "turn.failed", "error": {"message": "..."}}
    {"type": "error", "message": "..."}                      also notices of reconnecting, so not final by itself

`input_tokens` includes the cached ones. The stream does not name the model. What the program reads here comes from
strangers, so it gets no tools: no shell, no web search, no servers of its user, and a sandbox that writes nothing.
"""

from __future__ import annotations

from butlers.butler.runtimes.cli import Dialect
from butlers.butler.runtimes.events import Reading, mapping, number, text

_TOOLS = frozenset({"command_execution", "mcp_tool_call", "web_search", "file_change", "collab_tool_call"})


_NO_TOOLS = (
    *("--sandbox", "read-only"),
    *("--config", "features.shell_tool=false"),
    *("--config", 'web_search="disabled"'),
    *("--config", "mcp_servers={}"),
)


def _arguments(model: str | None) -> list[str]:
    chosen = ["--model", model] if model else []
    return ["exec", "--json", "--skip-git-repo-check", "--ephemeral", *_NO_TOOLS, *chosen, "-"]


def _read(reading: Reading, event: dict[str, object]) -> None:
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
    arguments=_arguments,
    environment=frozenset({"OPENAI_API_KEY", "OPENAI_BASE_URL", "CODEX_API_KEY", "CODEX_HOME"}),
    read=_read,
)
