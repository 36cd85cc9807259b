"""A run leaves one row that says how it ended, whatever it ended with."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.resources import files
from pathlib import Path
from uuid import UUID

import pytest
from pyspark.sql import SparkSession

from butlers.clock import ManualClock
from butlers.errors import ConfigurationError, InternalError, TimeoutExceeded, ValidationError
from butlers.ids import Uuid7Factory
from butlers.pipeline import runner
from butlers.pipeline.connection import connect
from butlers.pipeline.job import Job, JobContext, JobResult, Window
from butlers.pipeline.process import main, run_in_process, understood
from butlers.pipeline.runner import RunRequest, check_request, run_job
from butlers.pipeline.runs import Run, Runs
from butlers.pipeline.schema import MIGRATIONS
from butlers.pipeline.session import SessionSettings, essence
from butlers.pipeline.sources.postgres import read_table
from butlers.pipeline.tables import Table, columns
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.migrations import MigrationSet
from tests.database import cloned_database_uri

CLOCK = ManualClock(datetime(2026, 3, 2, tzinfo=UTC))
WINDOW = Window(start=datetime(2026, 3, 1, tzinfo=UTC), end=datetime(2026, 3, 2, tzinfo=UTC))
SWITCHBOARD = MigrationSet(schema="switchboard", package="butlers.switchboard", component="switchboard")
NUMBERS = Table(schema="public", name="numbers", columns=columns("n bigint"), key=("n",))


@pytest.fixture
async def dsn(postgres_server: EmbeddedPostgres) -> AsyncIterator[str]:
    async with cloned_database_uri(postgres_server, [SWITCHBOARD, *MIGRATIONS]) as uri:
        yield uri


def _runs(dsn: str) -> list[dict[str, object]]:
    return Runs(dsn).recent(now=CLOCK.now(), limit=50)


def test_a_run_whose_process_is_gone_has_died(dsn: str):
    run = Run(
        run_id=UUID(int=1), job="books", window=WINDOW, master="local[*]", host="here", pid=1, started_at=CLOCK.now()
    )
    with Runs(dsn).begin(run) as opened:
        opened.name_application("app-1")
        assert [row["outcome"] for row in _runs(dsn)] == ["running"]
    # The connection ended without a word, as that of a killed process does.
    (row,) = _runs(dsn)
    assert row["outcome"] == "died"
    assert row["ended_at"] == CLOCK.now().isoformat()
    assert row["spark_app_id"] == "app-1"
    assert Runs(dsn).recent(now=CLOCK.now(), limit=5, run_id=UUID(int=2)) == []


def _fine(context: JobContext) -> JobResult:
    with connect(context.dsn, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS numbers (n bigint PRIMARY KEY)")
    rows = read_table(context.spark, context.dsn, NUMBERS).count()
    CLOCK.advance(2.5)
    return JobResult(rows_in=rows, rows_out=3, details={"asked": dict(context.arguments)})


def _needs_attention(_context: JobContext) -> JobResult:
    return JobResult(rows_in=1, rows_out=0, satisfied=False)


def _refusing(_context: JobContext) -> JobResult:
    raise ConfigurationError("is damaged", source="lake", key="a.parquet", remedy="remove it")


def _failing_in_spark(context: JobContext) -> JobResult:
    return JobResult(rows_in=0, rows_out=len(context.spark.sql("SELECT raise_error('no such luck')").collect()))


def _interrupted(_context: JobContext) -> JobResult:
    raise KeyboardInterrupt


def test_runs_of_before_are_called_as_they_are_now(dsn: str):
    """The migration, on a table as it was: with a run that ended under the former name."""
    run = Run(
        run_id=UUID(int=1), job="books", window=WINDOW, master="local[*]", host="here", pid=1, started_at=CLOCK.now()
    )
    with Runs(dsn).begin(run):
        pass
    renaming = files("butlers.pipeline").joinpath("migrations/0006_needs_attention.sql").read_text()
    with connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE pipeline.pipeline_runs DROP CONSTRAINT pipeline_runs_outcome_check")
        cursor.execute(
            "ALTER TABLE pipeline.pipeline_runs ADD CONSTRAINT pipeline_runs_outcome_check"
            " CHECK (outcome IN ('running', 'succeeded', 'dissatisfied', 'failed', 'died'))"
        )
        cursor.execute("UPDATE pipeline.pipeline_runs SET outcome = 'dissatisfied', ended_at = now()")
        sql = "\n".join(line for line in renaming.splitlines() if not line.startswith("--"))
        for statement in filter(str.strip, sql.replace("{schema}", "pipeline").split(";")):
            cursor.execute(statement)
        connection.commit()
    assert [row["outcome"] for row in _runs(dsn)] == ["needs_attention"]


def test_a_job_is_found_and_recorded_under_its_present_name():
    session = SessionSettings(scratch=Path(), master="local[2]")
    request = RunRequest(job="books", window=WINDOW, dsn="", lake=Path(), session=session)
    assert check_request(request, CLOCK.now()).name == "reconciliation"


def test_how_a_job_ends_is_written_down(spark: SparkSession, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    @contextmanager
    def the_session_of_the_tests(_name: str, _settings: SessionSettings) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(runner, "spark_session", the_session_of_the_tests)

    new_id = Uuid7Factory(CLOCK)

    def run(work: Callable[[JobContext], JobResult], **arguments: str) -> dict[str, object]:
        job = Job(name="reconciliation", about="", run=work, arguments={"colour": "which"})
        monkeypatch.setattr(runner, "find_job", lambda _name: job)
        session = SessionSettings(scratch=tmp_path, master="local[2]")
        request = RunRequest(job="books", window=WINDOW, dsn=dsn, lake=tmp_path, session=session, arguments=arguments)
        return run_job(request, clock=CLOCK, new_id=new_id)

    fine = run(_fine, colour="red")
    assert (fine["outcome"], fine["rows_in"], fine["rows_out"], fine["duration_ms"]) == ("succeeded", 0, 3, 2500)
    assert _open_transactions(dsn) == 0  # the snapshot of its scan went with the run
    assert run(_needs_attention)["outcome"] == "needs_attention"
    for work, error, said in [
        (_refusing, ConfigurationError, "lake: a.parquet: is damaged"),
        (_failing_in_spark, InternalError, "no such luck"),
        (_interrupted, KeyboardInterrupt, None),
    ]:
        with pytest.raises(error, match=said):
            run(work)
    with pytest.raises(ValidationError, match="has no argument size; it has: colour"):
        run(_fine, size="9")

    rows = sorted(_runs(dsn), key=lambda row: str(row["run_id"]))
    assert [row["outcome"] for row in rows] == ["succeeded", "needs_attention", "failed", "failed", "failed"]
    errors = [row["error"]["class"] if row["error"] else None for row in rows]  # type: ignore[index]
    assert errors == [None, None, "configuration_error", "internal_error", "interrupted"]
    assert "test_runs.py" in json.dumps(rows[3]["error"])  # where it was raised
    first = rows[0]
    assert (first["job"], first["arguments"]) == ("reconciliation", {"colour": "red"})
    assert first["details"] == {"asked": {"colour": "red"}}
    assert first["window_start"] == WINDOW.start.isoformat()
    assert first["spark_app_id"] == spark.sparkContext.applicationId
    assert first["master"] == "local[2]"


def _open_transactions(dsn: str) -> int:
    with connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%' AND datname = current_database()"
        )
        return int((cursor.fetchone() or (0,))[0])


def _report_one_heartbeat(dsn: str) -> None:
    log = "switchboard.connector_heartbeat_log"
    with connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE switchboard.all_heartbeats PARTITION OF {log} DEFAULT")
        cursor.execute(
            f"INSERT INTO {log} SELECT gen_random_uuid(), 'telegram', 'bot', gen_random_uuid(), 'healthy', NULL, 60, "
            "1, 0, 1, 0, 1, '2026-03-01T09:30:00Z', '2026-03-01T09:30:00Z'"
        )


@pytest.mark.timeout(400)  # Java and Spark start anew, on a machine that may be busy
@pytest.mark.heavy
async def test_a_job_in_a_process_of_its_own(dsn: str, tmp_path: Path):
    run_here = partial(run_in_process, dsn=dsn, lake=tmp_path / "lake", scratch=tmp_path / "scratch")
    with pytest.raises(TimeoutExceeded, match=r"was not done after 0\.2 seconds"):
        await run_here("connector-stats-hourly", WINDOW, limit_s=0.2)
    assert [row for row in _runs(dsn) if row["outcome"] == "running"] == []
    _report_one_heartbeat(dsn)
    run = await run_here("connector-stats-hourly", WINDOW, master="local[1]")
    assert (run["outcome"], run["rows_in"], run["rows_out"]) == ("succeeded", 1, 1)
    row = next(row for row in _runs(dsn) if row["run_id"] == run["run_id"])
    assert row["outcome"] == "succeeded"
    assert row["spark_app_id"] == run["spark_app_id"] != ""
    assert datetime.fromisoformat(str(row["ended_at"])) - datetime.fromisoformat(str(row["started_at"])) > timedelta(0)


@pytest.mark.parametrize(
    ("said", "complained", "error", "told"),
    [
        ("", "Traceback\nMemoryError: too much\n", InternalError, "the job books died: MemoryError: too much"),
        ("no JSON", "", InternalError, "the job books died: it said nothing"),
        (
            '{"error": {"class": "validation_error", "message": "job: is unknown"}}',
            "",
            ValidationError,
            "the job books: job: is unknown",
        ),
        (
            '{"error": {"class": "configuration_error", "message": "m", "problem": "no server", "source": "S", '
            '"key": "k", "remedy": "start it"}}',
            "",
            ConfigurationError,
            r"S: k: no server \(start it\)",
        ),
    ],
)
def test_the_last_words_of_a_process_are_passed_on(said: str, complained: str, error: type[Exception], told: str):
    with pytest.raises(error, match=told):
        understood("books", said, complained)


def test_a_child_answers_a_wrong_request_in_one_line(capsys: pytest.CaptureFixture[str]):
    request = {"job": "nonsense", "from": "2026-03-01", "to": "2026-03-02", "arguments": {}, "lake": "", "scratch": ""}
    assert main([json.dumps(request | {"master": None, "memory": "1g"})], {}) == 2
    assert "is unknown" in json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "An error occurred while calling o1.x.\n: java.lang.AssertionError: no\n\tat scala",
            "java.lang.AssertionError: no",
        ),
        ("", "it said nothing"),
    ],
)
def test_the_essence_of_a_page_of_sparks(said: str, told: str):
    assert essence(said) == told
