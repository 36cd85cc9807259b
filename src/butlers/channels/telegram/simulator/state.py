"""What the simulated Telegram remembers, and the only way it changes.

A change is a plain JSON object, `{"change": <name>, ...}`: what the journal holds is what `apply` reads, so a
replayed world equals the one that wrote it. Changes carry every id and time; applying one decides nothing.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, takewhile
from typing import Any

from butlers.channels.telegram.simulator.model import (
    Bot,
    BotFault,
    Chat,
    ChatKind,
    Message,
    RateWindows,
    Settings,
    Update,
    User,
    Webhook,
    Wire,
)
from butlers.clock import Clock
from butlers.simulators.engine import Faults, Pauses
from butlers.simulators.journal import Journal

RETENTION_SECONDS = 24 * 3600
RENUMBERED_AFTER_SECONDS = 7 * 24 * 3600
FUTURE_SLACK = 10  # how far above the newest number an offset still counts
ON_REQUEST_ONLY = frozenset({"chat_member", "message_reaction", "message_reaction_count"})


Change = dict[str, Any]

FIRST_UPDATE_ID = 100_000_001


@dataclass(slots=True, kw_only=True)
class ChatState:
    chat: Chat
    messages: dict[int, Message] = field(default_factory=dict)  # by message_id, oldest first
    last_message_id: int = 0  # supergroups count for themselves


@dataclass(slots=True, kw_only=True)
class BotState:
    bot: Bot
    chats: dict[int, ChatState] = field(default_factory=dict)
    pending: deque[Update] = field(default_factory=deque)  # ids strictly increasing
    next_update_id: int = FIRST_UPDATE_ID
    last_update_at: int | None = None  # Unix seconds
    last_message_id: int = 0  # private chats and basic groups share one count
    allowed_updates: tuple[str, ...] = ()  # () is the default set
    webhook: Webhook | None = None
    webhook_error: tuple[int, str] | None = None  # Unix seconds and text; not journaled
    blocked: set[int] = field(default_factory=set)  # user ids
    migrated: dict[int, int] = field(default_factory=dict)  # group id -> supergroup id

    @property
    def id(self) -> int:
        return self.bot.user.id

    def message_id_for(self, chat: Chat) -> int:
        if chat.kind is ChatKind.SUPERGROUP:
            held = self.chats.get(chat.id)
            return (held.last_message_id if held else 0) + 1
        return self.last_message_id + 1


@dataclass(slots=True, kw_only=True)
class State:
    bots: dict[int, BotState] = field(default_factory=dict)  # the first is the default one
    settings: Settings = field(default_factory=Settings)


def _apply(state: State, change: Change) -> None:
    match change["change"]:
        case "bot_added":
            user = User(id=change["bot"], first_name=change["username"], username=change["username"], is_bot=True)
            bot = Bot(token=change["token"], user=user)
            state.bots.setdefault(user.id, BotState(bot=bot)).bot = bot
        case "settings_changed":
            state.settings = replace(state.settings, **change["settings"])
        case "reset":
            # Everything but the bots and their counts: a number once used must not mean something else.
            for each in state.bots.values():
                for held in (each.chats, each.pending, each.blocked, each.migrated):
                    held.clear()  # in place, because a waiting poll holds on to its bot
                each.allowed_updates = ()
                each.webhook = each.webhook_error = None
            state.settings = Settings()
        case _:
            _OF_BOTS[change["change"]](state.bots[change["bot"]], change)


def _chat_opened(bot: BotState, change: Change) -> None:
    chat = Chat(**change["chat"])
    bot.chats.setdefault(chat.id, ChatState(chat=chat)).chat = chat


def _message_stored(bot: BotState, change: Change) -> None:
    record = change["message"]
    message = Message(**record | {"sender": User(**record["sender"]), "entities": tuple(record["entities"])})
    held = bot.chats[message.chat_id]
    held.messages[message.message_id] = message
    counter = held if held.chat.kind is ChatKind.SUPERGROUP else bot
    counter.last_message_id = max(counter.last_message_id, message.message_id)


def _message_deleted(bot: BotState, change: Change) -> None:
    del bot.chats[change["chat_id"]].messages[change["message_id"]]


def _update_queued(bot: BotState, change: Change) -> None:
    update = Update(**change["update"])
    bot.pending.append(update)
    bot.next_update_id, bot.last_update_at = update.update_id + 1, update.date


def _updates_dropped(bot: BotState, change: Change) -> None:
    for _ in range(change["count"]):
        bot.pending.popleft()


def _updates_numbered(bot: BotState, change: Change) -> None:
    bot.next_update_id = change["next"]


def _allowed_updates_set(bot: BotState, change: Change) -> None:
    bot.allowed_updates = tuple(change["allowed"])


def _webhook_set(bot: BotState, change: Change) -> None:
    bot.webhook = Webhook(**change["webhook"]) if change["webhook"] else None
    bot.webhook_error = None


def _user_blocked(bot: BotState, change: Change) -> None:
    (bot.blocked.add if change["blocked"] else bot.blocked.discard)(change["user_id"])


def _chat_migrated(bot: BotState, change: Change) -> None:
    bot.migrated[change["from"]] = change["to"]


_OF_BOTS: dict[str, Callable[[BotState, Change], None]] = {
    "chat_opened": _chat_opened,
    "message_stored": _message_stored,
    "message_deleted": _message_deleted,
    "update_queued": _update_queued,
    "updates_dropped": _updates_dropped,
    "updates_numbered": _updates_numbered,
    "allowed_updates_set": _allowed_updates_set,
    "webhook_set": _webhook_set,
    "user_blocked": _user_blocked,
    "chat_migrated": _chat_migrated,
}


Listener = Callable[[int, str], None]  # bot id, name of the change

_ANNOUNCED = frozenset({"update_queued", "webhook_set"})


class SimulatedTelegram:
    def __init__(
        self, *, clock: Clock, journal: Journal | None = None, randomness: random.Random | None = None
    ) -> None:
        self.clock = clock
        # Update numbers only look random in the real service; a fixed seed keeps runs alike.
        self.randomness = randomness or random.Random(0)  # noqa: S311
        self.state = State()
        self.faults = Faults(BotFault, self.commit)
        self.rates = RateWindows()
        self.pauses = Pauses(clock)
        self._journal = journal or Journal()
        self._listeners: list[Listener] = []
        self._journal.replay(lambda entry: self._apply(entry["changes"]))

    def unix_time(self) -> int:
        return int(self.clock.now().timestamp())

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def commit(self, *changes: Change) -> None:
        self._journal.append({"at": self.clock.now().isoformat(), "changes": changes})
        self._apply(changes)
        for change in changes:
            for listener in self._listeners if change["change"] in _ANNOUNCED else ():
                listener(change["bot"], change["change"])

    def add_bot(self, token: str, username: str) -> BotState:
        """Make a bot known; its id is the number before the colon, as in the real service."""
        bot_id = int(token.partition(":")[0])
        known = self.state.bots.get(bot_id)
        if known is None or (known.bot.token, known.bot.user.username) != (token, username):
            self.commit({"change": "bot_added", "bot": bot_id, "token": token, "username": username})
        return self.state.bots[bot_id]

    def bot_of(self, token: str) -> BotState | None:
        return next((bot for bot in self.state.bots.values() if bot.bot.token == token), None)

    def reset(self) -> None:
        self.commit({"change": "reset"})
        self.rates = RateWindows()

    def _apply(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if not self.faults.apply(change):
                _apply(self.state, change)


def opened(bot: BotState, chat: Chat) -> Change:
    return {"change": "chat_opened", "bot": bot.id, "chat": asdict(chat)}


def stored(bot: BotState, message: Message) -> Change:
    return {"change": "message_stored", "bot": bot.id, "message": asdict(message)}


def queued(world: SimulatedTelegram, bot: BotState, kind: str, body: Wire) -> tuple[Change, ...]:
    """The change that tells the bot, or none when it did not ask for this kind."""
    asked = kind in bot.allowed_updates if bot.allowed_updates else kind not in ON_REQUEST_ONLY
    if not asked:
        return ()
    update = Update(update_id=next_id(world, bot), date=world.unix_time(), kind=kind, body=body)
    return ({"change": "update_queued", "bot": bot.id, "update": asdict(update)},)


def next_id(world: SimulatedTelegram, bot: BotState) -> int:
    silent = world.unix_time() - (bot.last_update_at or world.unix_time())
    if silent < RENUMBERED_AFTER_SECONDS:
        return bot.next_update_id
    drop_expired(world, bot)
    return world.randomness.randrange(1, 2**30)


def drop(world: SimulatedTelegram, bot: BotState, count: int) -> None:
    if count:
        world.commit({"change": "updates_dropped", "bot": bot.id, "count": count})


def drop_expired(world: SimulatedTelegram, bot: BotState) -> None:
    oldest = world.unix_time() - RETENTION_SECONDS
    drop(world, bot, _leading(bot, lambda update: update.date < oldest))


def confirmed_by(bot: BotState, offset: int) -> int:
    """How many of the oldest updates this offset forgets."""
    if offset < 0:
        return max(0, len(bot.pending) + offset)
    if offset > bot.next_update_id + FUTURE_SLACK:
        return 0
    return _leading(bot, lambda update: update.update_id < offset)


def fetch(world: SimulatedTelegram, bot: BotState, offset: int, limit: int) -> list[Update]:
    drop_expired(world, bot)
    drop(world, bot, confirmed_by(bot, offset))
    return list(islice(bot.pending, limit))


def _leading(bot: BotState, condition: Callable[[Update], bool]) -> int:
    return sum(1 for _ in takewhile(condition, bot.pending))
