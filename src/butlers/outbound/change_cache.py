"""What was read from tables of the delivery runtime, remembered until it changes or grows too old.

    get_many -> remembered and fresh?  ── yes ─> the stored value
                      │ no
                    load                 one batched read of all keys that are missing
                      │
                 changed meanwhile?      ── yes ─> returned, and not remembered
                      │ no
                  remembered

An entry is used only while its owner would hear of a change (`is_trusted`). While it would not, every call loads: a
permission that was taken back must not outlive a lost connection.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from butlers.clock import Clock

K = TypeVar("K")
V = TypeVar("V")


class ChangeCache(Generic[K, V]):
    """Values by key; `group_of` names what a change forgets at once, such as all that is known of one subject."""

    def __init__(
        self,
        *,
        ttl_s: float,
        most: int,  # entries; the one that was loaded longest ago gives way
        clock: Clock,
        group_of: Callable[[K], str],
        is_trusted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._ttl_s = ttl_s
        self._most = most
        self._clock = clock
        self._group_of = group_of
        self._is_trusted = is_trusted
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()  # until when, by the monotonic clock
        self._groups: dict[str, set[K]] = {}
        self._version = 0  # changes with everything that is forgotten

    def __len__(self) -> int:
        return len(self._entries)

    async def get_many(self, keys: Iterable[K], load: Callable[[Sequence[K]], Awaitable[Mapping[K, V]]]) -> dict[K, V]:
        """The values of all keys; `load` reads those that are not remembered, and answers for every one of them."""
        asked = list(dict.fromkeys(keys))
        found = self._fresh(asked) if self._is_trusted() else {}
        missing = [key for key in asked if key not in found]
        if missing:
            version = self._version
            loaded = await load(missing)
            # A change that came while it was read may, or may not, be part of what was read.
            if version == self._version and self._is_trusted():
                self._remember(loaded)
            found |= loaded
        return found

    def forget(self, groups: Iterable[str]) -> None:
        self._version += 1
        for group in groups:
            for key in self._groups.pop(group, ()):
                self._entries.pop(key, None)

    def clear(self) -> None:
        self._version += 1
        self._entries.clear()
        self._groups.clear()

    def _fresh(self, keys: Iterable[K]) -> dict[K, V]:
        now, found = self._clock.monotonic(), {}
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None and now < entry[0]:
                found[key] = entry[1]
        return found

    def _remember(self, loaded: Mapping[K, V]) -> None:
        until = self._clock.monotonic() + self._ttl_s
        for key, value in loaded.items():
            self._entries[key] = (until, value)
            self._entries.move_to_end(key)
            self._groups.setdefault(self._group_of(key), set()).add(key)
        while len(self._entries) > self._most:
            key, _ = self._entries.popitem(last=False)
            group = self._group_of(key)
            members = self._groups[group]
            members.discard(key)
            if not members:
                del self._groups[group]
