"""What providers say about a message after they took it: sent, delivered, read, bounced."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from butlers.channels.registry import canonical_address
from butlers.clock import Clock
from butlers.contracts.envelope import Envelope, Identity, Timestamp, invalid
from butlers.errors import ClassifiedError, ErrorClass, FieldError, InternalError, ValidationError
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger.receipts")

TIMESTAMP = "Butlers-Timestamp"
SIGNATURE = "Butlers-Signature"
TOLERANCE_S = 300.0  # how far the two clocks may be apart, the way included
BOUNCED = "the provider says that the message came back"
BODY_LIMIT = 65_536
_VERSION = "v1="
_LONGEST_TIMESTAMP = 12  # digits
_STATUS = {ErrorClass.VALIDATION_ERROR: 422, ErrorClass.TARGET_UNAVAILABLE: 503, ErrorClass.TIMEOUT: 504}
ReceiptType = Literal["sent", "delivered", "read", "bounced"]


class Receipt(Envelope):
    """The delivery is named by our id, or by the provider's own; ours is known before the provider's is stored."""

    VERSION = "receipt.v1"

    schema_version: Literal["receipt.v1"] = "receipt.v1"
    receipt_type: ReceiptType
    delivery_id: UUID | None = None
    provider_delivery_id: Identity | None = None
    part: Annotated[int, Field(ge=1, le=10_000)] | None = None  # of a message in several parts
    permanent: bool = False  # of a bounce: this recipient will never get anything
    reason: Annotated[Identity, StringConstraints(max_length=200)] | None = None
    occurred_at: Timestamp | None = None

    @model_validator(mode="after")
    def _names_a_delivery(self) -> Self:
        if self.delivery_id is None and self.provider_delivery_id is None:
            raise ValueError("delivery_id or provider_delivery_id is required")
        return self

    @model_validator(mode="after")
    def _only_a_bounce_is_permanent(self) -> Self:
        if self.permanent and self.receipt_type != "bounced":
            raise ValueError("permanent goes with receipt_type bounced only")
        return self

    @property
    def arrived(self) -> bool:
        """Whether it says that the provider has the message."""
        return self.receipt_type != "bounced"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptOutcome:
    """What a receipt changed."""

    delivery_id: UUID
    receipt_type: ReceiptType
    repeated: bool = False  # it was on record already
    settled: bool = False  # the delivery was uncertain until now
    suppressed: bool = False  # the recipient is not written to any more, since now


class UnknownDelivery(ValidationError):
    """No delivery of this channel goes by that name."""

    def __init__(self, field: str) -> None:
        error = "names no delivery of this channel"
        super().__init__(f"{field}: {error}", fields=(FieldError(field=field, error=error),))


def signed_headers(key: str, body: bytes, *, now: datetime) -> dict[str, str]:
    stamp = str(int(now.timestamp()))
    return {TIMESTAMP: stamp, SIGNATURE: _signature(key, stamp, body)}


def problem_with(headers: Mapping[str, str], body: bytes, key: str, *, now: datetime) -> str | None:
    """Why the signature does not convince; None when it does. Header names are looked up as they stand above."""
    stamp, given = headers.get(TIMESTAMP, ""), headers.get(SIGNATURE, "")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= _LONGEST_TIMESTAMP):
        return f"{TIMESTAMP} must be a time in seconds since 1970"
    # Compared before the time is: whoever lacks the key learns nothing, not even about our clock.
    if not hmac.compare_digest(_signature(key, stamp, body).encode(), given.encode("utf-8", "replace")):
        return f"{SIGNATURE} does not fit the body"
    if abs(now.timestamp() - int(stamp)) > TOLERANCE_S:
        return f"{TIMESTAMP} is more than {TOLERANCE_S:g} seconds away from now"
    return None


def _signature(key: str, stamp: str, body: bytes) -> str:
    digest = hmac.new(key.encode(), f"{stamp}.".encode() + body, hashlib.sha256)
    return _VERSION + digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """The delivery a receipt is about, and which part of it."""

    id: UUID
    channel: str
    target: str | None
    part: int


class ReceiptIntake:
    """Writes receipts into one schema."""

    def __init__(
        self,
        *,
        database: Database,
        schema: str,
        clock: Clock,
        new_id: Callable[[], UUID],
        on_receipt: Callable[[str, str], None] | None = None,  # is told channel and type of each new receipt
    ) -> None:
        self._on_receipt = on_receipt
        self._database = database
        self._queries = Queries.load("butlers.messenger.receipts", schema=schema)
        self._clock = clock
        self._new_id = new_id

    async def record(self, channel: str, receipt: Receipt) -> ReceiptOutcome:
        """Keep what a provider says; raises `UnknownDelivery` when it is about nothing of ours."""
        now = self._clock.now()
        async with self._database.transaction() as connection:
            subject = await self._subject(connection, channel, receipt)
            known = await connection.fetchval(self._queries.provider_id_of_part, subject.id, subject.part)
            name = receipt.provider_delivery_id or known or str(subject.id)
            values = (subject.id, subject.part, name, receipt.receipt_type, now, metadata_of(receipt))
            written = await connection.fetchval(self._queries.record_receipt, self._new_id(), *values)
            settled = known is None and await self._settle(connection, subject, receipt, now)
            suppressed = receipt.permanent and await self._suppress(connection, subject, receipt, now)
        if written is not None and self._on_receipt is not None:
            self._on_receipt(channel, receipt.receipt_type)
        log.info("receipt recorded", delivery_id=subject.id, channel=channel, outcome=receipt.receipt_type)
        if suppressed:
            log.warning("recipient suppressed", delivery_id=subject.id, channel=channel, reason="bounced")
        return ReceiptOutcome(
            delivery_id=subject.id,
            receipt_type=receipt.receipt_type,
            repeated=written is None,
            settled=settled,
            suppressed=suppressed,
        )

    async def settle_reported(self, connection: Executor, delivery_id: UUID) -> bool:
        """Settle a delivery that was just left uncertain, if its receipt came before the attempt had ended."""
        now = self._clock.now()
        if not await connection.fetchval(self._queries.is_reported, delivery_id):
            return False
        if await connection.fetchval(self._queries.settle, delivery_id, "delivered", now, None, None, None) is None:
            return False
        await self._note(connection, delivery_id, "delivered", "the provider had reported it before", now)
        return True

    async def _subject(self, connection: Executor, channel: str, receipt: Receipt) -> _Subject:
        delivery_id, part, field = receipt.delivery_id, receipt.part, "delivery_id"
        if delivery_id is None:
            field = "provider_delivery_id"
            name = receipt.provider_delivery_id
            rows = await connection.fetch(self._queries.deliveries_by_provider_id, name, channel)
            if not rows:
                raise UnknownDelivery(field)
            if len(rows) > 1:
                raise invalid(field, "stands for more than one message; give the delivery_id")
            delivery_id, part = rows[0]["delivery_id"], rows[0]["part"]
        row = await connection.fetchrow(self._queries.delivery_by_id, delivery_id, channel)
        if row is None:
            raise UnknownDelivery(field)
        return _Subject(id=row["id"], channel=row["channel"], target=row["target_identity"], part=part or 1)

    async def _settle(self, connection: Executor, subject: _Subject, receipt: Receipt, now: datetime) -> bool:
        """A message that arrived was sent, and one that came back for good was too, but need not be sent again."""
        if not receipt.arrived and not receipt.permanent:
            return False
        status = "delivered" if receipt.arrived else "failed"
        error = (None, None, None) if receipt.arrived else (ErrorClass.TARGET_UNAVAILABLE.value, BOUNCED, False)
        settled = await connection.fetchval(self._queries.settle, subject.id, status, now, *error)
        if settled is None:
            return False
        await self._note(connection, subject.id, status, f"the provider reported it {receipt.receipt_type}", now)
        return True

    async def _suppress(self, connection: Executor, subject: _Subject, receipt: Receipt, now: datetime) -> bool:
        if subject.target is None:
            return False
        reason, target = receipt.reason or BOUNCED, canonical_address(subject.channel, subject.target)
        added = await connection.fetchval(self._queries.suppress_recipient, subject.channel, target, reason, now)
        if added is None:
            return False
        await self._note(connection, subject.id, "suppressed", f"bounced for good: {reason}", now)
        return True

    async def _note(self, connection: Executor, delivery_id: UUID, outcome: str, detail: str, now: datetime) -> None:
        decision = {"at": now.isoformat(), "rule": "provider receipt", "verdict": outcome, "detail": detail}
        await connection.execute(self._queries.note_decision, delivery_id, [decision], now)


def metadata_of(receipt: Receipt) -> dict[str, Any]:
    """What is kept of a receipt beside its own columns; `reported` tells it from what our worker wrote itself."""
    fields = receipt.to_wire()
    return {"reported": True} | {
        name: fields[name] for name in ("permanent", "reason", "occurred_at") if fields.get(name)
    }


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
