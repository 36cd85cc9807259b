"""Mail of any kind: what comes in is read within bounds, what goes out is composed or refused."""

from __future__ import annotations

import socket

from butlers.channels.adapter import NotSent, Outgoing, Sent
from butlers.channels.email.adapter import EmailChannel
from butlers.channels.email.mailbox.imap import Fetched
from butlers.channels.email.mailbox.mail_server import MailServer
from butlers.channels.email.mailbox.mime import read_mail
from butlers.channels.email.mailbox.reports import understand
from butlers.channels.email.mailbox.routing import to_envelope
from butlers.clock import SystemClock
from butlers.contracts.ingest import IngestEnvelope
from butlers.errors import ValidationError
from butlers.ids import Uuid7Factory
from tests.fuzz.corpus import MAILS
from tests.fuzz.mutation import HOSTILE, as_json, mangled
from tests.fuzz.tries import Findings, dice_of, tries


def test_any_mail_is_read_and_becomes_an_event() -> None:
    findings, clock = Findings("mime"), SystemClock()
    for number in range(tries("mime")):
        raw = _mail(number)
        with findings.watch(number):
            understand(raw)
            fetched = Fetched(uid=1, size=len(raw), seen=False, arrived_at=None, raw=raw)
            envelope = to_envelope(fetched, read_mail(raw), address="butler@butlers.example", now=clock.now())
            IngestEnvelope.parse(as_json(envelope.to_wire()))
    findings.check()


def _mail(number: int) -> bytes:
    dice = dice_of("mime", number)
    raw = dice.choice(MAILS)
    if dice.random() < 0.02:  # parts within parts within parts
        return raw + (b"Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n" * dice.choice((10, 70, 2000)))
    return mangled(mangled(raw, dice), dice) if dice.random() < 0.5 else mangled(raw, dice)


class _Wire:
    def leaving(self, part: int = 1) -> None:
        return

    async def part_sent(self, part: int, provider_delivery_id: str) -> None:
        return


async def test_any_outgoing_mail_is_attempted_or_refused() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: every attempt ends at once
        port = closed.getsockname()[1]
        server = MailServer(protocol="smtp", host="127.0.0.1", port=port, tls="none")
        channel = EmailChannel(server=server, address="butler@butlers.example", password="x")
        findings, new_id = Findings("outgoing"), Uuid7Factory(SystemClock())
        words = [value for value in HOSTILE if isinstance(value, str)]
        for number in range(tries("outgoing")):
            dice = dice_of("outgoing", number)
            outgoing = Outgoing(
                delivery_id=new_id(),
                idempotency_key=f"fuzz-{number}",
                intent=dice.choice(("send", "reply")),
                target=dice.choice(("ann@example.org", "a@b", '"a b"@example.org', *words)),
                message=dice.choice(words) or "x",
                subject=dice.choice((None, *words)),
                source_event={dice.choice(("message_id", "references", "subject")): dice.choice(HOSTILE)},
            )
            with findings.watch(number, ValidationError):
                result = await channel.attempt(outgoing, timeout_s=5, wire=_Wire())
                if not isinstance(result, NotSent | Sent):
                    findings.add(number, f"answered with {type(result).__name__}")
                elif isinstance(result, NotSent) and result.error.error_class == "internal_error":
                    findings.add(number, f"internal_error: {result.error.message}")
        await channel.close()
        findings.check()
