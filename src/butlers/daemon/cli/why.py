"""`butlers why ID`: which rule decided what, for a delivery, a dead letter, an action, or all that a request led to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any
from uuid import UUID

import typer

from butlers.daemon.cli import explain
from butlers.daemon.cli.asking import Document, an_id, asking
from butlers.daemon.client import SystemClient
from butlers.errors import ClassifiedError, ValidationError
from butlers.operations import approvals, requests
from butlers.operations.operation import Hint


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
        yield from explain.trace(document["trace"])
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
