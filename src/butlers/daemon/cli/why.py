"""`butlers why ID`: which rule decided what, for a delivery or for everything a request led to."""

from __future__ import annotations

import json
from typing import Annotated, Any
from uuid import UUID

import typer

from butlers.daemon.cli import explain
from butlers.daemon.cli.deliveries import an_id
from butlers.daemon.cli.exits import OK
from butlers.daemon.cli.options import Config, DataDir, Json, settings_from
from butlers.daemon.client import SystemClient
from butlers.errors import ValidationError


def why(
    identity: Annotated[str, typer.Argument(metavar="ID", help="A delivery id or a request id.")],
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """In plain words: which rule decided what, and what can be done now."""
    wanted = an_id(identity)
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        delivery = _known(client, f"/api/deliveries/{wanted}/why")
        document = delivery or _of_request(client, wanted)
    if as_json:
        print(json.dumps(document))
    else:
        _print_delivery(document) if delivery else _print_request(document)
    return OK


def _of_request(client: SystemClient, request_id: UUID) -> dict[str, Any]:
    """The request's trace, and the reasons of each of its deliveries."""
    trace = _known(client, f"/api/requests/{request_id}")
    # A butler's own message may carry an id that never came in at the door.
    listed = client.get("/api/deliveries", request_id=request_id, limit=500)["deliveries"]
    if trace is None and not listed:
        raise ValidationError(f"{request_id}: no such delivery and no such request")
    reasons = [client.get(f"/api/deliveries/{delivery['id']}/why") for delivery in reversed(listed)]
    return {"request_id": str(request_id), "trace": trace, "deliveries": reasons}


def _known(client: SystemClient, path: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = client.get(path)
    except ValidationError as error:
        if "no such" in error.message:
            return None
        raise
    return found


def _print_delivery(document: dict[str, Any]) -> None:
    print(f"delivery {document['delivery_id']}: {document['status']}")
    for line in document["lines"]:
        print(f"  {line}")


def _print_request(document: dict[str, Any]) -> None:
    if document["trace"] is not None:
        explain.print_trace(document["trace"])
    else:
        print(f"request {document['request_id']}: not known to switchboard")
    for delivery in document["deliveries"]:
        _print_delivery(delivery)
    if not document["deliveries"]:
        print("no message left because of it")
