"""Stretches of whole processes put together: what the first heartbeat of each adds to what came before it.

Pure functions on columns, without Spark, on all stretches of some processes. In the order in which they came, a stretch
is compared by its first heartbeat with the furthest one before it, and hands on its last and its furthest one:

    |- body -| . . .  |--- body ---| .        . a loose one
          |  |        |
     furthest last  first: younger than `last` and sent later: anew, from zero
                           younger than `furthest`: overtaken
                           otherwise: the difference to `furthest`

That is right as long as nothing comes between the heartbeats of a body or at the same moment as its ends (the order is
then that of ids, which bodies do not keep), no body is overtaken as a whole, and the sums are numbers that can be
written. Otherwise the process is `troubled`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
from numpy.typing import NDArray

from butlers.pipeline.transforms.hourly_stretches import (
    COUNTERS,
    FURTHEST,
    HOUR_US,
    PROCESS,
    STATE_COUNTS,
    Flags,
    Ints,
    as_before,
    processes,
    ranked,
    values,
)

# What came before the first heartbeat of a younger process cannot have been pruned: there was nothing.
YOUNG_S = 12 * 3600.0
_MOST = (1 << 63) - 1
_PART = (*PROCESS, "troubled", "hour")
SUMS = (*COUNTERS, "heartbeat_count", *STATE_COUNTS)


def part_schema() -> pa.Schema:
    """What an endpoint's processes add to an hour; or, with `troubled`, no more than the name of a process."""
    names = [(name, pa.string()) for name in PROCESS]
    return pa.schema([*names, ("troubled", pa.bool_()), *((name, pa.int64()) for name in ("hour", *SUMS))])


def put_together(stretches: pa.Table) -> pa.Table:
    """Parts of hours, for endpoints all of whose stretches are here: one part for each endpoint and hour."""
    if stretches.num_rows == 0:
        return part_schema().empty_table()
    ordered, process = _each_once(stretches)
    goes_on = as_before(process)
    anew, overtaken = _placed(ordered, goes_on)
    trouble = _troubles(ordered, goes_on, overtaken) | _too_large(ordered)
    begins = np.flatnonzero(~goes_on)
    troubled = np.repeat(np.logical_or.reduceat(trouble, begins), np.diff(begins, append=len(process)))
    firsts = _firsts(ordered, _grown(ordered, goes_on, anew, overtaken), np.flatnonzero(~troubled))
    told = _by_hour(pa.concat_tables([firsts, _rests(ordered, np.flatnonzero(~troubled))]))
    return pa.concat_tables([told, _named(ordered, begins[troubled[begins]])])


def _by_hour(parts: pa.Table) -> pa.Table:
    summed = parts.group_by(list(_PART), use_threads=False).aggregate([(name, "sum") for name in SUMS])
    return pa.table(
        [summed.column(name if name in _PART else f"{name}_sum") for name in part_schema().names], schema=part_schema()
    )


def _too_large(stretches: pa.Table) -> Flags:
    """Which ones have a number so large that the sum of as many of them could not be written."""
    hours = stretches.column("hours").combine_chunks()
    inside, of = hours.flatten(), hours.value_parent_indices().to_numpy()
    most = _MOST // (stretches.num_rows + len(inside))
    found: Flags = np.logical_or.reduce([values(stretches, name) > most for name in COUNTERS])
    for name in COUNTERS:
        found[of[inside.field(name).to_numpy() > most]] = True
    return found


def _each_once(stretches: pa.Table) -> tuple[pa.Table, NDArray[Any]]:
    process, received, single = processes(stretches), values(stretches, "received_at"), _loose(stretches)
    ident = _idents(stretches, process, received)
    place = np.lexsort((ident, single, received, process))
    same = as_before(process[place]) & as_before(received[place]) & as_before(ident[place])
    kept = place[~(same & single[place] & as_before(single[place]))]
    return stretches.take(kept), process[kept]


