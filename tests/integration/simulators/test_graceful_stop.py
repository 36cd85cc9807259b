"""SIGTERM: what a simulator has received it answers and keeps, and then its process ends with 0."""

from __future__ import annotations

import asyncio
import imaplib
import json
import os
import signal
import smtplib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from butlers.channels.telegram.simulator import DEFAULT_TOKEN
from butlers.serving.server import GuestServer, listen
from tests.integration.simulators.telegram_support import DEADLINE

BUTLER, OWNER = "butler@home.example", "owner@home.example"
HOST = "127.0.0.1"
CALLS = 8  # more than one, and each on a connection of its own


class Simulators:
    """The process, and the hands that reach it."""

    def __init__(self, process: subprocess.Popen[str], ports: dict[str, int]) -> None:
        self.process = process
        self.ports = ports
        self._base = f"http://{HOST}:{ports['http']}"

    def control(self, verb: str, path: str, body: Any = None) -> Any:
        reply = httpx2.request(verb, f"{self._base}/control{path}", json=body, timeout=DEADLINE, trust_env=False)
        assert reply.is_success, reply.text
        return reply.json() if reply.content else None

    def bot(self, method: str, **params: Any) -> Any:
        url = f"{self._base}/bot{DEFAULT_TOKEN}/{method}"
        return httpx2.post(url, json=params, timeout=DEADLINE, trust_env=False).json()

    def smtp(self) -> smtplib.SMTP:
        return smtplib.SMTP(HOST, self.ports["smtp"], local_hostname="client.example", timeout=DEADLINE)

    def imap(self) -> imaplib.IMAP4:
        client = imaplib.IMAP4(HOST, self.ports["imap"], timeout=DEADLINE)
        client.login(OWNER, "p")
        return client

    def texts(self) -> set[str]:
        return {line["text"] for line in self.control("GET", "/chats/5/transcript")["messages"]}

    def subjects(self) -> list[str]:
        return [mail["subject"] for mail in self.control("GET", "/mail/accepted")["accepted"]]

    def pause(self) -> None:
        """From now on the kernel takes in what is sent, and the process does not see it."""
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)

    def terminate_and_go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGTERM)
        os.kill(self.process.pid, signal.SIGCONT)


@contextmanager
def running(directory: Path, loop: str = "asyncio") -> Iterator[Simulators]:
    command = [sys.executable, str(Path(__file__).with_name("both_simulators.py")), str(directory), loop]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Simulators(process, json.loads(process.stdout.readline()))
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
                process.wait(DEADLINE)


def letter(subject: str) -> bytes:
    return f"From: {BUTLER}\r\nTo: {OWNER}\r\nSubject: {subject}\r\n\r\nhello\r\n".encode()


def send_mail(simulators: Simulators) -> dict[str, tuple[int, bytes]]:
    client = simulators.smtp()
    refused = client.sendmail(BUTLER, [OWNER], letter("held up"))
    client.close()  # nobody is there any more to say goodbye to
    return refused


def noop(simulators: Simulators) -> str:
    client = simulators.imap()
    status: str = client.noop()[0]
    client.shutdown()
    return status


def hold_up(simulators: Simulators) -> None:
    """Everybody's next call waits for ten minutes."""
    for method, times in (("sendMessage", CALLS), ("getUpdates", 1)):
        fault = {"method": method, "kind": "delay", "seconds": 600, "times": times}
        simulators.control("POST", "/faults", fault)
    smtp = {"server": "smtp", "phase": "dot", "kind": "delay", "seconds": 600}
    imap = {"server": "imap", "command": "NOOP", "kind": "delay", "seconds": 600}
    for fault in (smtp, imap):
        simulators.control("POST", "/mail/faults", fault)


def all_held_up(simulators: Simulators) -> bool:
    waiting = simulators.control("GET", "/faults")["faults"] + simulators.control("GET", "/mail/faults")["faults"]
    return not waiting


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_calls_that_are_held_up_are_answered_before_the_end(tmp_path: Path, loop: str) -> None:
    with running(tmp_path, loop) as simulators, ThreadPoolExecutor(CALLS + 3) as pool:
        hold_up(simulators)
        sent = [pool.submit(simulators.bot, "sendMessage", chat_id=5, text=f"m{n}") for n in range(CALLS)]
        poll = pool.submit(simulators.bot, "getUpdates", timeout=50)
        mailed, idled = pool.submit(send_mail, simulators), pool.submit(noop, simulators)
        while not all_held_up(simulators):
            assert not any(call.done() for call in (*sent, poll, mailed, idled))
        simulators.process.terminate()
        assert all(answer(call)["ok"] for call in sent)
        assert answer(poll) == {"ok": True, "result": []}
        assert (answer(mailed), answer(idled)) == ({}, "OK")
        assert simulators.process.wait(DEADLINE) == 0
    with running(tmp_path) as simulators:
        assert simulators.texts() == {f"m{n}" for n in range(CALLS)}
        assert simulators.subjects() == ["held up"]


