"""Log lines: what they say, and what they cannot say."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from butlers.contracts.envelope import invalid
from butlers.errors import TargetUnavailable, TimeoutExceeded
from butlers.telemetry import Redaction, configure_logging, get_logger
from butlers.telemetry.logs import RotatingFile

REQUEST_ID = UUID("01890000-0000-7000-8000-000000000000")
BOT_TOKEN = "123456789:AAFakeFakeFakeFakeFakeFakeFakeFakeFa"


class Lines:
    """Where the process logs to, read back."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.handler = configure_logging(self.stream, logging.DEBUG, secrets=["correct-horse", "abc"])

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    def last(self) -> dict[str, Any]:
        return self.all()[-1]


@pytest.fixture
def lines() -> Iterator[Lines]:
    root = logging.getLogger()
    level, captured = root.level, Lines()
    yield captured
    root.removeHandler(captured.handler)
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def test_line_has_time_level_logger_event_and_fields_in_order(lines: Lines) -> None:
    get_logger("butlers.switchboard", butler="switchboard").info(
        "ingest accepted", request_id=REQUEST_ID, duplicate=False, count=3
    )
    line = lines.last()
    assert list(line) == ["ts", "level", "logger", "event", "butler", "request_id", "duplicate", "count"]
    assert line["ts"].endswith("Z")
    assert line | {"ts": ""} == {
        "ts": "",
        "level": "info",
        "logger": "butlers.switchboard",
        "event": "ingest accepted",
        "butler": "switchboard",
        "request_id": str(REQUEST_ID),
        "duplicate": False,
        "count": 3,
    }


def test_time_is_that_of_the_record(lines: Lines) -> None:
    record = logging.makeLogRecord({"name": "x", "msg": "y", "levelno": 20, "created": 1767225600.25})
    logging.getLogger().handle(record)
    assert lines.last()["ts"] == "2026-01-01T00:00:00.250Z"


def test_bound_fields_are_on_every_line(lines: Lines) -> None:
    log = get_logger("butlers.finance").bind(butler="finance").bind(request_id=REQUEST_ID)
    log.warning("route retried", attempt=2)
    assert lines.last()["butler"] == "finance"
    assert lines.last()["request_id"] == str(REQUEST_ID)


def test_enum_is_logged_by_value(lines: Lines) -> None:
    class Outcome(StrEnum):
        SENT = "sent"

    get_logger("butlers.messenger").info("attempt ended", outcome=Outcome.SENT)
    assert lines.last()["outcome"] == "sent"


@pytest.mark.parametrize("name", ["text", "payload", "message", "password", "token", "prompt", "error_message"])
def test_field_that_is_not_listed_is_refused_at_every_level(name: str) -> None:
    log = get_logger("butlers.test")
    fields: Any = {name: "x"}
    for write in (log.debug, log.info, log.warning, log.error):
        with pytest.raises(ValueError, match=name):
            write("event", **fields)
    with pytest.raises(ValueError, match=name):
        log.bind(**fields)


@pytest.mark.parametrize("value", [{"a": 1}, ["a"], b"a", object()])
def test_field_cannot_hold_a_structure(value: Any) -> None:
    with pytest.raises(ValueError, match="reason"):
        get_logger("butlers.test").info("event", reason=value)


def test_half_of_a_character_does_not_stop_a_line(lines: Lines):
    get_logger("butlers.test").info("taken", source_channel="a\ud800b")
    assert lines.last()["source_channel"] == "a\ud800b"


@pytest.mark.parametrize("value", ["my salary is 5000", "line\nbreak", "x" * 201])
def test_sentence_in_a_field_is_withheld(lines: Lines, value: str) -> None:
    get_logger("butlers.test").info("event", reason=value)
    assert lines.last()["reason"] == f"[withheld: {len(value)} characters]"


def test_exception_is_type_and_frames_without_messages(lines: Lines) -> None:
    def fail() -> None:
        try:
            raise KeyError("the PIN is 4711")
        except KeyError as cause:
            raise RuntimeError("salary 5000") from cause

    try:
        fail()
    except RuntimeError as failure:
        get_logger("butlers.test").error("work failed", error=failure, request_id=REQUEST_ID)

    error = lines.last()["error"]
    assert error["type"] == "RuntimeError"
    assert error["frames"][-1].startswith("unit/telemetry/test_logs.py:")
    assert error["frames"][-1].endswith(" fail")
    assert error["cause"]["type"] == "KeyError"
    assert "salary" not in lines.text
    assert "4711" not in lines.text


