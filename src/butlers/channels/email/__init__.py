"""Email: SMTP out, an IMAP mailbox in, which Messenger reads because it writes from it."""

from __future__ import annotations

from collections.abc import Mapping

from butlers.channels.channel import (
    AddressForm,
    AnswersGo,
    Capabilities,
    Channel,
    Door,
    Feedback,
    Inbound,
    Outbound,
    Retry,
    Simulator,
    Threads,
)
from butlers.channels.email import authentication, headers

SIMULATED_ADDRESS = "butler@butlers.example"
SIMULATED_PASSWORD = "simulated"  # noqa: S105 - opens nothing but a simulator
OWNER_ADDRESS = "owner@butlers.example"


def _simulated(host: str, ports: Mapping[str, int]) -> dict[str, object]:
    servers: dict[str, object] = {"smtp_tls": "none", "imap_tls": "none", "mail_login": None, "smtp_login": None}
    for protocol in ("smtp", "imap"):
        servers |= {f"{protocol}_host": host, f"{protocol}_port": ports[f"{protocol}_simulator"]}
    return servers


CHANNEL = Channel(
    name="email",
    title="Email",
    address=AddressForm(canonical=headers.canonical, problem=headers.problem, person=headers.person),
    answers_go=AnswersGo.TO_SENDER,
    threads=Threads.CHAIN,
    inbound=Inbound(
        providers=("imap", "gmail"),
        feedback=Feedback.NONE,
        read_by="messenger",
        source_event=headers.source_event,
        is_automatic=authentication.written_by_a_machine,
        confirms_sender=authentication.vouches_for,
        command_lines=authentication.command_lines,
    ),
    outbound=Outbound(
        capabilities=Capabilities(receipts=True, idempotency_key=True, subject=True, html=True, unsubscribe=True),
        # Greylisting wants a sender to come back minutes later: eight attempts over some two hours.
        retry=Retry(max_attempts=8, base_delay_s=60.0, max_delay_s=3600.0),
        timeout_s=45.0,
        certainty="never_lose",  # a mailbox tells repeats apart by the Message-ID
        per_minute={"bot": 20.0, "user": 10.0},
        adapter="butlers.channels.email.adapter:make_adapter",
        refuses_answer=headers.may_answer,
        correspondent=headers.mailbox_of,
    ),
    credentials={"bot": ("address", "password"), "user": ("address", "password")},
    settings=(
        *("smtp_host", "smtp_port", "smtp_tls", "smtp_login"),
        *("imap_host", "imap_port", "imap_tls"),
        *("mail_tls_ca", "mail_login", "mail_from_name"),
    ),
    simulator=Simulator(
        name="mail",
        serve="butlers.channels.email.simulator:serve_mail",
        doors=(
            Door(name="smtp", port="smtp_simulator", usual=40125),
            Door(name="imap", port="imap_simulator", usual=40143),
            Door(name="mail_control", port="mail_control", usual=40182, scheme="http://"),
        ),
        options={"accounts": dict.fromkeys((SIMULATED_ADDRESS, OWNER_ADDRESS), SIMULATED_PASSWORD)},
        credentials={"address": SIMULATED_ADDRESS, "password": SIMULATED_PASSWORD},
        settings=_simulated,
        defaults={"owner_email": OWNER_ADDRESS},
        defaults_alone={"who_may_write_email": "open", "mail_authentication": "off"},
    ),
)
