"""All operations that have HTTP routes, whoever carries them out."""

from __future__ import annotations

from typing import Final

from butlers.operations import (
    approvals,
    connector_statistics,
    connectors,
    dead_letters,
    deliveries,
    entitlements,
    messages,
    operators,
    people,
    preferences,
    requests,
    routing,
    templates,
    webhooks,
)
from butlers.operations.operation import Operation

OPERATIONS: Final[tuple[Operation, ...]] = (
    *requests.OPERATIONS,
    *operators.OPERATIONS,
    *routing.OPERATIONS,
    *connectors.OPERATIONS,
    *connector_statistics.OPERATIONS,
    *people.OPERATIONS,
    *messages.OPERATIONS,
    *preferences.OPERATIONS,
    *entitlements.OPERATIONS,
    *deliveries.OPERATIONS,
    *dead_letters.OPERATIONS,
    *approvals.OPERATIONS,
    *templates.OPERATIONS,
    *webhooks.OPERATIONS,
)
