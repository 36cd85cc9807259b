"""Stretches: many heartbeats of one process, folded into what whoever comes before and after has to know.

Pure functions on columns, without Spark: rows of any part of the record in any order go in, stretches come out. What a
heartbeat adds depends on those before it, and a part of the record does not know what another part holds. So a stretch
keeps its ends open:

    loose    a heartbeat by itself: the beginning and the end of a run, where other parts may have rows in between
    body     the rest of a run: its sums by the hour are final, except what its first heartbeat adds

    a run    |- loose -|------------ body -------------|- loose -|      (then a gap, or another process)
               head_us   first           furthest  last   tail_us

A body begins with a heartbeat that nobody in its run overtook, so that it is overtaken as a whole or not at all. Its
first heartbeat is compared with what came before when stretches are put in order (`hourly_joining`); the others only
with each other. What does not fit together is seen there, and told again from its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

COUNTERS = ("messages_ingested", "messages_failed", "source_api_calls", "dedupe_accepted")
STATE_COUNTS = ("healthy_count", "degraded_count", "error_count")  # `state` is a place in here, or none of them
ENDPOINT = ("connector_type", "endpoint_identity")
PROCESS = ("instance_id", "endpoint_identity", "connector_type")
FURTHEST = tuple(f"furthest_{name}" for name in COUNTERS)

MICROS = 1_000_000
HOUR_US = 3_600 * MICROS
MOST_ROWS = 1 << 20  # folded at once
LARGEST = (1 << 63) // MOST_ROWS - 1  # so many counters of this size have a sum

_HOURS = pa.list_(pa.struct([(name, pa.int64()) for name in ("hour", *COUNTERS, "heartbeat_count", *STATE_COUNTS)]))
_MOMENT = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """Where runs end and bodies begin: a matter of speed, never of the result."""

    head_us: int = 1_800 * MICROS  # a heartbeat is seldom later than this, so whoever comes between runs comes here
    tail_us: int = 60 * MICROS
    gap_us: int = 1_800 * MICROS  # silence, or a time that another part of the record holds
    least_rows: int = 6  # of a body: it is wider than a loose one


USUAL = Cuts()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Heartbeats in the order of their processes and of their coming, each once; ids tell the order of one moment's."""

    place: Ints  # in the table they came from
    process: Ints
    received: Ints
    sent: Ints
    uptime: NDArray[np.float64]
    counters: dict[str, Ints]
    state: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    begins: Ints
    anew: Flags
    life: Ints  # grows with every run and with every life
    overtaken: Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bodies:
    first: Ints
    last: Ints
    inside: Flags  # of every row


def folded(heartbeats: pa.Table, cuts: Cuts = USUAL) -> pa.Table:
    """The stretches of some heartbeats."""
    if heartbeats.num_rows == 0:
        return stretch_schema().empty_table()
    rows = _in_order(heartbeats)
    runs = _runs(rows, cuts)
    bodies = _bodies(rows, runs, cuts)
    hours = _hours(rows, runs, bodies)
    return _stretches(heartbeats, rows, runs, bodies, hours)


def stretch_schema() -> pa.Schema:
    first = [(name, pa.string()) for name in (*PROCESS, "id")] + [("state", pa.int64())]
    first += [("uptime_s", pa.float64()), *((name, pa.int64()) for name in COUNTERS)]
    first += [("received_at", _MOMENT), ("sent_at", _MOMENT)]
    last = [("last_uptime_s", pa.float64()), ("last_received_at", _MOMENT), ("last_sent_at", _MOMENT)]
    furthest = [("furthest_uptime_s", pa.float64()), *((name, pa.int64()) for name in FURTHEST)]
    return pa.schema([*first, *last, *furthest, ("lives", pa.int64()), ("hours", _HOURS)])


def _in_order(heartbeats: pa.Table) -> _Rows:
    process, received = processes(heartbeats), values(heartbeats, "received_at")
    place = _each_once(heartbeats.column("id"), process, received, _order(process, received))
    return _Rows(
        place=place,
        process=process[place],
        received=received[place],
        sent=values(heartbeats, "sent_at")[place],
        uptime=values(heartbeats, "uptime_s")[place],
        counters={name: values(heartbeats, name)[place] for name in COUNTERS},
        state=values(heartbeats, "state")[place],
    )


