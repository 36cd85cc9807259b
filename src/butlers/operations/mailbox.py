"""Mails that could not be handled, and trying one of them again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydantic import Field

from butlers.contracts.envelope import Value
from butlers.operations.operation import (
    ACTS,
    CURSOR,
    LIMIT,
    LONGEST_PAGE,
    MESSENGER,
    PAGE,
    READS,
    SWITCHBOARD,
    Command,
    DecidedArguments,
    Document,
    Hint,
    Operation,
    Option,
    Result,
    Row,
    get,
    post,
    when,
)


class QuarantinedArguments(Value):
    limit: int = Field(default=PAGE, ge=1, le=LONGEST_PAGE, description="mails of one page")
    cursor: str | None = Field(default=None, max_length=80, description="next_cursor of the page before")


class RetryArguments(DecidedArguments):
    mail: str = Field(max_length=40, description="UIDVALIDITY-UID, as email_list_quarantined prints it")


class QuarantinedList(Result):
    mails: list[Row] = Field(description="the mails, each with the reason")
    next_cursor: str | None = Field(description="hand it back for the next page; null: this is the last one")


class MailRetried(Result):
    mail: str = Field(description="the mail, as email_list_quarantined prints it")
    retried_by: str = Field(description="who decided it")
    handled: bool = Field(description="whether it came to an end")


def _quarantined_lines(document: Document) -> Iterator[str]:
    for row in document["mails"]:
        yield f"{row['mail']}  {when(row['quarantined_at'])}  {row['attempts']} attempts  {row['size_bytes']} bytes"
        yield f"    {row['reason']}"
        yield Hint(f"    try it again: butlers mailbox retry {row['mail']}")


def _retried_lines(document: Document) -> Iterator[str]:
    if document["handled"]:
        yield f"mail {document['mail']} was handled"
    else:
        yield f"mail {document['mail']} stays quarantined"
        yield Hint("see why: butlers mailbox quarantined")


QUARANTINED: Final = Operation(
    name="email_list_quarantined",
    description="Mails that no attempt could bring to an end, newest first, each with the reason.",
    arguments=QuarantinedArguments,
    returns=QuarantinedList,
    hints=READS,
    butler=MESSENGER,
    routes=(get("/mailbox/quarantine", "Mails that could not be handled, newest first"),),
    commands=(
        Command(
            "mailbox quarantined",
            "Mails that are quarantined after three attempts, newest first, each with the reason.",
            _quarantined_lines,
            (LIMIT, CURSOR),
            none="no mail is quarantined",
        ),
    ),
)
RETRY: Final = Operation(
    name="email_retry_quarantined",
    description="Try a quarantined mail again; it stays quarantined unless that ends well.",
    arguments=RetryArguments,
    returns=MailRetried,
    hints=ACTS,
    owner=SWITCHBOARD,
    butler=MESSENGER,
    routes=(post("/mailbox/quarantine/{mail}/retry", "Try one of them again"),),
    commands=(
        Command(
            "mailbox retry",
            "Try a quarantined mail again; exit code 1 when it stays quarantined.",
            _retried_lines,
            (Option("mail", "A mail, as `mailbox quarantined` prints it.", metavar="MAIL"),),
            failed=lambda answer: not answer["handled"],
        ),
    ),
)

OPERATIONS: Final = (QUARANTINED, RETRY)