def _idents(stretches: pa.Table, process: NDArray[Any], received: Ints) -> Ints:
    """The ranks of ids, where several came at one moment; the others stay 0, and no two of these are of one process and
    moment.
    """
    place = np.lexsort((received, process))
    ident = np.zeros(len(place), np.int64)
    found, rank = ranked(stretches.column("id"), place, as_before(process[place]) & as_before(received[place]))
    ident[place[found]] = rank
    return ident


def _loose(stretches: pa.Table) -> Flags:
    """Which ones are a heartbeat by itself: those of a body, all but the first, have an hour."""
    hours = stretches.column("hours").combine_chunks()
    found: Flags = hours.value_lengths().to_numpy() == 0
    return found


def _placed(stretches: pa.Table, goes_on: Flags) -> tuple[Flags, Flags]:
    """Which ones begin a life, and which are overtaken."""
    uptime, sent = values(stretches, "uptime_s"), values(stretches, "sent_at")
    anew = (
        goes_on
        & (uptime < _before(values(stretches, "last_uptime_s")))
        & (sent > _before(values(stretches, "last_sent_at")))
    )
    left_in = np.cumsum(~goes_on | anew, dtype=np.int64) + np.cumsum(values(stretches, "lives"))
    reached = pd.Series(values(stretches, "furthest_uptime_s")).groupby(left_in, sort=False).cummax().to_numpy()
    return anew, goes_on & ~anew & (uptime < _before(reached))


def _troubles(stretches: pa.Table, goes_on: Flags, overtaken: Flags) -> Flags:
    received, single = values(stretches, "received_at"), _loose(stretches)
    since = received - _before(values(stretches, "last_received_at"))
    in_between = goes_on & ~(single & _before(single)) & (since <= 0)  # loose ones are in the order of their ids
    found: Flags = in_between | (overtaken & ~single)
    return found


def _grown(stretches: pa.Table, goes_on: Flags, anew: Flags, overtaken: Flags) -> list[Ints]:
    news = np.maximum.accumulate(np.where(overtaken, 0, np.arange(len(goes_on))))
    furthest = _before(news)
    unknown = ~goes_on & (values(stretches, "uptime_s") > YOUNG_S)
    nothing = overtaken | unknown
    grown = []
    for name, reached in zip(COUNTERS, FURTHEST, strict=True):
        now, before = values(stretches, name), values(stretches, reached)[furthest]
        step = now - np.where(goes_on & ~anew & (now >= before), before, 0)
        grown.append(np.where(nothing, 0, step))
    return grown


def _firsts(stretches: pa.Table, grown: list[Ints], chosen: Ints) -> pa.Table:
    """Of each stretch its first heartbeat."""
    state = values(stretches, "state")[chosen]
    hour = values(stretches, "received_at")[chosen] // HOUR_US
    states = [(state == place).astype(np.int64) for place in range(len(STATE_COUNTS))]
    sums = [hour, *(step[chosen] for step in grown), np.ones(len(chosen), np.int64), *states]
    return _parts(stretches, chosen, [pa.array(column) for column in sums], troubled=False)


def _rests(stretches: pa.Table, chosen: Ints) -> pa.Table:
    """Of each body all the others, which were summed up when it was made."""
    hours = stretches.column("hours").take(pa.array(chosen)).combine_chunks()
    of = chosen[hours.value_parent_indices().to_numpy()]
    return _parts(stretches, of, hours.flatten().flatten(), troubled=False)


def _named(stretches: pa.Table, chosen: Ints) -> pa.Table:
    nothing = [pa.array(np.zeros(len(chosen), np.int64))] * (1 + len(SUMS))
    return _parts(stretches, chosen, nothing, troubled=True)


def _parts(stretches: pa.Table, of: Ints, sums: list[pa.Array], *, troubled: bool) -> pa.Table:
    instance, *endpoint = stretches.select(PROCESS).take(pa.array(of)).columns
    names = [instance if troubled else pa.nulls(len(of), pa.string()), *endpoint]
    return pa.table([*names, pa.array(np.full(len(of), troubled)), *sums], schema=part_schema())


def _before(column: NDArray[Any]) -> NDArray[Any]:
    """Each one's predecessor; the first one's is itself, and nobody asks for it."""
    return np.concatenate((column[:1], column[:-1]))