def answer(call: Future[Any]) -> Any:
    return call.result(DEADLINE)


def http_request(text: str) -> bytes:
    body = json.dumps({"chat_id": 5, "text": text}).encode()
    head = f"POST /bot{DEFAULT_TOKEN}/sendMessage HTTP/1.1\r\nHost: simulator\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def read_until(connection: socket.socket, complete: Callable[[bytes], bool]) -> bytes:
    received = b""
    while not complete(received) and (chunk := connection.recv(65536)):
        received += chunk
    return received


def says_ok(received: bytes) -> bool:
    return received.startswith(b"HTTP/1.1 200 ") and b'"ok":true' in received


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_what_only_the_kernel_has_received_is_answered_too(tmp_path: Path, loop: str) -> None:
    with running(tmp_path, loop) as simulators, ExitStack() as stack:

        def connect(door: str) -> socket.socket:
            where = (HOST, simulators.ports[door])
            return stack.enter_context(socket.create_connection(where, timeout=DEADLINE))

        kept_alive = connect("http")
        kept_alive.sendall(http_request("before"))
        assert says_ok(read_until(kept_alive, says_ok))
        smtp, imap = simulators.smtp(), simulators.imap()
        stack.callback(smtp.close)
        stack.callback(imap.shutdown)
        smtp.ehlo()
        smtp.mail(BUTLER)
        smtp.rcpt(OWNER)
        assert smtp.docmd("DATA")[0] == 354

        simulators.pause()
        fresh = [connect("http") for _ in range(CALLS)]
        for number, connection in enumerate([kept_alive, *fresh]):
            connection.sendall(http_request(f"m{number}"))
        smtp.send(letter("in the kernel") + b".\r\n")
        imap.send(b"A1 NOOP\r\n")
        simulators.terminate_and_go_on()

        assert all(says_ok(read_until(connection, says_ok)) for connection in [kept_alive, *fresh])
        assert smtp.getreply()[0] == 250
        assert imap.readline().startswith(b"A1 OK")
        assert simulators.process.wait(DEADLINE) == 0
    with running(tmp_path) as simulators:
        assert simulators.texts() == {"before"} | {f"m{number}" for number in range(CALLS + 1)}
        assert simulators.subjects() == ["in the kernel"]


class PromptServer(GuestServer):
    """Stops in the very turn in which it is told to; uvicorn itself looks ten times a second."""

    def __init__(self, app: Starlette) -> None:
        super().__init__(app)
        self._told = asyncio.Event()

    async def main_loop(self) -> None:
        await self._told.wait()

    async def close(self) -> None:
        self._told.set()
        await super().close()


async def test_a_server_reads_what_has_arrived_before_it_stops() -> None:
    async def hello(request: Request) -> Response:
        return PlainTextResponse("hello")

    listener = listen(HOST, 0, source="test", remedy="")
    server = PromptServer(Starlette(routes=[Route("/", hello)]))
    await server.open(listener)
    with socket.create_connection(listener.getsockname(), timeout=DEADLINE) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: simulator\r\n\r\n")  # the loop has not had a turn since
        await server.close()
        assert read_until(client, lambda received: received.endswith(b"hello")).startswith(b"HTTP/1.1 200 ")


def test_nothing_is_accepted_without_an_answer_while_traffic_flows(tmp_path: Path) -> None:
    answered: list[str] = []
    well_under_way = threading.Event()

    def flood(sender: int) -> None:
        with httpx2.Client(timeout=DEADLINE, trust_env=False) as client:
            for number in range(100_000):
                text = f"{sender}.{number}"
                url = f"http://{HOST}:{simulators.ports['http']}/bot{DEFAULT_TOKEN}/sendMessage"
                try:
                    reply = client.post(url, json={"chat_id": 5, "text": text})
                except httpx2.HTTPError:
                    return
                assert reply.json()["ok"]
                answered.append(text)
                if len(answered) > 100:
                    well_under_way.set()

    with running(tmp_path) as simulators, ThreadPoolExecutor(4) as pool:
        floods = [pool.submit(flood, sender) for sender in range(4)]
        assert well_under_way.wait(DEADLINE)
        simulators.process.terminate()
        for one in floods:
            one.result(DEADLINE)
        assert simulators.process.wait(DEADLINE) == 0
    with running(tmp_path) as simulators:
        assert simulators.texts() == set(answered)


def test_a_client_that_says_nothing_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with running(tmp_path) as simulators, ExitStack() as stack:
        for door in ("http", "smtp", "imap"):
            silent = socket.create_connection((HOST, simulators.ports[door]), timeout=DEADLINE)
            stack.enter_context(silent)
            silent.sendall(b"PO")
        idling = simulators.imap()
        stack.callback(idling.shutdown)
        idling.select()
        idling.send(b"I1 IDLE\r\n")
        assert idling.readline().startswith(b"+")
        simulators.process.terminate()
        assert simulators.process.wait(3) == 0  # seconds; the grace for unread answers alone is longer
