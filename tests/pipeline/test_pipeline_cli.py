"""`butlers pipeline`: what is wrong is told in plain words with an exit code, before anything is started or written."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from butlers.daemon.cli.exits import CONFIGURATION, OK, UNREACHABLE, USAGE
from butlers.pipeline import runner, session
from butlers.pipeline.job import Window
from butlers.pipeline.lake.log import LakeLog
from butlers.pipeline.lake.reading import GENERATED
from butlers.pipeline.runs import Ending, Run, Runs
from butlers.pipeline.schema import MIGRATIONS
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database_uri
from tests.pipeline.command_line import butlers

MARCH = ("--from", "2026-03-01", "--to", "2026-04-01")
NOW = datetime(2026, 4, 1, tzinfo=UTC)


@pytest.fixture
async def dsn(postgres_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    async with cloned_database_uri(postgres_server, MIGRATIONS) as uri:
        monkeypatch.setenv("DATABASE_URL", uri)
        yield uri


DETAILS = {
    "balanced": True,
    "closed_at": None,
    "rules": {"ends": {"checked": 3, "broken": 0, "keys": ["a", "b"]}, "once": {"checked": 1, "broken": 1, "keys": []}},
    "per_channel": {"telegram": 2, "email": 1},
    "stats": [{"channel": "telegram", "total": 2, "rate": 0.5}],
    "first_alerts": [],
}
TOLD = """
    rules:
        ends: keys a, b, broken 0, checked 3
        once: keys none, broken 1, checked 1
    stats:
        rate 0.5, total 2, channel telegram
    balanced: yes
    closed_at: -
    per_channel: email 1, telegram 2
    first_alerts: none
