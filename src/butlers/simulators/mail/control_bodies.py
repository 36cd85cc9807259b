"""The bodies of the control API, checked field by field."""

from __future__ import annotations

import json
from typing import Annotated, TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse

from butlers.errors import FieldError, ValidationError
from butlers.simulators.mail.faults import Fault, FaultKind, Server
from butlers.simulators.mail.mailbox import INBOX

_BODY_LIMIT = 16 * 1024 * 1024
_ADDRESS = r"^[^\s@<>\x00-\x1f]+@[^\s@<>\x00-\x1f]+$"

Address = Annotated[str, Field(pattern=_ADDRESS, max_length=320)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


BodyT = TypeVar("BodyT", bound=_Body)


class MessageBody(_Body):
    """A plain message from outside."""

    sender: Address = Field(alias="from")
    to: Address | list[Address] = Field(min_length=1)
    subject: str = ""
    text: str
    message_id: str | None = Field(default=None, pattern=r"^<[^<>\s]+>$")
    in_reply_to: str | None = Field(default=None, pattern=r"^<[^<>\s]+>$")
    headers: dict[str, str] = {}

    @property
    def recipients(self) -> tuple[str, ...]:
        return (self.to,) if isinstance(self.to, str) else tuple(self.to)


class FaultBody(_Body):
    """A fault; `phase` is for SMTP, `command` for IMAP."""

    server: Server = Field(strict=False)
    phase: str | None = None
    command: str | None = None
    kind: FaultKind = Field(strict=False)
    times: int | None = Field(default=1, ge=1)  # null: until removed
    seconds: float = Field(default=0.0, ge=0, le=3600)
    code: int = Field(default=451, ge=400, le=599)
    text: str | None = Field(default=None, max_length=400)
    recipient: str = "*"

    def fault(self) -> Fault:
        smtp = self.server is Server.SMTP
        moment = self.phase if smtp else self.command
        if moment is None or (self.command if smtp else self.phase) is not None:
            wanted, unwanted = ("phase", "command") if smtp else ("command", "phase")
            raise invalid(FieldError(field=wanted, error=f"{self.server} faults have a {wanted} and no {unwanted}"))
        return Fault(
            server=self.server,
            moment=moment.lower() if smtp else moment.upper(),
            kind=self.kind,
            times=self.times,
            seconds=self.seconds,
            code=self.code,
            text=_default_text(self.code) if self.text is None else self.text,
            recipient=self.recipient,
        )


class UidvalidityBody(_Body):
    address: str
    mailbox: str = INBOX


class Refused(Exception):
    """An answer other than success, on its way out."""

    def __init__(self, status: int, error: ValidationError) -> None:
        super().__init__(error.message)
        self.response = JSONResponse({"error": error.describe()}, status_code=status)


async def parsed_body(request: Request, model: type[BodyT]) -> BodyT:
    content = await read_body(request)
    try:
        decoded = json.loads(content)
    except (ValueError, RecursionError):
        problem = FieldError(field="", error="not JSON")
        raise Refused(400, ValidationError("the body is not JSON", fields=(problem,))) from None
    try:
        return model.model_validate(decoded)
    except pydantic.ValidationError as error:
        raise invalid(*(_field_error(e["loc"], e["msg"]) for e in error.errors())) from None


async def read_body(request: Request) -> bytes:
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > _BODY_LIMIT:
            problem = FieldError(field="", error=f"more than {_BODY_LIMIT} bytes")
            raise Refused(413, ValidationError("the body is too long", fields=(problem,)))
    return bytes(content)


def _field_error(location: tuple[int | str, ...], message: str) -> FieldError:
    return FieldError(field=".".join(str(part) for part in location), error=message)


def invalid(*fields: FieldError) -> ValidationError:
    return ValidationError("the request is not valid", fields=fields)


def unknown(name: str, problem: str) -> Refused:
    return Refused(404, ValidationError(problem, fields=(FieldError(field=name, error=problem),)))


def _default_text(code: int) -> str:
    return "4.7.1 Greylisted, please try again later" if code < 500 else "5.1.1 Mailbox unavailable"
