"""Calling `butlers` as a person or a script does."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import httpx2
import pytest
from benchmarks.chaos.roster import lifted_roster

from butlers.clock import SystemClock
from butlers.daemon.cli import main
from butlers.daemon.demo.instance import Instance, clean_environment
from butlers.daemon.demo.lines import processes_of

# A worker that died is noticed soon, and nothing waits for the disk: only the process is killed, never the machine.
LIFTED = {
    "limits": {
        "max_in_flight": 100_000,
        "global_per_minute": 1e6,
        "recipient_per_minute": 1e6,
        "channel_per_minute": {"telegram.bot": 1e6, "email.bot": 1e6, "default": 1e6},
    },
    "tell_owner": False,
}
QUICK = {"database_durable": "false", "lease_ttl_s": "2", "lease_renew_s": "0.5"}
_COMMAND = (sys.executable, "-m", "butlers.daemon.cli")

Completed = subprocess.CompletedProcess[str]


_DEADLINE_S = 300  # for what ends by itself; machines are busy


def butlers(*arguments: object, stdin: bytes = b"", environment: Mapping[str, str] | None = None) -> Completed:
    """One command from start to end. Whatever it is told, it never answers with a stack trace."""
    completed = subprocess.run(
        [*_COMMAND, *(a if isinstance(a, bytes) else str(a) for a in arguments)],
        input=stdin,
        capture_output=True,
        env=clean_environment() | dict(environment or {}),
        timeout=_DEADLINE_S,
    )
    output, complaint = completed.stdout.decode(), completed.stderr.decode()
    assert "Traceback" not in complaint, complaint
    return subprocess.CompletedProcess(completed.args, completed.returncode, output, complaint)


def butlers_here(*arguments: object, stdin: bytes = b"", environment: Mapping[str, str] | None = None) -> Completed:
    """The same command line in this process: for the many that are to fail before anything is started."""
    given = [os.fsdecode(a) if isinstance(a, bytes) else str(a) for a in arguments]
    output, complaint = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["butlers", *given]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))),
        mock.patch.dict(os.environ, clean_environment() | dict(environment or {}), clear=True),
        redirect_stdout(output),
        redirect_stderr(complaint),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    code = ended.value.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(given, code, output.getvalue(), complaint.getvalue())


def answer(*arguments: object, **options: Any) -> Any:
    """What a command that succeeds says to machines: one line of JSON."""
    completed = butlers(*arguments, "--json", **options)
    assert completed.returncode == 0, completed.stderr
    [line] = completed.stdout.splitlines()
    return json.loads(line)


def answer_here(*arguments: object, **options: Any) -> Any:
    """The same from a command in this process."""
    completed = butlers_here(*arguments, "--json", **options)
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


@asynccontextmanager
async def up(
    data_dir: Path, *, environment: Mapping[str, str] | None = None, **settings: str
) -> AsyncIterator[Instance]:
    """A whole system without rate limits, started; gone at the end, whatever the test did to it."""
    with TemporaryDirectory() as folder:
        roster = {"roster": str(lifted_roster(Path(folder) / "roster", LIFTED))}
        instance = Instance(data_dir, clock=SystemClock(), settings=QUICK | roster | settings, environment=environment)
        try:
            await instance.start()
            yield instance
        finally:
            await instance.close()


@contextmanager
def kept_running(*arguments: object, says: str) -> Iterator[subprocess.Popen[str]]:
    """A command that keeps running, from its first word that all is well until it is told to stop."""
    process = subprocess.Popen(
        [*_COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=clean_environment(),
        text=True,
    )
    try:
        assert process.stdout is not None
        assert any(says in line for line in process.stdout), f"{arguments} ended with {process.wait(10)}"
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=_DEADLINE_S)


async def finished(instance: Instance, *request_ids: str) -> list[dict[str, Any]]:
    """The traces of requests, as soon as all have come to their end."""

    async def all_terminal() -> bool:
        counts = await instance.counts()
        return not counts.get("accepted") and not counts.get("progress")

    await instance.until("all requests are terminal", all_terminal, timeout_s=90, pause_s=0.1)
    return list(await asyncio.gather(*(instance.request(request_id) for request_id in request_ids)))


async def nothing_left(data_dir: Path) -> None:
    """Wait until no process knows the data directory; a simulator may still be saying its last words."""
    async with asyncio.timeout(_DEADLINE_S):
        while processes_of(data_dir):
            await asyncio.sleep(0.05)


def telegram_event(update_id: int, chat: int, text: str) -> dict[str, Any]:
    """A Telegram message as a connector would hand it in."""
    return {
        "schema_version": "ingest.v1",
        "source": {"channel": "telegram", "provider": "telegram", "endpoint_identity": "butlers_sim_bot"},
        "event": {
            "external_event_id": str(update_id),
            "external_thread_id": str(chat),
            "observed_at": SystemClock().now().isoformat(),
        },
        "sender": {"identity": str(chat)},
        "payload": {"raw": {"update_id": update_id}, "normalized_text": text},
    }


async def slow_telegram(instance: Instance, seconds: float, *, times: int | None) -> None:
    """Let the provider take its time over each message it is given."""
    fault = {"method": "sendMessage", "kind": "delay", "seconds": seconds, "times": times}
    await instance.post("telegram_simulator", "/control/faults", fault)


async def quick_telegram(instance: Instance) -> None:
    """Take every fault away."""
    async with httpx2.AsyncClient(trust_env=False) as http:
        cleared = await http.delete(f"{instance.url('telegram_simulator')}/control/faults")
        assert cleared.status_code == 200


async def until_on_the_wire(instance: Instance) -> None:
    """Wait until the first bytes of a message have left for the provider, by Messenger's own evidence."""

    async def left() -> bool:
        logs = (instance.data_dir / "messenger").glob("*.wire")
        return any(log.read_text().partition("\n")[2][:1] not in ("", "\0") for log in logs)  # behind the first line

    await instance.until("a message is on the wire", left, pause_s=0.01)


def write_settings(data_dir: Path, text: str) -> None:
    data_dir.mkdir(parents=True, exist_ok=True)
    (data_dir / "butlers.toml").write_text(text)


def pretend_running(data_dir: Path, doors: Mapping[str, str]) -> None:
    """A run file of a process that lives: this one."""
    data_dir.mkdir(parents=True, exist_ok=True)
    description = {"doors": dict(doors), "simulators": {}, "pid": os.getpid()}
    (data_dir / "run.json").write_text(json.dumps(description))
