"""Callers that speak for themselves: HTTP clients and MCP clients. They have tokens, and get their answers there."""

from __future__ import annotations

from butlers.channels.channel import AnswersGo, Channel, Dedupe, Feedback, Inbound, Threads

_INBOUND = Inbound(providers=("internal",), dedupe=Dedupe.CONTENT, feedback=Feedback.NONE, written_by_people=False)
API = Channel(name="api", title="HTTP API", answers_go=AnswersGo.TO_OWNER, threads=Threads.NONE, inbound=_INBOUND)
MCP = Channel(name="mcp", title="MCP", answers_go=AnswersGo.TO_OWNER, threads=Threads.NONE, inbound=_INBOUND)
