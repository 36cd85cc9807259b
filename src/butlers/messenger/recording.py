"""Outcomes on their way to their rows: together where they come together, and insistently."""

from __future__ import annotations

from butlers.channels.adapter import Sent
from butlers.clock import Clock
from butlers.messenger.deliveries import Deliveries
from butlers.messenger.delivery import Ended
from butlers.messenger.unrecordable import is_refused, without_words
from butlers.storage.group_commit import GroupCommitter
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger")

_INSIST_S = 0.5  # between tries to record an outcome
# Outcomes in one transaction. With more, everybody who waits would hear at the same moment and come again at the same
# moment, and the processor and the disk would take turns instead of working side by side.
_TOGETHER = 64


class Recorder:
    """Writes down how attempts ended."""

    def __init__(self, *, deliveries: Deliveries, clock: Clock) -> None:
        self._deliveries = deliveries
        self._clock = clock
        self._finishes: GroupCommitter[Ended, bool] = GroupCommitter(deliveries.finish, max_batch=_TOGETHER)

    async def write_down(self, ended: Ended) -> Ended | None:
        """What is known now would be doubt after a crash. Returns what was recorded; None: the claim was lost."""
        silent = False
        while True:
            try:
                written = await self._finishes.submit(ended)
            except Exception as error:
                log.error("outcome was not recorded", error=error, delivery_id=ended.delivery.id)
                if is_refused(error) and not silent:
                    ended, silent = without_words(ended), True
                else:
                    await self._clock.sleep(_INSIST_S)
                continue
            if not written:
                await self._say_late(ended)
            return ended if written else None

    async def _say_late(self, ended: Ended) -> None:
        """Somebody took the delivery over and may believe it lost; a yes of the provider still counts."""
        log.warning("delivery was taken over", delivery_id=ended.delivery.id)
        if isinstance(ended.result, Sent):
            settled = await self._deliveries.late_yes(ended, ended.result)
            log.warning("it was sent all the same", delivery_id=ended.delivery.id, outcome=settled)
