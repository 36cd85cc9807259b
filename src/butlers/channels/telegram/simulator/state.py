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

from butlers.channels.telegram.simulator.faults import Fault, FaultKind, RateWindows, choose
from butlers.channels.telegram.simulator.model import (
    Bot,
    Chat,
    ChatKind,
    Message,
    Settings,
    Update,
    User,
    Webhook,
    Wire,
)
from butlers.clock import Clock
from butlers.simulators.connection import Pauses
from butlers.simulators.control import strike
from butlers.simulators.journal import Entry, Journal, MemoryJournal

KEPT_SECONDS = 24 * 3600
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
    """The world as one bot sees it."""

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
    faults: dict[int, Fault] = field(default_factory=dict)
    next_fault_id: int = 1


def apply(state: State, change: Change) -> None:
    _APPLIERS[change["change"]](state, change)


def _bot_added(state: State, change: Change) -> None:
    user = User(id=change["bot"], first_name=change["username"], username=change["username"], is_bot=True)
    bot = Bot(token=change["token"], user=user)
    if user.id in state.bots:
        state.bots[user.id].bot = bot
    else:
        state.bots[user.id] = BotState(bot=bot)


def _chat_opened(state: State, change: Change) -> None:
    chat = Chat(**change["chat"])
    chats = state.bots[change["bot"]].chats
    if chat.id in chats:
        chats[chat.id].chat = chat
    else:
        chats[chat.id] = ChatState(chat=chat)


def _message_stored(state: State, change: Change) -> None:
    message = message_from(change["message"])
    bot = state.bots[change["bot"]]
    held = bot.chats[message.chat_id]
    held.messages[message.message_id] = message
    if held.chat.kind is ChatKind.SUPERGROUP:
        held.last_message_id = max(held.last_message_id, message.message_id)
    else:
        bot.last_message_id = max(bot.last_message_id, message.message_id)


def message_from(record: dict[str, Any]) -> Message:
    parts = record | {"sender": User(**record["sender"]), "entities": tuple(record["entities"])}
    return Message(**parts)


def _message_deleted(state: State, change: Change) -> None:
    del state.bots[change["bot"]].chats[change["chat_id"]].messages[change["message_id"]]


def _update_queued(state: State, change: Change) -> None:
    bot = state.bots[change["bot"]]
    update = Update(**change["update"])
    bot.pending.append(update)
    bot.next_update_id = update.update_id + 1
    bot.last_update_at = update.date


def _updates_dropped(state: State, change: Change) -> None:
    pending = state.bots[change["bot"]].pending
    for _ in range(change["count"]):
        pending.popleft()


def _updates_numbered(state: State, change: Change) -> None:
    state.bots[change["bot"]].next_update_id = change["next"]


def _allowed_updates_set(state: State, change: Change) -> None:
    state.bots[change["bot"]].allowed_updates = tuple(change["allowed"])


def _webhook_set(state: State, change: Change) -> None:
    bot = state.bots[change["bot"]]
    bot.webhook = Webhook(**change["webhook"]) if change["webhook"] else None
    bot.webhook_error = None


def _user_blocked(state: State, change: Change) -> None:
    blocked = state.bots[change["bot"]].blocked
    (blocked.add if change["blocked"] else blocked.discard)(change["user_id"])


def _chat_migrated(state: State, change: Change) -> None:
    state.bots[change["bot"]].migrated[change["from"]] = change["to"]


def _settings_changed(state: State, change: Change) -> None:
    state.settings = state.settings.changed(change["settings"])


def _fault_added(state: State, change: Change) -> None:
    record = change["fault"]
    fault = Fault(**record | {"kind": FaultKind(record["kind"])})
    state.faults[fault.fault_id] = fault
    state.next_fault_id = fault.fault_id + 1


def _fault_used(state: State, change: Change) -> None:
    strike(state.faults, change["fault_id"])


def _fault_passed(state: State, change: Change) -> None:
    fault = state.faults[change["fault_id"]]
    state.faults[fault.fault_id] = replace(fault, skip=fault.skip - 1)


def _faults_cleared(state: State, change: Change) -> None:
    state.faults.clear()