def test_our_own_words_about_an_error_are_logged_and_scrubbed(lines: Lines) -> None:
    log = get_logger("butlers.test")
    log.error("work failed", error=TargetUnavailable("the mail server says no to correct-horse", remedy="x"))
    assert lines.last()["error"]["message"] == "the mail server says no to [redacted]"
    log.warning("work failed", error=TimeoutExceeded("no answer within 5 s"))
    error = lines.last()["error"]
    assert error == {"type": "butlers.errors.TimeoutExceeded", "message": "no answer within 5 s"}
    log.error("work failed", error=ConnectionRefusedError(111, "Connection refused", "/home/ann/salary"))
    assert lines.last()["error"]["message"] == "Connection refused"


def test_words_about_what_a_caller_wrote_are_not_logged(lines: Lines) -> None:
    get_logger("butlers.test").error("work failed", error=invalid("my salary", "is 'five thousand'"))
    assert "message" not in lines.last()["error"]
    assert "salary" not in lines.text


def test_a_refusal_of_the_database_is_named_by_code_and_constraint(lines: Lines) -> None:
    error = asyncpg.CheckViolationError('new row violates "nothing_fits": (my salary)')
    error.constraint_name, error.table_name = "nothing_fits", "state"  # as the driver sets them
    get_logger("butlers.test").error("work failed", error=error)
    assert lines.last()["error"]["message"] == "23514 state nothing_fits"
    assert "salary" not in lines.text


def test_a_failure_that_lasts_is_written_rarely_and_counted(lines: Lines) -> None:
    def fails(at_s: float, *, provider: str = "telegram", attempt: int = 1) -> None:
        fields = {"provider": provider, "attempt": attempt}
        record = logging.makeLogRecord(
            {"name": "butlers.test", "levelno": 30, "levelname": "WARNING", "msg": "polling failed", "created": at_s}
        )
        record.butlers_fields = fields
        lines.handler.handle(record)

    for second in range(0, 1_300, 10):
        fails(second, attempt=second)
    fails(1_300, provider="email")
    assert [(line["provider"], line.get("repeats")) for line in lines.all()] == [
        ("telegram", None),
        ("telegram", 59),
        ("telegram", 59),
        ("email", None),
    ]


def test_failures_of_different_requests_are_all_written(lines: Lines) -> None:
    log = get_logger("butlers.test")
    for number in range(20):
        log.warning("route failed", request_id=UUID(int=number))
    assert len(lines.all()) == 20


def test_a_poll_of_an_idle_system_writes_nothing(lines: Lines) -> None:
    lines.handler = configure_logging(lines.stream, logging.INFO)
    logging.getLogger("httpx2").info("HTTP Request: POST http://127.0.0.1/bot/getUpdates")
    logging.getLogger("mcp.server").info("Processing request")
    assert lines.text == ""
    logging.getLogger("httpx2").warning("a connection broke")
    assert lines.last()["event"] == "a connection broke"


def test_a_large_file_is_put_aside_and_old_ones_go(tmp_path: Path) -> None:
    """Two handlers stand for two processes that write to one file."""
    path = tmp_path / "butlers.jsonl"
    writers = [RotatingFile(path, max_bytes=2_000, keep=3) for _ in range(2)]
    for number in range(200):
        writers[number % 2].handle(logging.makeLogRecord({"msg": f"line {number:03} {'x' * 90}"}))
    for writer in writers:
        writer.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["butlers.jsonl", *(f"butlers.jsonl.{n}" for n in (1, 2, 3))]
    assert all(file.stat().st_size < 2_200 for file in files)
    kept = [int(line.split()[1]) for file in [*files[:0:-1], files[0]] for line in file.read_text().splitlines()]
    assert kept == list(range(kept[0], 200)), "in order, without a gap, up to the last line"
    assert len(kept) > 60


def test_exception_group_names_its_members(lines: Lines) -> None:
    get_logger("butlers.test").error("work failed", error=ExceptionGroup("x", [ValueError("secret words")]))
    assert lines.last()["error"]["errors"] == [{"type": "ValueError", "frames": []}]


def test_library_record_takes_the_same_way(lines: Lines) -> None:
    uvicorn = logging.getLogger("uvicorn.error")
    uvicorn.addHandler(logging.NullHandler())
    uvicorn.propagate = False
    lines.handler = configure_logging(lines.stream, logging.INFO)
    uvicorn.setLevel(logging.NOTSET)  # a server started by an earlier test may have set it
    uvicorn.info("Started server process [%d]", 7)
    assert lines.last()["event"] == "Started server process [7]"
    assert lines.last()["logger"] == "uvicorn.error"


def test_library_debug_is_dropped_because_it_prints_what_it_carries(lines: Lines) -> None:
    logging.getLogger("mcp.server").debug("received %r", {"text": "my salary"})
    get_logger("butlers.test").debug("tick")
    assert [line["event"] for line in lines.all()] == ["tick"]


