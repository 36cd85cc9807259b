"""`butlers pipeline generate`: heartbeats of a fleet that never was, to try jobs and machines on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from butlers.clock import SystemClock
from butlers.contracts.envelope import invalid
from butlers.daemon.cli.exits import OK, Document, say
from butlers.daemon.cli.options import Config, DataDir, Json, database_of_system, settings_from
from butlers.daemon.places import Places

if TYPE_CHECKING:
    from butlers.daemon.settings import Settings
    from butlers.pipeline.generate import FleetPlan, Tell

Connectors = Annotated[int, typer.Option(min=1, max=10_000_000, help="How many; each sends about 1,100 a day.")]
Days = Annotated[int, typer.Option(min=1, max=3_660, help="How many, from the start on.")]
Start = Annotated[str, typer.Option(help="The first day, in UTC, like 2026-03-01.")]
Seed = Annotated[int, typer.Option(help="The same seed makes the same rows.")]
Out = Annotated[Path | None, typer.Option(help="A folder: Parquet files as the event lake has them.")]
Into = Annotated[bool, typer.Option("--into-database", help="The heartbeat log of the system's database.")]
Master = Annotated[str | None, typer.Option(help="local[2], spark://HOST:PORT, yarn, k8s://...; default: local[*].")]
Memory = Annotated[str, typer.Option(help="Of the driver, which is all there is on one machine.")]


def generate(
    connectors: Connectors = 100,
    days: Days = 7,
    start: Start = "2026-03-01",
    seed: Seed = 0,
    out: Out = None,
    into_database: Into = False,
    master: Master = None,
    memory: Memory = "1g",
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """Make up heartbeats of a fleet of any size, with all that goes wrong in one.

    Connectors of unequal size restart, begin anew under their old name, fall silent, have wrong clocks and send
    heartbeats that come late, twice or never; their counters fall. Say one of --out and --into-database.

    Example: butlers pipeline generate --connectors 1300 --days 7 --start 2026-03-26 --out fleet
    """
    from butlers.pipeline.generate import FleetPlan

    if (out is None) != into_database:
        raise invalid("out", "say either --out FOLDER or --into-database")
    plan = FleetPlan(connectors=connectors, start=_day(start), days=days, seed=seed)
    settings = settings_from(data_dir=data_dir, config=config)
    tell = _silent if as_json else _telling(plan)
    rows = _make(plan, settings, out, master, memory, tell)
    place = {"out": str(out)} if out is not None else {"table": "connector_heartbeat_log"}
    summary = {"connectors": connectors, "days": days, "start": start, "seed": seed, "rows": rows}
    say(summary | place, as_json, _lines)
    return OK


def _make(plan: FleetPlan, settings: Settings, out: Path | None, master: str | None, memory: str, tell: Tell) -> int:
    from butlers.ids import Uuid7Factory
    from butlers.pipeline.generate import must_be_free, write_database, write_lake
    from butlers.pipeline.process import ends_on_signal
    from butlers.pipeline.runner import check_session
    from butlers.pipeline.session import SessionSettings, check_reachable, spark_session

    session = SessionSettings(scratch=Places(settings.data_dir).root / "pipeline", master=master, memory=memory)
    check_session(session)
    check_reachable(session)
    if out is not None:
        must_be_free(out)  # before Spark starts, which takes a while
        with ends_on_signal(), spark_session("generate", session) as spark:
            return write_lake(spark, plan, out, tell=tell)
    run_id = Uuid7Factory(SystemClock())()
    with ends_on_signal(), database_of_system(settings) as dsn, spark_session("generate", session) as spark:
        return write_database(spark, plan, dsn, run_id=run_id, tell=tell)


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise invalid("start", "must be a day like 2026-03-01") from None


def _silent(_day: date, _rows: int) -> None:
    """For machines, which read the result."""


def _telling(plan: FleetPlan) -> Tell:
    def tell(day: date, rows: int) -> None:
        number = (day - plan.start) // timedelta(days=1) + 1
        print(f"day {number} of {plan.days}: {day}, {rows} rows", file=sys.stderr, flush=True)

    return tell


def _lines(document: Document) -> Iterator[str]:
    place: Any = document.get("out") or document["table"]
    yield f"{document['rows']} heartbeats of {document['connectors']} connectors in {place}"
