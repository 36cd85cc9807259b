"""Service levels as a person reads them: how well messages are taken in, routed and brought to their end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from butlers.operations.command import Document, milliseconds, when

Row = Mapping[str, Any]


def service_levels(document: Document) -> Iterator[str]:
    window, routes = document["window"], document["routes"]
    yield f"from {when(window['since'])} to {when(window['until'])}"
    yield from _section(
        "accept", document["accept"], lambda row: f"{row['source_channel']}: {row['messages']} messages"
    )
    yield from _section("completion", document["completion"], _completion)
    yield f"routes: {_rate(routes['success_rate'])} of {routes['routes']}"
    for row in routes["by_butler"]:
        failed = "".join(f", {count} {name}" for name, count in row["errors"].items())
        yield f"  {row['target_butler']}: {_rate(row['success_rate'])} of {row['routes']}{failed}"
    yield from _section("interactive, from progress to the end", document["interactive"], _interactive)


def _section(title: str, rows: Iterable[Row], about: Any) -> Iterator[str]:
    lines = [f"  {about(row)}{_percentiles(row)}" for row in rows]
    yield f"{title}:" if lines else f"{title}: nothing in this time"
    yield from lines


def _completion(row: Row) -> str:
    counts = ", ".join(f"{row[name]} {name.replace('_', ' ')}" for name in _ENDS if row[name])
    return f"{row['source_channel']} {row['policy_tier']}: {counts}"


def _interactive(row: Row) -> str:
    return f"{row['source_channel']}: {row['requests']} {row['lifecycle_state']}"


def _percentiles(row: Row) -> str:
    known = ((name, row[f"{name}_ms"]) for name in ("p50", "p95", "p99"))
    return "".join(f", {name} {milliseconds(value)}" for name, value in known if value is not None)


def _rate(rate: float | None) -> str:
    return "unknown" if rate is None else f"{rate:.2%}"


_ENDS = ("parsed", "errored", "open", "shed", "decided_by_a_person")
