"""The control API: what a test, a demo or a person does to the simulated mail world.

| request                                      | effect                                                      |
|----------------------------------------------|-------------------------------------------------------------|
| POST   /control/mail/messages                | an outside sender writes to one or more local mailboxes     |
| POST   /control/mail/messages/raw?to=&from=  | the same, the body (message/rfc822) byte for byte           |
| GET    /control/mail/accepted[?after=N]      | what SMTP accepted, oldest first                            |
| GET    /control/mail/accepted/{N}/raw        | one of them, byte for byte                                  |
| POST   /control/mail/accepted/{N}/report     | a mail server reports on it to its sender (RFC 3464)        |
| GET    /control/mail/mailboxes[/{address}]   | accounts, folders and messages                              |
| POST   GET DELETE /control/mail/faults[/{id}]| add, list and remove faults                                 |
| POST   /control/mail/uidvalidity             | make remembered UIDs worthless                              |
| POST   /control/mail/reset                   | empty mailboxes, empty transcript, no faults                |

Refusals are those of every control API (`simulators/engine.py`).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from butlers.channels.email.simulator.faults import FaultKind, MailFault, PendingFaults, Server
from butlers.channels.email.simulator.messages import OutsideMail, Report, compose, summary, write_report
from butlers.channels.email.simulator.store import INBOX, AcceptedMail, Mailbox, MailStore
from butlers.ids import Uuid7Factory
from butlers.simulators.engine import Body, control_routes, invalid, parsed_body, read_body, unknown


class FaultBody(Body):
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

    def fault(self) -> MailFault:
        smtp = self.server is Server.SMTP
        moment = self.phase if smtp else self.command
        if moment is None or (self.command if smtp else self.phase) is not None:
            needed, forbidden = ("phase", "command") if smtp else ("command", "phase")
            raise invalid(needed, f"{self.server} faults have a {needed} and no {forbidden}")
        given = self.model_dump(exclude={"phase", "command"})
        if self.text is None:
            given["text"] = "5.1.1 Mailbox unavailable" if self.code >= 500 else MailFault.model_fields["text"].default
        return MailFault(moment=moment.lower() if smtp else moment.upper(), **given)


class UidvalidityBody(Body):
    address: str
    mailbox: str = INBOX


class MailControl:
    """The routes, to be mounted alone or beside another simulator's."""

    def __init__(self, store: MailStore, faults: PendingFaults) -> None:
        self._store = store
        self._faults = faults
        self._new_id = Uuid7Factory(store.clock)

    def routes(self) -> list[Route]:
        return control_routes(
            ("POST", "/messages", self.send),
            ("POST", "/messages/raw", self.send_raw),
            ("GET", "/accepted", self.list_accepted),
            ("GET", "/accepted/{number:int}/raw", self.read_accepted),
            ("POST", "/accepted/{number:int}/report", self.report),
            ("GET", "/mailboxes", lambda _request: {"addresses": list(self._store.addresses)}),
            ("GET", "/mailboxes/{address}", self.read_account),
            ("POST", "/faults", self.add_fault),
            ("GET", "/faults", lambda _request: {"faults": [fault.to_wire() for fault in self._faults.waiting()]}),
            ("DELETE", "/faults", self.clear_faults),
            ("DELETE", "/faults/{id:int}", self.remove_fault),
            ("POST", "/uidvalidity", self.renew_uidvalidity),
            ("POST", "/reset", self.reset),
            below="/mail",
        )

    async def send(self, request: Request) -> Response:
        body = await parsed_body(request, OutsideMail)
        self._require_local(body.recipients)
        message_id = body.message_id or f"<{self._new_id()}@{body.sender.rpartition('@')[2]}>"
        raw = compose(body, message_id=message_id, now=self._store.clock.now())
        return self._delivered(body.recipients, raw, body.sender, message_id)

    async def send_raw(self, request: Request) -> Response:
        to = request.query_params.getlist("to")
        if not to:
            raise invalid("to", "name at least one local mailbox")
        self._require_local(tuple(to))
        sender = request.query_params.get("from", "")
        if not sender.isprintable() or any(character in sender for character in "<> "):
            raise invalid("from", "must be an address, or empty for a bounce")
        raw = await read_body(request, kind="message/rfc822")
        return self._delivered(tuple(to), raw, sender, summary(raw)["message_id"])

    def list_accepted(self, request: Request) -> Response:
        after = request.query_params.get("after", "0")
        if not (after.isascii() and after.isdigit()):
            raise invalid("after", "must be a number")
        mails = [_accepted_view(mail) for mail in self._store.accepted if mail.number > int(after)]
        return JSONResponse({"accepted": mails})

    def read_accepted(self, request: Request) -> Response:
        return Response(self._accepted(request).raw, media_type="message/rfc822")

    async def report(self, request: Request) -> Response:
        mail, body = self._accepted(request), await parsed_body(request, Report)
        if not self._store.is_local(mail.envelope_from):
            raise invalid("number", "its sender has no mailbox here")
        recipient = body.recipient or next((r.address for r in mail.recipients if r.accepted), "")
        report = body.model_copy(update={"recipient": recipient})
        raw = write_report(mail, report, report_id=str(self._new_id()), now=self._store.clock.now())
        return self._delivered((mail.envelope_from,), raw, "", summary(raw)["message_id"])

    def read_account(self, request: Request) -> Response:
        address = request.path_params["address"]
        if not self._store.is_local(address):
            raise unknown("address", "no such mailbox")
        mailboxes = self._store.mailboxes(address).values()
        return JSONResponse({"address": address, "mailboxes": [_mailbox_view(m) for m in mailboxes]})

    async def add_fault(self, request: Request) -> Response:
        body = await parsed_body(request, FaultBody)
        return JSONResponse(self._faults.add(body.fault()).to_wire(), status_code=201)

    def clear_faults(self, _request: Request) -> Response:
        self._faults.clear()
        return Response(status_code=204)

    def remove_fault(self, request: Request) -> Response:
        if not self._faults.remove(request.path_params["id"]):
            raise unknown("id", "no such fault")
        return Response(status_code=204)

    async def renew_uidvalidity(self, request: Request) -> Response:
        body = await parsed_body(request, UidvalidityBody)
        try:
            uidvalidity = self._store.renew_uidvalidity(body.address, body.mailbox)
        except KeyError:
            raise unknown("mailbox", "no such mailbox") from None
        return JSONResponse({"uidvalidity": uidvalidity})

    def reset(self, _request: Request) -> Response:
        self._faults.clear()
        self._store.reset()
        return Response(status_code=204)

    def _accepted(self, request: Request) -> AcceptedMail:
        number = request.path_params["number"]
        for mail in self._store.accepted:
            if mail.number == number:
                return mail
        raise unknown("number", "no such message")

    def _require_local(self, recipients: tuple[str, ...]) -> None:
        if not all(self._store.is_local(address) for address in recipients):
            raise invalid("to", "every recipient must be a local mailbox")

    def _delivered(self, recipients: tuple[str, ...], raw: bytes, sender: str, message_id: str | None) -> Response:
        uids = {a: self._store.deliver(a, raw, envelope_from=sender).uid for a in recipients}
        return JSONResponse({"message_id": message_id, "uids": uids}, status_code=201)


def _accepted_view(mail: AcceptedMail) -> dict[str, Any]:
    return {
        "number": mail.number,
        "at": mail.at.isoformat(),
        "from": mail.envelope_from,
        "recipients": [asdict(r) | {"accepted": r.accepted} for r in mail.recipients],
        **{key: value for key, value in summary(mail.raw).items() if key not in ("from", "to")},
    }


def _mailbox_view(mailbox: Mailbox) -> dict[str, Any]:
    messages = [
        {"uid": uid, "flags": sorted(one.flags), "internal_date": one.internal_date.isoformat(), **summary(one.raw)}
        for uid, one in mailbox.messages.items()
    ]
    counts = {"uidvalidity": mailbox.uidvalidity, "uidnext": mailbox.uidnext}
    return {"name": mailbox.name, **counts, "messages": messages}
