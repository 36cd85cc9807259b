"""A mail world with two accounts, and the hands to write to it over SMTP and the control API."""

from __future__ import annotations

import smtplib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from butlers.channels.email.simulator import MailSimulator, serve_mail
from butlers.channels.email.simulator.faults import FaultKind, MailFault, Server
from butlers.clock import SystemClock
from tests.integration.simulators.mail_support import DEADLINE, controlling

BUTLER, OWNER, STRANGER = "butler@home.example", "owner@home.example", "friend@elsewhere.example"
ACCOUNTS = {BUTLER: "butler-password", OWNER: "owner-password"}


@pytest.fixture
async def mail() -> AsyncIterator[MailSimulator]:
    async with serve_mail("127.0.0.1", 0, 0, None, clock=SystemClock(), accounts=ACCOUNTS) as running:
        yield running


@pytest.fixture
async def control(mail: MailSimulator) -> AsyncIterator[httpx2.AsyncClient]:
    async with controlling(mail) as client:
        yield client


def connect(mail: MailSimulator) -> smtplib.SMTP:
    return smtplib.SMTP(mail.host, mail.smtp_port, local_hostname="client.example", timeout=DEADLINE)


def letter(message_id: str = "<one@home.example>", text: str = "good morning") -> bytes:
    head = f"From: {BUTLER}\r\nTo: {OWNER}\r\nSubject: News\r\nMessage-ID: {message_id}\r\n"
    return f"{head}\r\n{text}\r\n".encode()


def send(mail: MailSimulator, *to: str, raw: bytes | None = None) -> dict[str, tuple[int, bytes]]:
    with connect(mail) as client:
        return client.sendmail(BUTLER, to or (OWNER,), raw or letter())


def fault(moment: str, kind: FaultKind, **more: Any) -> MailFault:
    return MailFault(server=Server.SMTP, moment=moment, kind=kind, **more)