def test_library_message_is_cut_at_its_first_line(lines: Lines) -> None:
    logging.getLogger("asyncio").error("Task exception was never retrieved\nfuture: ValueError('my salary')")
    logging.getLogger("mcp").warning("x" * 1000)
    assert "salary" not in lines.text
    assert len(lines.last()["event"]) == 300


def test_library_exception_is_stripped_too(lines: Lines) -> None:
    try:
        raise ValueError("my salary")
    except ValueError:
        logging.getLogger("mcp").exception("handler raised")
    assert lines.last()["error"]["type"] == "ValueError"
    assert "salary" not in lines.text


def test_record_that_cannot_be_formatted_does_not_spill(lines: Lines, capsys: pytest.CaptureFixture[str]) -> None:
    record = logging.makeLogRecord({"name": "careless", "levelno": 20, "msg": "%d apples", "args": ("my salary",)})
    lines.handler.handle(record)
    assert lines.last()["event"] == "a record that cannot be formatted"
    assert "salary" not in lines.text + capsys.readouterr().err


def test_second_configuration_replaces_the_first(lines: Lines, tmp_path: Path) -> None:
    path = tmp_path / "logs" / "butlers.jsonl"
    handler = configure_logging(path, "INFO")
    get_logger("butlers.test").info("started", port=40100)
    logging.getLogger().removeHandler(handler)
    handler.close()
    assert json.loads(path.read_text())["port"] == 40100
    assert lines.text == ""


SECRET_RECORDS: list[tuple[str, str]] = [
    (f'HTTP Request: POST https://api.telegram.org/bot{BOT_TOKEN}/sendMessage "HTTP/1.1 200 OK"', BOT_TOKEN),
    ("POST http://127.0.0.1:40181/bot7:short/getUpdates", "7:short"),
    (f"using {BOT_TOKEN} now", BOT_TOKEN),
    ("headers: {'Authorization': 'Bearer s3cr3t-value'}", "s3cr3t-value"),
    ("authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    ("GET /mcp?token=s3cr3t&x=1", "s3cr3t"),
    ('{"password": "two words", "user": "me"}', "two words"),
    ("login with PASSWORD=hunter2;", "hunter2"),
    ("BUTLER_EMAIL_PASSWORD='hunter2 three'", "hunter2 three"),
    ("connecting to postgresql://butler:hunter2@127.0.0.1/butlers", "hunter2"),
    ("key sk-ant-api03-abcdefghijklmnop used", "abcdefghijklmnop"),
    ("cookie eyJhbGciOiJI.eyJzdWIiOiIx.abc-def", "eyJzdWIiOiIx"),
    ("a value known to the process: correct-horse", "correct-horse"),
]


@pytest.mark.parametrize(("message", "secret"), SECRET_RECORDS)
def test_secret_in_a_library_record_is_scrubbed(lines: Lines, message: str, secret: str) -> None:
    logging.getLogger("httpx2").info(message)
    assert "[redacted]" in lines.text
    assert secret not in lines.text


@pytest.mark.parametrize(
    "secret", ["eyJhbGciOiJI." + "e" * 3_000 + ".abc", "token='two words of a secret", "correct-horse"]
)
@pytest.mark.parametrize("place", range(1_960, 2_004, 7))
def test_a_long_line_shows_no_half_of_a_secret(lines: Lines, secret: str, place: int) -> None:
    # What is redacted first makes the line short, so that its cut end is shown.
    begin = "password=" + "x" * (place - 15) + " then "
    logging.getLogger("httpx2").info(f"{begin}{secret} and more' {'of it ' * 900}")
    assert lines.last()["event"].startswith("password=[redacted]")
    for part in ("eeee", "words", "corr", "xx"):
        assert part not in lines.text


def test_a_long_line_without_blanks_is_withheld(lines: Lines) -> None:
    logging.getLogger("httpx2").info("eyJ" + "e" * 5_000)
    assert lines.last()["event"] == "[withheld: 5003 characters]"


def test_a_web_token_is_scrubbed_wherever_it_begins() -> None:
    assert Redaction()("x-eyJab.cd.ef, foo.eyJab.cd.ef") == "[redacted], foo.[redacted]"
    assert Redaction()("see honeyJar.example.com") == "see honeyJar.example.com"
    assert Redaction()("--my-token=abc") == "--my-token=[redacted]"


def test_ordinary_text_is_left_alone() -> None:
    redact = Redaction(["abc"])
    for text in (
        'HTTP Request: GET http://127.0.0.1:40100/healthz "HTTP/1.1 200 OK"',
        "input_tokens=12 output_tokens=3",
        "Uvicorn running on http://127.0.0.1:40100 (Press CTRL+C to quit)",
        "session 01890000-0000-7000-8000-000000000000 at 12:30:45, abc",
    ):
        assert redact(text) == text


def test_redaction_does_not_show_what_it_knows() -> None:
    assert "correct-horse" not in repr(Redaction(["correct-horse"]))
