"""A system in a process of its own, as an operator runs it: started, talked to, killed and stopped."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import signal
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import IO, Any

import httpx2

from butlers.clock import Clock
from butlers.daemon.settings import COURIER_PORT, shipped_roster
from butlers.errors import ButlersError, TimeoutExceeded
from butlers.http_client import OWN_LIMIT, BoundedAsyncClient
from butlers.roster import load_roster
from butlers.simulators import simulator_ports
from butlers.storage.embedded import EmbeddedPostgres

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
PROVIDER_VARIABLES = ("BUTLER_TELEGRAM_TOKEN", "BUTLER_EMAIL_ADDRESS", "BUTLER_EMAIL_PASSWORD")
_LOWEST_OFFSET, _HIGHEST_OFFSET, _STEP = 21_000, 23_900, 100


class Instance:
    """`butlers up` in a data directory, and the doors it opened."""

    def __init__(
        self,
        data_dir: Path,
        *,
        clock: Clock,
        settings: Mapping[str, str] | None = None,  # as flags
        environment: Mapping[str, str] | None = None,  # on top of a clean one
    ) -> None:
        self.data_dir = data_dir
        self._clock = clock
        self._settings = dict(settings or {})
        self._environment = dict(environment or {})
        self._usual = {name: config.butler.port for name, config in load_roster(shipped_roster()).items()}
        self._usual["courier"] = COURIER_PORT
        self._ports = PortRange([*self._usual.values(), *simulator_ports().values()])
        self.offset = self._ports.offset
        self._process: asyncio.subprocess.Process | None = None
        self._http = BoundedAsyncClient(limit=OWN_LIMIT, timeout=30, trust_env=False)

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ButlersError("the system is not running")
        return self._process.pid

    def url(self, name: str) -> str:
        usual = self._usual.get(name) or simulator_ports()[name]
        return f"http://127.0.0.1:{usual + self.offset}"

    async def start(self) -> float:
        """Start and wait until every door is healthy; returns the seconds it took."""
        began = self._clock.monotonic()
        command = [sys.executable, "-m", "butlers.daemon.cli", "up", "--data-dir", str(self.data_dir)]
        command += ["--port-offset", str(self.offset)]
        for key, value in self._settings.items():
            command += ["--set", f"{key}={value}"]
        self._process = await asyncio.create_subprocess_exec(
            *command,
            env=clean_environment() | self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        await self.until("every door is healthy", self.is_ready, timeout_s=START_TIMEOUT_S)
        return self._clock.monotonic() - began

    async def kill(self) -> None:
        """kill -9: no goodbye."""
        os.kill(self.pid, signal.SIGKILL)
        await self.ended()

    async def stop(self) -> int:
        """ctrl-C; returns the exit code."""
        os.kill(self.pid, signal.SIGINT)
        return await self.ended()

    async def close(self) -> None:
        """Make sure that nothing is left behind, whatever happened."""
        if self._process is not None and self._process.returncode is None:
            try:
                await self.stop()
            except TimeoutError:
                await self.kill()
        # A process that was killed could not stop its database.
        await asyncio.to_thread(EmbeddedPostgres(self.data_dir).stop)
        await self._http.aclose()
        self._ports.give_back()

    async def ingest(self, body: Any, *, token: str | None = None) -> httpx2.Response:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        address = f"{self.url('switchboard')}/api/ingest"
        if isinstance(body, bytes):
            return await self._http.post(address, content=body, headers=headers)
        return await self._http.post(address, json=body, headers=headers)

    async def get(self, name: str, path: str, **parameters: Any) -> Any:
        response = await self._http.get(f"{self.url(name)}{path}", params=parameters)
        response.raise_for_status()
        return response.json()

    async def post(self, name: str, path: str, body: Any, *, token: str | None = None) -> Any:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        response = await self._http.post(f"{self.url(name)}{path}", json=body, headers=headers)
        response.raise_for_status()
        return response.json()

    async def request(self, request_id: str) -> dict[str, Any]:
        document: dict[str, Any] = await self.get("switchboard", f"/api/requests/{request_id}")
        return document

    async def counts(self) -> dict[str, int]:
        counts: dict[str, int] = (await self.get("switchboard", "/api/status"))["requests"]
        return counts

    async def transcript(self, chat_id: int | str) -> list[dict[str, Any]]:
        answer = await self.get("telegram_simulator", f"/control/chats/{chat_id}/transcript")
        messages: list[dict[str, Any]] = answer["messages"]
        return messages

    async def bot_messages(self, chat_id: int | str) -> list[str]:
        return [message["text"] for message in await self.transcript(chat_id) if message["from"] == "bot"]

    async def say(self, chat_id: int, text: str) -> None:
        """Post as a user in the simulator's own chat."""
        person = {"id": chat_id, "first_name": "Ada"}
        await self.post("telegram_simulator", "/control/messages", {"chat_id": chat_id, "from": person, "text": text})

    async def until(
        self, what: str, condition: Callable[[], Awaitable[Any]], *, timeout_s: float = 30.0, pause_s: float = 0.05
    ) -> Any:
        """Wait for something to become true and return it."""
        deadline = self._clock.monotonic() + timeout_s
        while self._clock.monotonic() < deadline:
            if found := await condition():
                return found
            await self._check_alive()
            await self._clock.sleep(pause_s)
        raise TimeoutExceeded(f"waited {timeout_s:g} s in vain: {what}")

    async def is_ready(self) -> bool:
        """Whether every door says that all it needs is there."""
        try:
            states = [await self._http.get(f"{self.url(name)}/readyz", timeout=5) for name in self._usual]
        except httpx2.HTTPError:
            return False
        return all(state.status_code == 200 for state in states)

    async def _check_alive(self) -> None:
        process = self._process
        if process is not None and process.returncode is not None:
            words = (await process.stderr.read()).decode(errors="replace").strip() if process.stderr else ""
            raise ButlersError(f"the system ended with exit code {process.returncode}: {words.splitlines()[-1:]}")

    async def ended(self) -> int:
        """Wait for the end; returns the exit code."""
        if self._process is None:
            return 0
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await self._process.communicate()
        return self._process.returncode or 0


def clean_environment() -> dict[str, str]:
    """Our environment without anything that would configure a system."""
    ours = ("BUTLERS_", *PROVIDER_VARIABLES, "DATABASE_URL")
    return {key: value for key, value in os.environ.items() if not key.startswith(ours)}


class PortRange:
    """An offset with which all ports and the courier's are free, kept from other instances also while this one is down.

    The range lies above the ports that Linux hands to outgoing connections, and the courier's port below them: one of
    those cannot come in between.
    """

    def __init__(self, ports: list[int]) -> None:
        offsets = range(_LOWEST_OFFSET, _HIGHEST_OFFSET, _STEP)
        for offset in random.sample(offsets, len(offsets)):
            lock = _locked(Path(tempfile.gettempdir()) / f"butlers-ports-{offset}.lock")
            if lock is None:
                continue
            if all(_is_free(port + offset) for port in (*ports, COURIER_PORT)):
                self.offset, self._lock = offset, lock
                return
            lock.close()
        raise ButlersError("no free range of ports was found")

    def give_back(self) -> None:
        Path(self._lock.name).unlink(missing_ok=True)
        self._lock.close()


def _locked(path: Path) -> IO[str] | None:
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
