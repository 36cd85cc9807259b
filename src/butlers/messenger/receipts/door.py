"""`POST /webhooks/{channel}`: where providers bring receipts. The key of the channel is the only credential.

    channel has a key? -> JSON? -> small enough? -> signed by that key, just now? -> a receipt.v1? -> record it

A signed receipt that is sent again changes nothing, so replaying one is harmless. Every refusal is JSON with class,
message and fields: 404 no such door or delivery, 413, 415, 401 not signed, 422 not a receipt, 503 come again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.errors import ClassifiedError, ErrorClass, InternalError, ValidationError
from butlers.messenger.receipts.intake import ReceiptIntake
from butlers.messenger.receipts.receipt import Receipt, UnknownDelivery
from butlers.messenger.receipts.signature import problem_with
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger.receipts")

BODY_LIMIT = 65_536
_STATUS = {ErrorClass.VALIDATION_ERROR: 422, ErrorClass.TARGET_UNAVAILABLE: 503, ErrorClass.TIMEOUT: 504}


class _Refused(Exception):
    def __init__(self, status: int, error: ClassifiedError) -> None:
        super().__init__(error.message)
        self.status = status
        self.error = error


def receipt_routes(intake: ReceiptIntake, *, keys: Mapping[str, str], clock: Clock) -> list[Route]:
    """The door for the channels that have a key, to be served beside a butler's own."""
    door = ReceiptDoor(intake=intake, keys=dict(keys), clock=clock)
    return [Route("/webhooks/{channel}", door.receive, methods=["POST"])] if keys else []


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptDoor:
    intake: ReceiptIntake
    keys: Mapping[str, str] = field(repr=False)  # channel -> the key that its provider signs with
    clock: Clock

    async def receive(self, request: Request) -> Response:
        try:
            return await self._receive(request)
        except _Refused as refused:
            return _refusal(refused.status, refused.error)
        except UnknownDelivery as error:
            return _refusal(404, error)
        except ClassifiedError as error:
            return _refusal(_STATUS.get(error.error_class, 500), error)
        except Exception as error:
            log.error("receipt failed", error=error)
            return _refusal(500, InternalError("the receipt could not be recorded", retryable=True))

    async def _receive(self, request: Request) -> Response:
        channel = request.path_params["channel"]
        key = self.keys.get(channel)
        if key is None:
            raise _Refused(404, ValidationError("no such address"))
        body = await _body(request)
        if (problem := problem_with(request.headers, body, key, now=self.clock.now())) is not None:
            log.warning("receipt refused", channel=channel, reason="signature")
            raise _Refused(401, invalid("signature", problem))
        outcome = await self.intake.record(channel, Receipt.parse(body))
        return Response(to_json({"status": "ok"} | asdict(outcome)), media_type="application/json")


async def _body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise _Refused(415, invalid("content-type", "must be application/json"))
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_LIMIT:
            raise _Refused(413, invalid("", f"is larger than {BODY_LIMIT} bytes"))
    return bytes(body)


def _refusal(status: int, error: ClassifiedError) -> Response:
    response = Response(to_json({"error": {"fields": []} | error.describe()}), status, media_type="application/json")
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(max(1, round(error.retry_after)))
    return response
