"""How long Messenger keeps what it did, and how that goes.

    periods   from "so many days" to moments, and which of the old records nobody needs any more; decisions only
    removal   takes them away, a batch at a time

What refers to each other goes together or not at all:

    delivery  <--replay_of--  replay  <--replay_of--  replay     one family: the first delivery and its replays
       ^                        ^
       +-- attempts, receipts   +-- attempts, receipts           go with their delivery
       ^                        ^
    dead letter              dead letter                         goes first, and holds its family until then

A family stays whole because the replays are what forbids sending a dead letter a second time: a delivered replay that
was forgotten before its dead letter would let the same words out again.
"""

from butlers.messenger.retention.periods import RetentionPolicy
from butlers.messenger.retention.removal import Retention

__all__ = ["Retention", "RetentionPolicy"]
