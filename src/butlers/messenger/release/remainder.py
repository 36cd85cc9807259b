"""Whether anything of a message is left to be sent when somebody has confirmed the part that was in doubt. Pure.

Nothing is left of a message that is one part. Of a longer one the channel is asked how many parts there are; a channel
that resumes and cannot count them finds out itself, by going on behind the parts on record.
"""

from __future__ import annotations

from butlers.channels.adapter import Adapter, CountsParts, Outgoing
from butlers.errors import ValidationError


def anything_left(outgoing: Outgoing, channel: Adapter | None, *, confirmed: int) -> bool:
    # A channel that is not served here cannot go on, and one that does not resume would say it all again.
    if channel is None or not channel.resumes:
        return False
    if not isinstance(channel, CountsParts):
        return True
    try:
        parts = channel.count_parts(outgoing)
    except ValidationError:
        return False  # nothing of it could be sent any more
    return not {*outgoing.parts_sent, confirmed} >= set(range(1, parts + 1))
