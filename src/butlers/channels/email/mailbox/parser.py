"""Foreign mail, taken apart in a worker process; what comes back is checked before anybody believes it."""

from __future__ import annotations

from typing import TypeVar

import pydantic
from pydantic import TypeAdapter

from butlers.channels.email.mailbox.mime import Mail, mail_document
from butlers.channels.email.mailbox.reports import Understood, understood_document
from butlers.isolation.isolate import FailureKind, Function, Isolate, IsolationFailed, IsolationLimits

T = TypeVar("T")
FUNCTIONS: tuple[Function, ...] = (mail_document, understood_document)


class MailParser:
    """Every method raises `IsolationFailed` for a mail that cannot be taken apart within the limits.

    It raises `TargetUnavailable` when no worker process could begin or a stop ended it.
    """

    def __init__(self, limits: IsolationLimits = IsolationLimits()) -> None:
        self._isolate = Isolate(FUNCTIONS, limits=limits)
        self._mail = TypeAdapter(Mail)
        self._understood = TypeAdapter(Understood)

    async def mail(self, raw: bytes) -> Mail:
        return _checked(self._mail, await self._isolate.run(mail_document, raw))

    async def understand(self, raw: bytes) -> Understood:
        return _checked(self._understood, await self._isolate.run(understood_document, raw))

    async def close(self) -> None:
        await self._isolate.close()


def _checked(adapter: TypeAdapter[T], answer: bytes) -> T:
    try:
        return adapter.validate_json(answer)
    except pydantic.ValidationError as error:
        raise IsolationFailed(FailureKind.CRASHED, "the worker process gave no valid answer") from error
