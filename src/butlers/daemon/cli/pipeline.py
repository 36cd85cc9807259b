"""`butlers pipeline`: jobs over the whole record, on Spark, in this process and not in the services'."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from butlers.contracts.envelope import invalid
from butlers.daemon.cli.exits import FAILED, OK, Document, exiting, say
from butlers.daemon.cli.options import Config, DataDir, Json, Limit, database_of_system, settings_from
from butlers.daemon.cli.pipeline_generate import generate
from butlers.daemon.places import Places
from butlers.operations.operation import as_uuid, when

if TYPE_CHECKING:
    from butlers.pipeline.job import Job, Window


app = typer.Typer(name="pipeline", help="Jobs over the whole record, on Spark.", no_args_is_help=True)

JobName = Annotated[str, typer.Argument(metavar="JOB", help="A job's name; `butlers pipeline list` shows them.")]
From = Annotated[str | None, typer.Option("--from", help="A day, or a moment with an offset; included.")]
To = Annotated[str | None, typer.Option("--to", help="A day, or a moment with an offset; not included.")]
Assignments = Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of an argument of the job.")]
Master = Annotated[str | None, typer.Option(help="local[2], spark://HOST:PORT, yarn, k8s://...; default: local[*].")]
Remote = Annotated[str | None, typer.Option(help="sc://HOST:PORT of a Spark Connect server.")]
Memory = Annotated[str, typer.Option(help="Of the driver, which is all there is on one machine.")]
Lake = Annotated[Path | None, typer.Option(help="Folder of the event lake; default: DATA_DIR/lake.")]
RunId = Annotated[str | None, typer.Argument(metavar="RUN_ID", help="Only this run, with all that is known of it.")]


@app.command("run")
@exiting
def run(
    job: JobName,
    start: From = None,
    end: To = None,
    assignments: Assignments = None,
    master: Master = None,
    remote: Remote = None,
    memory: Memory = "1g",
    lake: Lake = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """Run one job over a window of time. Running it again changes nothing.

    Example: butlers pipeline run connector-stats-hourly --from 2026-03-01 --to 2026-03-02
    """
    from butlers.clock import SystemClock
    from butlers.ids import Uuid7Factory
    from butlers.pipeline.job import find_job
    from butlers.pipeline.process import ends_on_signal
    from butlers.pipeline.progress import watching
    from butlers.pipeline.runner import RunRequest, check_request, run_job
    from butlers.pipeline.session import SessionSettings

    clock = SystemClock()
    window = _window(find_job(job), start, end, clock.now())
    arguments = dict(_pair(item) for item in assignments or ())
    settings = settings_from(data_dir=data_dir, config=config)
    root = Places(settings.data_dir).root
    session = SessionSettings(scratch=root / "pipeline", master=master, remote=remote, memory=memory)
    request = RunRequest(
        job=job, window=window, dsn="", lake=lake or root / "lake", session=session, arguments=arguments
    )
    check_request(request, clock.now())  # before a database is looked for, or started
    with ends_on_signal(), database_of_system(settings) as dsn:
        document = run_job(
            replace(request, dsn=dsn),
            clock=clock,
            new_id=Uuid7Factory(clock),
            watch=watching(job, None if as_json else sys.stderr),
        )
    say(document, as_json, _ended)
    return OK if document["outcome"] == "succeeded" else FAILED


@app.command("list")
@exiting
def list_(as_json: Json = False) -> int:
    """The jobs there are."""
    from butlers.pipeline.job import find_job
    from butlers.pipeline.jobs import NAMES

    known = [{"name": job.name, "about": job.about, "arguments": dict(job.arguments)} for job in map(find_job, NAMES)]
    say({"jobs": known}, as_json, _jobs)
    return OK


@app.command("status")
@exiting
def status(
    run_id: RunId = None,
    limit: Limit = 20,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """The latest runs and how they ended; a run whose process was killed has died.

    Example: butlers pipeline status --limit 5
    """
    from butlers.clock import SystemClock
    from butlers.pipeline.runs import Runs

    requested = as_uuid(run_id) if run_id is not None else None
    with database_of_system(settings_from(data_dir=data_dir, config=config)) as dsn:
        found = Runs(dsn).recent(now=SystemClock().now(), limit=limit, run_id=requested)
    if requested is not None and not found:
        raise invalid("run_id", "is unknown")
    say({"runs": found}, as_json, _one if requested is not None else _runs)
    return OK


app.command("generate")(exiting(generate))


def _window(job: Job, start: str | None, end: str | None, now: datetime) -> Window:
    from butlers.pipeline.job import Tense, Window

    if job.tense is not Tense.NONE:
        return Window.parse(start, end)
    for field, given in (("from", start), ("to", end)):
        if given is not None:
            raise invalid(field, f"means nothing to {job.name}, which goes on where it ended: leave it out")
    return Window.until(now)


def _pair(item: str) -> tuple[str, str]:
    name, separator, value = item.partition("=")
    if not separator or not name.strip():
        raise invalid("set", "must be NAME=VALUE")
    return name.strip(), value.strip()


def _jobs(document: Document) -> Iterator[str]:
    for job in document["jobs"]:
        yield f"{job['name']:<24} {job['about']}"
        for name, meaning in job["arguments"].items():
            yield f"    --set {name}=...  {meaning}"


def _ended(run: Document) -> Iterator[str]:
    yield (
        f"{run['job']} {run['outcome']} in {run['duration_ms'] / 1000:.1f} s:"
        f" {run['rows_in']} rows in, {run['rows_out']} rows out ({run['run_id']})"
    )
    yield from _details(run["details"])


def _runs(document: Document) -> Iterator[str]:
    if not document["runs"]:
        yield "no job has run yet"
    for run in document["runs"]:
        took = f"{run['duration_ms'] / 1000:.1f} s" if run["duration_ms"] is not None else "-"
        rows = f"{run['rows_in']} -> {run['rows_out']} rows" if run["rows_out"] is not None else ""
        yield f"{run['run_id']}  {run['job']:<24} {run['outcome']:<12} {when(run['started_at'])}  {took:>9}  {rows}"
        yield f"    window   {_window_of(run)}"
        for name, value in run["arguments"].items():
            yield f"    set      {name}={value}"
        if run["error"]:
            yield f"    error    {run['error']['class']}: {run['error']['message']}"


def _window_of(run: Document) -> str:
    from butlers.pipeline.job import BEGINNING

    if datetime.fromisoformat(run["window_start"]) == BEGINNING:
        return f"all until {when(run['window_end'])}"
    return f"{when(run['window_start'])} to {when(run['window_end'])}"


def _one(document: Document) -> Iterator[str]:
    run = document["runs"][0]
    yield from _runs(document)
    yield f"    process  {run['pid']} on {run['host']}"
    yield f"    Spark    {run['spark_app_id'] or 'did not start'} at {run['master']}"
    yield from _details(run["details"])


def _details(details: dict[str, Any]) -> Iterator[str]:
    """What a job tells, one thing to a line."""
    for name, value in details.items():
        if isinstance(value, dict) and any(isinstance(inner, dict) for inner in value.values()):
            yield f"    {name}:"
            yield from (f"        {inner}: {_in_words(entry)}" for inner, entry in value.items())
        elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
            yield f"    {name}:"
            yield from (f"        {_in_words(inner)}" for inner in value)
        else:
            yield f"    {name}: {_in_words(value)}"


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_in_words(inner)}" for name, inner in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(_in_words, value)) or "none"
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    return str(value)
