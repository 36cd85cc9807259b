"""Telling the owner what needs a person: uncertain deliveries, approvals, missing identifiers.

One message names everything that has come up since the last one, so a bad hour is a few messages and not hundreds. It
is an ordinary delivery in Messenger's name, on record like the rest, and never about another notice.
"""

from __future__ import annotations

from butlers.messenger.notices.notices import Notices

__all__ = ["Notices"]
