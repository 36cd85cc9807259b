"""`butlers why ID`: which rule decided what, for a delivery, a dead letter, an action, or all that a request led to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import typer

from butlers.daemon.cli.asking import Document, an_id, asking
from butlers.daemon.client import SystemClient
from butlers.errors import ClassifiedError, ValidationError
from butlers.operations import approvals, requests
from butlers.operations.operation import Hint, milliseconds, when


def print_trace(document: dict[str, Any]) -> Iterator[str]:
    yield f"request {document['request_id']}: {document['lifecycle_state']}"
    for line in trace_lines(document):
        yield f"  {line}"


def trace_lines(document: dict[str, Any]) -> Iterator[str]:
    yield from _ingress(document["ingress"])
    yield from _routing(document["routing"], ended=document["final_state_at"] is not None)
    yield from _butlers(document["butlers"])
    yield from _deliveries(document["deliveries"])
    yield from _end(document)
    yield from _interventions(document)


def _ingress(ingress: dict[str, Any]) -> Iterator[str]:
    context = ingress["request_context"]
    yield (
        f"in       {_clock(ingress['received_at'])}  {context['source_channel']} message from "
        f"{context['source_sender_identity']}, handed in by {ingress['submitted_by']}"
    )
    what = "the same words from there" if ingress["dedupe_key"].startswith("content-") else "the same event"
    yield f"once     {what}, handed in again, is this request ({ingress['dedupe_key']})"


def _routing(routing: dict[str, Any], *, ended: bool) -> Iterator[str]:
    decision = routing["decision"]
    if decision is None:
        yield "route    nobody" if ended else "route    not decided yet"
        return
    targets = ", ".join(f"{segment['butler']} ({segment['confidence']:g})" for segment in decision["segments"])
    yield f"route    to {targets} by {decision['router']}: {decision['why']}{_versions(decision)}"
    yield from _plan(decision)
    attempts = {outcome["segment_id"]: outcome.get("attempts") for outcome in routing["outcomes"]}
    for dispatch in routing["dispatches"]:
        outcome = "ok" if dispatch["success"] else f"{dispatch['error_class']}: {dispatch['error']}"
        target = f"{dispatch['target_butler']} {dispatch['segment_id']}"
        tried = f" after {count} attempts" if (count := attempts.get(dispatch["segment_id"]) or 1) > 1 else ""
        yield f"dispatch {target}: {outcome}{tried} in {milliseconds(dispatch['duration_ms'])}"
    for outcome in routing["outcomes"]:
        if outcome.get("skipped"):
            yield f"skipped  {outcome['target_butler']} {outcome['segment_id']}: {outcome['skipped']}"
    if routing["not_before"] and not ended:
        for_whom = f" for {', '.join(routing['waiting_for'])}" if routing["waiting_for"] else ""
        yield f"waits    until {_clock(routing['not_before'])}{for_whom}"


def _versions(decision: dict[str, Any]) -> str:
    named = {"prompt": decision.get("prompt_version"), "model": decision.get("model_version")}
    told = ", ".join(f"{name} {version}" for name, version in named.items() if version)
    return f" [{told}]" if told else ""


def _plan(decision: dict[str, Any]) -> Iterator[str]:
    if len((plan := decision.get("plan") or {}).get("nodes", ())) > 1:
        yield f"plan     {plan['mode']}, {plan['join']}, after a failure {plan['abort']}"
        for node in plan["nodes"]:
            after = f", after {', '.join(node['depends_on'])} ({node['run_if']})" if node["depends_on"] else ""
            yield f"part     {node['segment_id']}: {'required' if node['required'] else 'optional'}{after}"
    if policy := decision.get("policy"):
        yield f"budget   {', '.join(f'{name} {value}' for name, value in policy.items())}"


def _butlers(butlers: dict[str, Any]) -> Iterator[str]:
    for name, hop in butlers.items():
        if "unknown" in hop:
            yield f"butler   {name}: unknown ({hop['unknown']})"
        for route in hop.get("route_inbox", []):
            yield f"butler   {name} {route['segment_id']}: {route['lifecycle_state']}, attempt {route['attempts']}"


def _deliveries(deliveries: list[dict[str, Any]]) -> Iterator[str]:
    for delivery in deliveries:
        yield (
            f"out      {delivery['origin_butler']} -> {delivery['channel']} {delivery['target_identity']}: "
            f"{delivery['status']} ({delivery['id']})"
        )
        for attempt in delivery["attempts"]:
            error = f" {attempt['error_class']}: {attempt['error_message']}" if attempt["error_class"] else ""
            stands = f"outcome {attempt['outcome']}, certainty {attempt['certainty']}"
            yield f"attempt  {attempt['attempt_number']}: {stands if attempt['outcome'] else 'no outcome yet'}{error}"
        for receipt in delivery["receipts"]:
            yield f"receipt  {receipt['receipt_type']} as {receipt['provider_delivery_id']}"


def _end(document: dict[str, Any]) -> Iterator[str]:
    if document["lifecycle_error"]:
        yield f"error    {document['lifecycle_error']['class']}: {document['lifecycle_error']['message']}"
    if document["final_state_at"]:
        yield f"end      {_clock(document['final_state_at'])}  {document['lifecycle_state']}"


def _interventions(document: dict[str, Any]) -> Iterator[str]:
    for action in document["overrides"]:
        problem = action["outcome_details"].get("problem")
        told = f"{action['outcome']} ({problem})" if problem else action["outcome"]
        who = f"{action['operator']}, {when(action['performed_at'])}"
        yield f"operator {who}: {action['action']}: {action['reason']} -> {told}"
    if annotation := (document["override"] or {}).get("annotation"):
        yield f"note     {annotation}"


def _clock(timestamp: str) -> str:
    moment = datetime.fromisoformat(timestamp).astimezone(UTC)
    return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03} UTC"


def _told(document: Document) -> Iterator[str]:
    if "action" in document:
        yield from approvals.print_action(document)
    elif "trace" in document:
        yield from _request(document)
    else:
        yield from _delivery(document)


@asking(_told)
def why(
    client: SystemClient,
    identity: Annotated[
        str, typer.Argument(metavar="ID", help="Of a delivery, a request, a dead letter or an action.")
    ],
) -> Document:
    """In plain words: which rule decided what, and what can be done now."""
    wanted = an_id(identity)
    found = (
        _known(client, f"/api/deliveries/{wanted}/why")
        or _of_request(client, wanted)
        or _of_dead_letter(client, wanted)
        or _of_action(client, wanted)
    )
    if found is None:
        raise ValidationError(f"{wanted}: no such delivery and no such request, dead letter or action")
    return found


def _of_request(client: SystemClient, request_id: UUID) -> Document | None:
    """The request's trace, and the reasons of each of its deliveries."""
    trace = _known(client, f"/api/requests/{request_id}")
    # A butler's own message may carry an id that never came in at the door.
    listed = client.get("/api/deliveries", request_id=request_id, limit=500)["deliveries"]
    letters = client.get("/api/requests/dead-letters", request_id=request_id, include_resolved="true")["dead_letters"]
    if trace is None and not listed and not letters:
        return None
    reasons = [client.get(f"/api/deliveries/{delivery['id']}/why") for delivery in reversed(listed)]
    return {"request_id": str(request_id), "trace": trace, "dead_letters": letters, "deliveries": reasons}


