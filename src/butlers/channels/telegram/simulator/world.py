"""The world: its state, its journal, its time, and those who want to know.

    command -> changes -> commit: journal, then apply, then tell the listeners

Everything here is synchronous, so a command is atomic on the event loop. One commit is one journal line.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import asdict

from butlers.channels.telegram.simulator.faults import Fault, choose
from butlers.channels.telegram.simulator.limits import RateWindows
from butlers.channels.telegram.simulator.model import Chat, Message
from butlers.channels.telegram.simulator.state import BotState, Change, State, apply
from butlers.clock import Clock
from butlers.simulators.journal import Entry, Journal, MemoryJournal
from butlers.simulators.pauses import Pauses

Listener = Callable[[int, str], None]  # bot id, name of the change

_ANNOUNCED = frozenset({"update_queued", "webhook_set"})


class World:
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
