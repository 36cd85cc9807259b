"""What a run proved: what callers were told, compared with what was done and heard. Pure, so it can be tested.

lost              a message that a caller was told is stored, or that a person wrote, and: there is no row; or its
                  row is `parsed` and a part of it was never done, or done and its answer never heard
processed_twice   one event became two requests; a request came to an end twice; a part was done by two butlers, or
                  by one that the final decision does not name; an answer was heard twice
stuck             not ended when all had to be quiet
unexplained       ended `errored`, and nothing was set aside that says why and can be replayed
out_of_order      answers of one butler in one thread that came after the answer to a later message
overtaken         the same between different butlers: a message goes on while an earlier one waits for somebody
                  who is away
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A request as its row tells it at the end; rows stand in the order in which they came."""

    number: int
    request_id: str
    state: str
    parts: frozenset[tuple[str, str]] = frozenset()  # segment and butler
    thread: str | None = None
    error: str | None = None
    ended_at: datetime | None = None
    letter: bool = False  # set aside for a replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One part as the butler that did it has it on record."""

    butler: str
    request_id: str
    segment_id: str
    answer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One answer as a provider received it."""

    number: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    at: datetime
    in_hand: frozenset[str]  # requests that were being worked on
    healthy_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    lost: list[int] = field(default_factory=list)
    twice: dict[int, str] = field(default_factory=dict)  # number -> how
    stuck: list[int] = field(default_factory=list)
    errored: dict[int, str] = field(default_factory=dict)  # number -> why
    unexplained: list[int] = field(default_factory=list)
    out_of_order: list[int] = field(default_factory=list)
    overtaken: list[int] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    accepted: Mapping[int, Iterable[str]]  # number -> the requests that callers were told
    posted: Iterable[int]  # written in a chat
    rows: Sequence[Row]
    entries: Sequence[Entry]
    ends: Counter[str]  # request -> how often it came to an end
    heard: Sequence[Heard]
    kills: Sequence[Kill] = ()
    written: Mapping[int, int] = field(default_factory=dict)  # number -> its place in its chat, by the simulator


def assess(evidence: Evidence) -> Assessment:
    assessment = Assessment(recoveries=recoveries_of(evidence.rows, evidence.kills))
    told = {number: set(requests) for number, requests in evidence.accepted.items()}
    told |= {number: set() for number in evidence.posted if number not in told}
    by_number: dict[int, list[Row]] = {}
    for row in evidence.rows:
        by_number.setdefault(row.number, []).append(row)
    done: dict[str, list[Entry]] = {}
    for entry in evidence.entries:
        done.setdefault(entry.request_id, []).append(entry)
    texts: dict[int, list[str]] = {}
    for one in evidence.heard:
        texts.setdefault(one.number, []).append(one.text)
    assessment.lost.extend(sorted(told.keys() - by_number.keys()))
    for number, found in sorted(by_number.items()):
        requests = {row.request_id for row in found} | told.get(number, set())
        if len(requests) > 1:
            assessment.twice[number] = f"{len(requests)} requests"
        for row in found:
            _assess_row(assessment, row, done.get(row.request_id, []), texts.get(number, []), evidence.ends)
    _assess_order(assessment, evidence)
    return assessment


def _assess_row(assessment: Assessment, row: Row, done: list[Entry], heard: list[str], ends: Counter[str]) -> None:
    number = row.number
    if row.state not in ("parsed", "errored"):
        assessment.stuck.append(number)
    if row.state == "errored":
        assessment.errored[number] = row.error or "?"
        if not row.letter:
            assessment.unexplained.append(number)
    if row.state == "parsed" and not _is_done(row, done, heard):
        assessment.lost.append(number)
    if (how := _twice(row, done, heard, ends[row.request_id])) is not None:
        assessment.twice.setdefault(number, how)


def _is_done(row: Row, done: list[Entry], heard: list[str]) -> bool:
    answers = {(entry.segment_id, entry.butler): entry.answer for entry in done}
    return bool(row.parts) and all(_was_heard(answers.get(part), heard) for part in row.parts)


def _was_heard(answer: str | None, heard: list[str]) -> bool:
    return answer is not None and any(_says(text, answer) for text in heard)


def _says(text: str, answer: str) -> bool:
    """Mail breaks lines and Messenger puts the butler's name in front."""
    return " ".join(answer.split()) in " ".join(text.split())


def _twice(row: Row, done: list[Entry], heard: list[str], ends: int) -> str | None:
    if ends > 1:
        return f"ended {ends} times"
    by_segment = Counter(entry.segment_id for entry in done)
    if any(count > 1 for count in by_segment.values()):
        return "one part done by two butlers"
    if row.parts and (other := {(entry.segment_id, entry.butler) for entry in done} - row.parts):
        return f"done beside the decision: {sorted(other)}"
    for answer in {entry.answer for entry in done if entry.answer}:
        if sum(_says(text, answer) for text in heard) > 1:
            return "answered twice"
    return None


def _assess_order(assessment: Assessment, evidence: Evidence) -> None:
    place, first = _places(evidence), _first_heard(evidence)
    last: dict[str | None, int] = {}
    last_of: dict[tuple[str | None, frozenset[str]], int] = {}
    rows = {row.number: row for row in evidence.rows}
    for number in first:
        row = rows.get(number)
        if row is None or row.thread is None:
            continue
        butlers = frozenset(butler for _, butler in row.parts)
        mine = place[number]
        if mine < last_of.get((row.thread, butlers), -1):
            assessment.out_of_order.append(number)
        elif mine < last.get(row.thread, -1):
            assessment.overtaken.append(number)
        last[row.thread] = max(mine, last.get(row.thread, -1))
        last_of[row.thread, butlers] = max(mine, last_of.get((row.thread, butlers), -1))


def _places(evidence: Evidence) -> dict[int, int]:
    """Where a message stands in its thread: by the simulator where there is one, else in the order of the rows."""
    return {row.number: order for order, row in enumerate(evidence.rows)} | dict(evidence.written)


def _first_heard(evidence: Evidence) -> list[int]:
    return list(dict.fromkeys(one.number for one in evidence.heard))


def recoveries_of(rows: Sequence[Row], kills: Sequence[Kill]) -> list[float]:
    """For each request that a kill hit: seconds from the last such kill to its end."""
    last_hit = {request_id: kill.at for kill in kills for request_id in kill.in_hand}
    return [
        max(0.0, (row.ended_at - last_hit[row.request_id]).total_seconds())
        for row in rows
        if row.request_id in last_hit and row.ended_at is not None
    ]