def _order(process: NDArray[Any], received: Ints) -> Ints:
    """By process and moment. Most files lie in the order of time: then processes alone are sorted, in a single pass."""
    if process.max() < 1 << 16 and bool((received[1:] >= received[:-1]).all()):
        return np.argsort(process.astype(np.uint16), kind="stable")
    return np.lexsort((received, process))


def _each_once(ident: pa.ChunkedArray, process: NDArray[Any], received: Ints, place: Ints) -> Ints:
    """Those that came at one moment in the order of their ids, and none that is there once more."""
    as_one = as_before(process[place]) & as_before(received[place])
    found, rank = ranked(ident, place, as_one)
    moment = np.cumsum(~as_one)[found]
    order = np.lexsort((rank, moment))
    place[found] = place[found[order]]
    twice = np.zeros(len(place), np.bool_)
    twice[found] = as_before(moment) & as_before(rank[order])
    return place[~twice]


def ranked(ident: pa.ChunkedArray, place: Ints, as_one: Flags) -> tuple[Ints, Ints]:
    """Which ones are one with the one before or after them, and the ranks of their ids: nobody else's are looked at,
    for ids are long.
    """
    among = as_one.copy()
    among[:-1] |= as_one[1:]
    found = np.flatnonzero(among)
    ids = ident.take(pa.array(place[found])).combine_chunks()
    return found, compute.rank(ids, tiebreaker="dense").to_numpy().astype(np.int64)


def processes(table: pa.Table) -> NDArray[Any]:
    """Numbers, one for each process."""
    number, most = np.zeros(table.num_rows, np.int64), 1
    for name in PROCESS:
        codes, texts = coded(table.column(name))
        if most * len(texts) >= 1 << 63:
            number, most = pd.factorize(number)[0], table.num_rows
        number, most = number * len(texts) + codes, most * len(texts)
    found: NDArray[Any] = pd.factorize(number)[0].astype(np.int32)
    return found


def coded(column: pa.ChunkedArray) -> tuple[NDArray[Any], pa.Array]:
    """Numbers for the texts of a column, and the texts."""
    texts = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    whole = texts.unify_dictionaries().combine_chunks()
    return whole.indices.to_numpy(), whole.dictionary


def _runs(rows: _Rows, cuts: Cuts) -> _Runs:
    begins = ~as_before(rows.process)
    begins[1:] |= np.diff(rows.received) > cuts.gap_us
    anew = ~begins
    anew[1:] &= (rows.uptime[1:] < rows.uptime[:-1]) & (rows.sent[1:] > rows.sent[:-1])
    life = np.cumsum(begins | anew, dtype=np.int64)
    oldest = pd.Series(rows.uptime).groupby(life, sort=False).cummax().to_numpy()
    return _Runs(begins=np.flatnonzero(begins), anew=anew, life=life, overtaken=rows.uptime < oldest)


def _bodies(rows: _Rows, runs: _Runs, cuts: Cuts) -> _Bodies:
    count = len(rows.received)
    lengths = np.diff(runs.begins, append=count)
    number, middle = np.arange(count), _middle(rows, runs, lengths, cuts)
    first = np.minimum.reduceat(np.where(middle & ~runs.overtaken, number, count), runs.begins)
    last = np.maximum.reduceat(np.where(middle, number, -1), runs.begins)
    summable = all(int(counter.max()) <= LARGEST for counter in rows.counters.values())
    worth = (last - first + 1 >= cuts.least_rows) & summable
    first, last = first[worth], last[worth]
    edges = np.zeros(count + 1, np.int8)
    edges[first] += 1
    edges[last + 1] -= 1
    return _Bodies(first=first, last=last, inside=np.cumsum(edges[:-1], dtype=np.int8).astype(bool))


def _middle(rows: _Rows, runs: _Runs, lengths: Ints, cuts: Cuts) -> Flags:
    """Which ones lie between the open ends of their run."""
    ends = runs.begins + lengths - 1
    earliest = np.repeat(rows.received[runs.begins] + _heads(rows, runs, cuts), lengths)
    latest = np.repeat(rows.received[ends] - cuts.tail_us, lengths)
    found: Flags = (rows.received >= earliest) & (rows.received <= latest)
    return found


