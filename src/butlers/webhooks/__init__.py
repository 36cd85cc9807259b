"""Outgoing webhooks: what becomes of requests and deliveries, told to the addresses of subscribers.

    events      which events there are, and the patterns that choose among them
    addresses   which addresses may be called, checked where the connection is made
    signature   Standard Webhooks: secrets and signed headers
    endpoints   the subscribers' endpoints and what operators do with them
    deliveries  one event for one endpoint: published, claimed, settled, replayed
    sender      one attempt over HTTP            worker   claims what is due and sends it

An event is delivered at least once. Its `webhook-id` is the same in every attempt, so the receiver can tell a repeat.
"""

from __future__ import annotations

from butlers.storage.migrations import MigrationSet

SCHEMA = "webhooks"
MIGRATIONS = MigrationSet(schema=SCHEMA, package="butlers.webhooks", component="webhooks")
