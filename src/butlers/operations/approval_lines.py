"""Actions and rules as a person reads them: plain lines whose ids can be copied."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from butlers.operations.command import Hint, when

Document = Mapping[str, Any]
MESSENGER = "messenger"  # whose actions are meant when nobody is named


def listed_actions(document: Document) -> Iterator[str]:
    # Plain lines: a table would cut the ids that people copy.
    for action in document["actions"]:
        yield f"{action['id']}  {when(action['requested_at'])}  {action['status']:<8}  {action['summary']}"


def whole_action(document: Document) -> Iterator[str]:
    action = document["action"]
    yield f"action {action['id']}: {action['status']}"
    yield f"  what     {action['summary']}"
    yield f"  tool     {action['tool_name']} {json.dumps(action['tool_args'], ensure_ascii=False)}"
    yield f"  asked    {when(action['requested_at'])} by {action['requested_by']}, until {when(action['expires_at'])}"
    if action["needs_person"]:
        yield "  note     no rule may allow it"
    for event in action["events"]:
        reason = event["details"].get("reason")
        yield f"  {event['event']:<8} {when(event['at'])} by {event['actor']}{f': {reason}' if reason else ''}"
    if action["result"]:
        yield f"  result   {json.dumps(action['result'], ensure_ascii=False)}"
    if action["status"] == "pending":
        of = f" --butler {butler}" if (butler := document.get("butler", MESSENGER)) != MESSENGER else ""
        yield Hint(f"  let it happen: butlers approvals approve {action['id']}{of}")
        yield Hint(f"  refuse it:     butlers approvals reject {action['id']}{of}")


def decision(document: Document) -> Iterator[str]:
    action = document["action"]
    yield f"{action['status']}: {action['summary']}"
    if error := (action["result"] or {}).get("error"):
        yield f"  it failed: {error['class']}: {error['message']}"
    if delivery := document.get("delivery"):
        yield f"delivery {delivery['delivery_id']}: {delivery['status']}"
        yield Hint(f"follow it with: butlers why {delivery['delivery_id']}")


def listed_rules(document: Document) -> Iterator[str]:
    for rule in document["rules"]:
        yield f"{rule['id']}  {_state(rule):<8}  used {_uses(rule):<8}  {rule['tool_name']}  {_constraints(rule)}"


def whole_rule(document: Document) -> Iterator[str]:
    rule = document["rule"]
    yield f"rule {rule['id']}: {_state(rule)}"
    yield f"  allows   {rule['tool_name']} {_constraints(rule)}"
    yield f"  used     {_uses(rule)}"
    if rule["expires_at"]:
        yield f"  until    {when(rule['expires_at'])}"
    yield f"  made     {when(rule['created_at'])} by {rule['created_by']} {rule['description']}".rstrip()


def _state(rule: Document) -> str:
    return "active" if rule["active"] else "revoked"


def _uses(rule: Document) -> str:
    return f"{rule['use_count']} of {rule['max_uses'] or 'any'}"


def _constraints(rule: Document) -> str:
    words = (f"{name}={_said(constraint)}" for name, constraint in rule["arg_constraints"].items())
    return ", ".join(words) or "whatever the arguments"


def _said(constraint: Document) -> str:
    if constraint["type"] == "any":
        return "any"
    return f"{constraint['type']}:{json.dumps(constraint['value'], ensure_ascii=False)}"
