"""`butlers why ID`: which rule decided what, for a delivery, a dead letter, an action, or all that a request led to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

from butlers.errors import ClassifiedError, ValidationError
from butlers.operations import approvals, messages, operators
from butlers.operations.operation import Command, Document, Hint, Option, System, as_uuid
from butlers.operations.requests import print_trace

Answer = dict[str, Any]


def _ask(system: System, given: Document) -> Answer:
    identity = as_uuid(given["identity"])
    found = (
        _known(system, f"/api/deliveries/{identity}/why")
        or _of_request(system, identity)
        or _of_dead_letter(system, identity)
        or _known(system, f"/api/messages/{identity}")
        or _of_action(system, identity)
    )
    if found is None:
        raise ValidationError(f"{identity}: no such delivery and no such request, message, dead letter or action")
    return found


def _of_request(system: System, request_id: UUID) -> Answer | None:
    """The request's trace, and the reasons of each of its deliveries."""
    trace = _known(system, f"/api/requests/{request_id}")
    # A butler's own message may carry an id that never came in at the door.
    listed = system.get("/api/deliveries", request_id=request_id, limit=500)["deliveries"]
    letters = system.get("/api/requests/dead-letters", request_id=request_id, include_resolved="true")["dead_letters"]
    if trace is None and not listed and not letters:
        return None
    reasons = [system.get(f"/api/deliveries/{delivery['id']}/why") for delivery in reversed(listed)]
    return {"request_id": str(request_id), "trace": trace, "dead_letters": letters, "deliveries": reasons}


def _of_dead_letter(system: System, dead_letter_id: UUID) -> Answer | None:
    """The request that failed, whole or in part."""
    found = _known(system, f"/api/requests/dead-letters/{dead_letter_id}")
    return _of_request(system, UUID(found["dead_letter"]["request_id"])) if found else None


def _of_action(system: System, action_id: UUID) -> Answer | None:
    """An action that is no delivery's, of whichever butler has it."""
    for row in system.get("/api/butlers")["butlers"]:
        if approvals.SHOW.name not in row["capabilities"]:
            continue
        try:
            found = _known(system, f"/api/approvals/{action_id}", butler=row["name"])
        except ClassifiedError:  # one that is away does not keep the others from answering
            continue
        if found is not None:
            return found | {"butler": row["name"]}
    return None


def _known(system: System, path: str, **parameters: Any) -> Answer | None:
    try:
        return system.get(path, **parameters)
    except ValidationError as error:
        if "no such" in error.message:
            return None
        raise


def _lines(document: Document) -> Iterator[str]:
    if "action" in document:
        yield from approvals.print_action(document)
    elif "recipients" in document:
        yield from messages.print_message(document)
    elif "trace" in document:
        yield from _request(document)
    else:
        yield from _delivery(document)


def _delivery(document: Document) -> Iterator[str]:
    asked = document["asked_about"]
    if asked["kind"] != "delivery":
        yield f"{asked['kind'].replace('_', ' ')} {asked['id']} is about"
    yield f"delivery {document['delivery_id']}: {document['status']}"
    for line in document["lines"]:
        yield Hint(f"  {line}")


def _request(document: Document) -> Iterator[str]:
    trace, letters = document["trace"], document["dead_letters"]
    if trace is not None:
        yield from print_trace(trace)
    else:
        yield f"request {document['request_id']}: not known to switchboard{' any more' if letters else ''}"
    for letter in letters:
        yield f"  {operators.letter_line(letter)}"
        yield from (Hint(f"  {line}") for line in operators.letter_hints(letter))
    if trace is not None:
        yield from (Hint(f"  {line}") for line in operators.request_hints(trace))
    for delivery in document["deliveries"]:
        yield from _delivery(delivery)
    if not document["deliveries"]:
        yield "no message left because of it"


COMMAND: Final = Command(
    "why",
    "In plain words: which rule decided what, and what can be done now.",
    _lines,
    (
        Option(
            "identity",
            "Of a delivery, a message, a request, a dead letter or an action.",
            positional=True,
            metavar="ID",
        ),
    ),
    asks=_ask,
)
