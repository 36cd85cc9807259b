"""All operations that have HTTP routes, whoever carries them out."""

from __future__ import annotations

from typing import Final

from butlers.operations import (
    approvals,
    backfill,
    butlers,
    connectors,
    dead_letters,
    deliveries,
    mailbox,
    operators,
    recipients,
    requests,
    routing,
    senders,
)
from butlers.operations.operation import Operation

OPERATIONS: Final[tuple[Operation, ...]] = (
    *requests.OPERATIONS,
    *operators.OPERATIONS,
    *routing.OPERATIONS,
    *butlers.OPERATIONS,
    *connectors.OPERATIONS,
    *backfill.OPERATIONS,
    *senders.OPERATIONS,
    *deliveries.OPERATIONS,
    *dead_letters.OPERATIONS,
    *mailbox.OPERATIONS,
    *recipients.OPERATIONS,
    *approvals.OPERATIONS,
)
