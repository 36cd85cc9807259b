"""The delivery runtime: may it go, by which channel, when.

    message + documents of the recipients
        │
     resolve     user's preference > organization's default > system's default > any enabled channel
        │           └── no-channel
     permit      messages:send:{channel} of the sender, then messages:receive:{channel} of the recipient
        │           └── sender-permission, recipient-permission
     wait        until neither the recipient's quiet hours nor the policy's hold
        │
     pace        the sender's limits by minute, hour and day
        │           └── throttled: there is no time left before the horizon
     schedule    outbound.scheduled_messages, in one transaction

Everything above the last line is pure: it gets the time and the documents and returns a value. The service asks it for
a few recipients at a time, the pipeline (`audience-plan`) for millions; both get the same answers.
"""

from __future__ import annotations

from butlers.storage.migrations import MigrationSet

SCHEMA = "outbound"
MIGRATIONS = MigrationSet(schema=SCHEMA, package="butlers.outbound", component="outbound")