"""  # in the order in which PostgreSQL keeps names


def _no_spark(*_arguments: object) -> None:
    raise AssertionError("Spark was started")


REFUSED = [
    (("books",), USAGE, "from: is missing: this job needs a window"),
    (("reconciliation", "--from", "2026-03-01"), USAGE, "to: is missing"),
    (("reconciliation", "--from", "2026-03-02", "--to", "2026-03-01"), USAGE, "to: must be later than from"),
    (("reconciliation", "--from", "yesterday", "--to", "today"), USAGE, "from: must be a day"),
    (("lake-retain", "--from", "2026-03-01", "--to", "2999-01-01"), USAGE, "to: must not be after now"),
    (("delivery-stats", "--from", "2998-01-01", "--to", "2999-01-01"), USAGE, "from: must not be after now"),
    (
        ("lake-stream", "--from", "2026-03-01"),
        USAGE,
        "from: means nothing to lake-stream, which goes on where it ended",
    ),
    (("lake-stream", "--set", "trigger=always"), USAGE, "trigger: must be available-now or continuous"),
    (("lake-stream", "--set", "event=storms"), USAGE, "event: must be one of heartbeats"),
    (("lake-compact", *MARCH, "--set", "target_bytes=0"), USAGE, "target_bytes: must be a whole number, 1 or more"),
    (("lake-retain", *MARCH, "--set", "keep_days=some"), USAGE, "keep_days: must be a whole number, 1 or more"),
    (
        ("reconciliation", "--from", "2026-03-01T01:00:00Z", "--to", "2026-03-02"),
        USAGE,
        "from: must be the beginning of a day",
    ),
    (("reconciliation", *MARCH, "--set", "grace=long"), USAGE, "grace: must be a number and a unit"),
    (("reconciliation", *MARCH), CONFIGURATION, "the lake has no such events yet"),
    (("connector-stats-hourly", *MARCH, "--set", "source=lake"), CONFIGURATION, "the lake has no such events yet"),
    (("delivery-stats", *MARCH, "--set", "group_by=mood"), USAGE, "group_by: "),
    (("service-levels", *MARCH, "--set", "objective=2"), USAGE, "objective: must be a number between 0 and 1"),
    (("routing-quality", *MARCH, "--set", "baseline_to=2026-02-01"), USAGE, "baseline_from: is missing"),
    (("routing-evaluate", *MARCH, "--set", "samples=few"), USAGE, "samples: must be"),
    (("audience-plan", *MARCH), USAGE, "message: is missing: say --set message=..."),
    (("connector-stats-hourly", *MARCH, "--set", "source=sea"), USAGE, "source: must be one of table, lake"),
    (
        ("connector-stats-hourly", "--from", "2026-03-01T00:30:00Z", "--to", "2026-03-02"),
        USAGE,
        "from: must be a whole",
    ),
    (
        ("connector-stats-daily", "--from", "2026-03-01T01:00:00Z", "--to", "2026-03-02"),
        USAGE,
        "from: must be midnight",
    ),
    (("connector-stats-daily", *MARCH, "--set", "hours=never"), USAGE, "hours: must be again"),
    (("reconciliation", *MARCH, "--memory", "lots"), USAGE, "memory: must be a number and a unit"),
    (("reconciliation", *MARCH, "--memory", "1x"), USAGE, "memory: must be a number and a unit"),
    (
        ("reconciliation", *MARCH, "--memory", "10m"),
        USAGE,
        "memory: is less than Spark starts with: give at least 512m",
    ),
    (
        ("delivery-stats", *MARCH, "--master", "spark://127.0.0.1:1"),
        CONFIGURATION,
        "--master: spark://127.0.0.1:1: nobody answers there: 127.0.0.1:1: Connection refused",
    ),
    (
        ("delivery-stats", *MARCH, "--master", "spark://no-such-host.invalid:7077"),
        CONFIGURATION,
        "nobody answers there: no-such-host.invalid:7077",
    ),
    (
        ("delivery-stats", *MARCH, "--remote", "sc://127.0.0.1:1/;token=secret-word"),
        CONFIGURATION,
        "--remote: sc://127.0.0.1:1/: nobody answers there",
    ),
    (("connector-stats-hourly", *MARCH, "--set", "sorce=lake"), USAGE, "did you mean source?"),
    (("nonsense", *MARCH), USAGE, "job: is unknown; there are connector-stats-hourly"),
    (("reconciliation", *MARCH, "--set", "colour=red"), USAGE, "set: reconciliation has no argument colour"),
    (("reconciliation", *MARCH, "--set", "colour"), USAGE, "set: must be NAME=VALUE"),
    (("reconciliation", *MARCH, "--master", "mesos://x"), USAGE, "master: must be local"),
    (("reconciliation", *MARCH, "--remote", "http://x"), USAGE, "remote: must be sc://HOST:PORT"),
    (("reconciliation", *MARCH, "--remote", "sc://x", "--master", "local"), CONFIGURATION, "both are given"),
]


def test_a_wrong_request_is_refused_and_leaves_nothing(
    dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runner, "spark_session", _no_spark)
    for words, code, said in REFUSED:
        assert butlers("pipeline", "run", *words, "--data-dir", str(tmp_path), "--json") == code, words
        assert said in json.loads(capsys.readouterr().out)["error"]["message"]
    assert Runs(dsn).recent(now=NOW, limit=5) == []
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_is_not_there_is_told_without_its_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runner, "spark_session", _no_spark)
    for address, code, said in [
        ("postgresql://ann:s3cret@127.0.0.1:1/books", UNREACHABLE, "no server answers there (start the server"),
        (None, CONFIGURATION, "there is no system here yet"),
    ]:
        if address:
            monkeypatch.setenv("DATABASE_URL", address)
        else:
            monkeypatch.delenv("DATABASE_URL")
        for command in (("run", "reconciliation", *MARCH), ("status",)):
            assert butlers("pipeline", *command, "--data-dir", str(tmp_path)) == code
            told = capsys.readouterr()
            assert said in told.err
            assert "s3cret" not in told.err + told.out
    assert list(tmp_path.iterdir()) == []


def test_the_runs_are_listed_and_one_is_shown(dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    window = Window(start=datetime(2026, 3, 1, tzinfo=UTC), end=NOW)
    for number, outcome in enumerate(("succeeded", "failed", "needs_attention"), start=1):
        run = Run(
            run_id=UUID(int=number),
            job="reconciliation",
            window=window,
            arguments={"grace": "1h"},
            master="yarn",
            host="a",
            pid=7,
            started_at=NOW,
        )
        error = {"class": "internal_error", "message": "no luck"} if outcome == "failed" else None
        ending = Ending(
            outcome=outcome, ended_at=NOW, duration_ms=1500, rows_in=9, rows_out=2, error=error, details=DETAILS
        )
        with Runs(dsn).begin(run) as opened:
            opened.finish(ending)
    where = ("--data-dir", str(tmp_path))
    assert butlers("pipeline", "status", "--limit", "2", *where) == OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines if not line.startswith(" ")] == ["needs_attention", "failed"]
    assert [line.strip() for line in lines if "error" in line] == ["error    internal_error: no luck"]
    assert butlers("pipeline", "status", str(UUID(int=2)), *where) == OK
    told = capsys.readouterr().out
    assert "internal_error: no luck" in told
    assert "grace=1h" in told
    assert TOLD in told
    assert butlers("pipeline", "status", str(UUID(int=9)), *where) == USAGE
    assert butlers("pipeline", "status", "9", *where) == USAGE


def test_a_run_without_a_window_is_told_as_such(dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = Run(
        run_id=UUID(int=1),
        job="lake-stream",
        window=Window.until(NOW),
        master="local[2]",
        host="a",
        pid=7,
        started_at=NOW,
    )
    with Runs(dsn).begin(run):
        pass
    assert butlers("pipeline", "status", "--data-dir", str(tmp_path)) == OK
    assert "    window   all until 2026-04-01 00:00:00 UTC\n" in capsys.readouterr().out


def test_what_is_wrong_is_said_before_a_system_is_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("DATABASE_URL", raising=False)
    for option, said in ((("--memory", "1x"), "memory: "), (("--set", "colour=red"), "has no argument colour")):
        code = butlers("pipeline", "run", "delivery-stats", *MARCH, *option, "--data-dir", str(tmp_path / "none"))
        assert (code, said in capsys.readouterr().err) == (USAGE, True)


@pytest.mark.parametrize(
    ("option", "code", "said"),
    [
        (("--memory", "10m"), USAGE, "give at least 512m"),
        (("--master", "spark://127.0.0.1:1"), CONFIGURATION, "nobody answers there"),
    ],
)
def test_heartbeats_are_not_made_with_a_spark_that_cannot_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, str], code: int, said: str
):
    words = ("pipeline", "generate", "--out", str(tmp_path / "fleet"), "--data-dir", str(tmp_path))
    assert butlers(*words, *option) == code
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_heartbeats_are_not_made_where_there_are_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(session, "spark_session", _no_spark)
    LakeLog(tmp_path / "fleet" / "heartbeats").create(server=GENERATED)
    assert butlers("pipeline", "generate", "--out", str(tmp_path / "fleet"), "--data-dir", str(tmp_path)) == USAGE
    assert "has heartbeats already: name another folder" in capsys.readouterr().err


def test_listing_the_jobs_starts_no_java(tmp_path: Path):
    # With a Java that cannot start and in a process of its own: nothing of it is loaded yet.
    listed = subprocess.run(
        [sys.executable, "-m", "butlers.daemon.cli", "pipeline", "list", "--json"],
        capture_output=True,
        text=True,
        check=True,
        env={"JAVA_HOME": str(tmp_path), "PATH": "", "HOME": str(tmp_path)},
    )
    jobs = {job["name"]: job for job in json.loads(listed.stdout)["jobs"]}
    assert "connector-stats-hourly" in jobs
    assert all(job["about"] for job in jobs.values())