def _heads(rows: _Rows, runs: _Runs, cuts: Cuts) -> Ints:
    """How much of each run's beginning stays loose: nothing where the process began well within the time of these rows,
    for then no other part of the record has anything of it from before.
    """
    born = rows.received[runs.begins] - rows.uptime[runs.begins] * MICROS
    return np.where(born >= rows.received.min() + cuts.head_us, 0, cuts.head_us)


def _hours(rows: _Rows, runs: _Runs, bodies: _Bodies) -> pa.ListArray:
    """For each body what its heartbeats add in each hour, all but the first one."""
    rest = bodies.inside.copy()
    rest[bodies.first] = False
    hour = rows.received // HOUR_US
    goes_on = rest & as_before(hour)
    goes_on[1:] &= rest[:-1]
    begins = np.flatnonzero(rest & ~goes_on)
    ends = np.flatnonzero(rest & ~np.append(goes_on[1:], False))
    told = np.cumsum(~runs.overtaken)  # how many said something new, up to each one
    columns = [hour[begins]]
    columns += [grown[told[ends]] - grown[told[begins - 1]] for grown in _growths(rows, runs)]
    columns += [ends - begins + 1]
    for one in range(len(STATE_COUNTS)):
        seen = np.cumsum(rows.state == one)
        columns.append(seen[ends] - seen[begins - 1])
    values = pa.StructArray.from_arrays([pa.array(column) for column in columns], fields=list(_HOURS.value_type))
    offsets = np.append(np.searchsorted(begins, bodies.first), len(begins)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _growths(rows: _Rows, runs: _Runs) -> Iterator[Ints]:
    """How far each counter has come after each heartbeat that says something new, seen from those of its own run."""
    news = np.flatnonzero(~runs.overtaken)
    goes_on = as_before(runs.life[news])[1:]
    for counter in rows.counters.values():
        now = counter[news]
        steps = np.zeros(len(now) + 1, np.int64)  # the sum before the first one is 0
        steps[1:] = now
        np.subtract(now[1:], now[:-1], out=steps[2:], where=goes_on & (now[1:] >= now[:-1]))
        yield np.cumsum(steps)


def _stretches(heartbeats: pa.Table, rows: _Rows, runs: _Runs, bodies: _Bodies, hours: pa.ListArray) -> pa.Table:
    loose = np.flatnonzero(~bodies.inside)
    first, last = (np.concatenate((loose, ends)) for ends in (bodies.first, bodies.last))
    news = np.maximum.accumulate(np.where(runs.overtaken, 0, np.arange(len(runs.life))))
    furthest = np.concatenate((loose, news[bodies.last]))
    lives = np.cumsum(runs.anew)
    schema = stretch_schema()
    names = schema.names[: schema.get_field_index("last_uptime_s")]
    named = heartbeats.select(names).take(pa.array(rows.place[first]))
    found: dict[str, Any] = {
        "last_uptime_s": rows.uptime[last],
        "last_received_at": rows.received[last],
        "last_sent_at": rows.sent[last],
        "furthest_uptime_s": rows.uptime[furthest],
        **{name: counter[furthest] for name, counter in zip(FURTHEST, rows.counters.values(), strict=True)},
        "lives": lives[last] - lives[first],
    }
    nothing = pa.ListArray.from_arrays(pa.array(np.zeros(len(loose) + 1, np.int32)), hours.values[:0])
    told = (named.column(name).cast(schema.field(name).type) for name in names)
    columns = [*told, *(pa.array(column, schema.field(name).type) for name, column in found.items())]
    return pa.table([*columns, pa.chunked_array([nothing, hours], _HOURS)], schema=schema)


def as_before(values: NDArray[Any]) -> Flags:
    same = np.zeros(len(values), np.bool_)
    np.equal(values[1:], values[:-1], out=same[1:])
    return same


def values(table: pa.Table, name: str) -> NDArray[Any]:
    """Moments are microseconds."""
    column = table.column(name)
    plain = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
    found: NDArray[Any] = plain.to_numpy()
    return found