def _of_dead_letter(client: SystemClient, dead_letter_id: UUID) -> Document | None:
    """The request that failed, whole or in part."""
    found = _known(client, f"/api/requests/dead-letters/{dead_letter_id}")
    return _of_request(client, UUID(found["dead_letter"]["request_id"])) if found else None


def _of_action(client: SystemClient, action_id: UUID) -> Document | None:
    """An action that is no delivery's, of whichever butler has it."""
    for row in client.get("/api/butlers")["butlers"]:
        if "show_pending_action" not in row["capabilities"]:
            continue
        try:
            found = _known(client, f"/api/approvals/{action_id}", butler=row["name"])
        except ClassifiedError:  # one that is away does not keep the others from answering
            continue
        if found is not None:
            return found | {"butler": row["name"]}
    return None


def _known(client: SystemClient, path: str, **parameters: Any) -> Document | None:
    try:
        return client.get(path, **parameters)
    except ValidationError as error:
        if "no such" in error.message:
            return None
        raise


def _delivery(document: Document) -> Iterator[str]:
    asked = document["asked_about"]
    if asked["kind"] != "delivery":
        yield f"{asked['kind'].replace('_', ' ')} {asked['id']} is about"
    yield f"delivery {document['delivery_id']}: {document['status']}"
    for line in document["lines"]:
        yield Hint(f"  {line}")


def _request(document: Document) -> Iterator[str]:
    if document["trace"] is not None:
        yield from print_trace(document["trace"])
    else:
        yield f"request {document['request_id']}: not known to switchboard" + (
            " any more" * bool(document["dead_letters"])
        )
    for letter in document["dead_letters"]:
        yield f"  {requests.letter_line(letter)}"
        yield from (Hint(f"  {line}") for line in requests.letter_hints(letter))
    if document["trace"] is not None:
        yield from (Hint(f"  {line}") for line in requests.request_hints(document["trace"]))
    for delivery in document["deliveries"]:
        yield from _delivery(delivery)
    if not document["deliveries"]:
        yield "no message left because of it"