def _reset(state: State, change: Change) -> None:
    """Forget everything but the bots and their counts: a number once used must not mean something else."""
    for bot in state.bots.values():
        _empty(bot)
    state.settings = Settings()
    state.faults.clear()


def _empty(bot: BotState) -> None:
    """In place, because a waiting poll holds on to its bot."""
    for held in (bot.chats, bot.pending, bot.blocked, bot.migrated):
        held.clear()
    bot.allowed_updates = ()
    bot.webhook = bot.webhook_error = None


_APPLIERS: dict[str, Callable[[State, Change], None]] = {
    "bot_added": _bot_added,
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
    "settings_changed": _settings_changed,
    "fault_added": _fault_added,
    "fault_used": _fault_used,
    "fault_passed": _fault_passed,
    "faults_cleared": _faults_cleared,
    "reset": _reset,
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
        self.rates = RateWindows()
        self.pauses = Pauses(clock)
        self._journal = journal or MemoryJournal()
        self._listeners: list[Listener] = []
        self._journal.replay(self._again)

    def unix_time(self) -> int:
        return int(self.clock.now().timestamp())

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def commit(self, *changes: Change) -> None:
        self._journal.append({"at": self.clock.now().isoformat(), "changes": changes})
        self._apply(changes)
        for change in changes:
            if change["change"] in _ANNOUNCED:
                self._tell(change["bot"], change["change"])

    def add_bot(self, token: str, username: str) -> BotState:
        """Make a bot known; its id is the number before the colon, as in the real service."""
        bot_id = int(token.partition(":")[0])
        known = self.state.bots.get(bot_id)
        if known is None or (known.bot.token, known.bot.user.username) != (token, username):
            self.commit({"change": "bot_added", "bot": bot_id, "token": token, "username": username})
        return self.state.bots[bot_id]

    def bot_of(self, token: str) -> BotState | None:
        return next((bot for bot in self.state.bots.values() if bot.bot.token == token), None)

    def use_faults(self, method: str, chat_id: int | None, *, marked: bool = False) -> tuple[Fault, ...]:
        """The faults this call meets; each counts as used, and those that still let it pass have done so once more."""
        hitting = [fault for fault in self.state.faults.values() if fault.hits(method, chat_id, marked=marked)]
        chosen = choose(fault for fault in hitting if fault.skip == 0)
        changes: list[Change] = [_noted("fault_passed", fault) for fault in hitting if fault.skip > 0]
        changes += [_noted("fault_used", fault) for fault in chosen if fault.times is not None]
        if changes:
            self.commit(*changes)
        return chosen

    def reset(self) -> None:
        self.commit({"change": "reset"})
        self.rates = RateWindows()

    def _again(self, entry: Entry) -> None:
        self._apply(entry["changes"])

    def _apply(self, changes: Iterable[Change]) -> None:
        for change in changes:
            apply(self.state, change)

    def _tell(self, bot_id: int, change: str) -> None:
        for listener in self._listeners:
            listener(bot_id, change)


def _noted(change: str, fault: Fault) -> Change:
    return {"change": change, "fault_id": fault.fault_id}


def opened(bot: BotState, chat: Chat) -> Change:
    return {"change": "chat_opened", "bot": bot.id, "chat": asdict(chat)}


def stored(bot: BotState, message: Message) -> Change:
    return {"change": "message_stored", "bot": bot.id, "message": asdict(message)}


def queued(world: SimulatedTelegram, bot: BotState, kind: str, body: Wire) -> tuple[Change, ...]:
    """The change that tells the bot, or none when it did not ask for this kind."""
    if not wanted(bot, kind):
        return ()
    update = Update(update_id=next_id(world, bot), date=world.unix_time(), kind=kind, body=body)
    return ({"change": "update_queued", "bot": bot.id, "update": asdict(update)},)


def wanted(bot: BotState, kind: str) -> bool:
    return kind in bot.allowed_updates if bot.allowed_updates else kind not in ON_REQUEST_ONLY


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
    oldest_kept = world.unix_time() - KEPT_SECONDS
    drop(world, bot, _leading(bot, lambda update: update.date < oldest_kept))


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
