"""The update queue of a bot.

numbering    one up from the last; after a silent week the next number is drawn anew
keeping      a day, then an update is gone whether it was fetched or not
fetching     offset n > 0: forget what is below n, give what is left
             offset n < 0: forget all but the last -n
             an offset far above the newest number is one from before a renumbering: it forgets nothing
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import islice, takewhile

from butlers.channels.telegram.simulator.model import Update, Wire
from butlers.channels.telegram.simulator.state import BotState, Change
from butlers.channels.telegram.simulator.world import World

KEPT_SECONDS = 24 * 3600
RENUMBERED_AFTER_SECONDS = 7 * 24 * 3600
FUTURE_SLACK = 10  # how far above the newest number an offset still counts
ON_REQUEST_ONLY = frozenset({"chat_member", "message_reaction", "message_reaction_count"})


def queued(world: World, bot: BotState, kind: str, body: Wire) -> tuple[Change, ...]:
    """The change that tells the bot, or none when it did not ask for this kind."""
    if not wanted(bot, kind):
        return ()
    update = Update(update_id=next_id(world, bot), date=world.unix_time(), kind=kind, body=body)
    return ({"change": "update_queued", "bot": bot.id, "update": asdict(update)},)


def wanted(bot: BotState, kind: str) -> bool:
    return kind in bot.allowed_updates if bot.allowed_updates else kind not in ON_REQUEST_ONLY


def next_id(world: World, bot: BotState) -> int:
    silent = world.unix_time() - (bot.last_update_at or world.unix_time())
    if silent < RENUMBERED_AFTER_SECONDS:
        return bot.next_update_id
    drop_expired(world, bot)
    return world.randomness.randrange(1, 2**30)


def drop(world: World, bot: BotState, count: int) -> None:
    if count:
        world.commit({"change": "updates_dropped", "bot": bot.id, "count": count})


def drop_expired(world: World, bot: BotState) -> None:
    oldest_kept = world.unix_time() - KEPT_SECONDS
    drop(world, bot, _leading(bot, lambda update: update.date < oldest_kept))


def confirmed_by(bot: BotState, offset: int) -> int:
    """How many of the oldest updates this offset forgets."""
    if offset < 0:
        return max(0, len(bot.pending) + offset)
    if offset > bot.next_update_id + FUTURE_SLACK:
        return 0
    return _leading(bot, lambda update: update.update_id < offset)


def fetch(world: World, bot: BotState, offset: int, limit: int) -> list[Update]:
    drop_expired(world, bot)
    drop(world, bot, confirmed_by(bot, offset))
    return list(islice(bot.pending, limit))


def _leading(bot: BotState, condition: Callable[[Update], bool]) -> int:
    return sum(1 for _ in takewhile(condition, bot.pending))
