"""Email: SMTP out, an IMAP mailbox in, which Messenger reads because it writes from it."""

from __future__ import annotations

from butlers.channels.channel import (
    AddressForm,
    AnswersGo,
    Capabilities,
    Channel,
    Feedback,
    Inbound,
    Outbound,
    Retry,
    Threads,
)
from butlers.channels.email import authentication, headers

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
        capabilities=Capabilities(receipts=True, idempotency_key=True, subject=True),
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
    simulator="butlers.channels.email.simulator:serve_mail",
)
