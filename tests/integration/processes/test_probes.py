"""Credentials that a provider refuses: said by `doctor`, at `up`, and while the system runs, which goes on serving."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from butlers.channels.email.simulator import MailSimulator, serve_mail
from butlers.channels.telegram.simulator import DEFAULT_TOKEN, TelegramSimulator, serve_telegram
from butlers.clock import SystemClock
from butlers.daemon.delivery_checks import probe
from butlers.daemon.demo.instance import clean_environment
from butlers.daemon.machine_checks import Status
from butlers.daemon.settings import Settings
from butlers.daemon.simulation import Simulated
from butlers.storage.embedded import EmbeddedPostgres
from tests.integration.processes.command import answer_here, butlers_here, pretend_running
from tests.integration.simulators.mail_state import ACCOUNTS, BUTLER
from tests.ports import free_port
from tests.system import running_system

HOST = "127.0.0.1"
WRONG_TOKEN = "7654321:AAnobodys-token-nobodys-token-nobodys"
WRONG_PASSWORD = "nobodys-password"


@dataclass(frozen=True, slots=True, kw_only=True)
class Providers:
    telegram: TelegramSimulator
    mail: MailSimulator

    @property
    def settings(self) -> dict[str, Any]:
        """Where they are; to the system they are real ones."""
        return {
            "telegram_api_url": self.telegram.base_url,
            "smtp_host": HOST,
            "smtp_port": self.mail.smtp_port,
            "smtp_tls": "none",
            "imap_host": HOST,
            "imap_port": self.mail.imap_port,
            "imap_tls": "none",
        }

    @property
    def flags(self) -> list[str]:
        return [word for name, value in self.settings.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture
async def providers() -> AsyncIterator[Providers]:
    async with AsyncExitStack() as stack:
        clock = SystemClock()
        yield Providers(
            telegram=await stack.enter_async_context(serve_telegram(HOST, 0, clock=clock)),
            mail=await stack.enter_async_context(serve_mail(HOST, 0, 0, None, clock=clock, accounts=ACCOUNTS)),
        )


def credentials(token: str = DEFAULT_TOKEN, password: str = ACCOUNTS[BUTLER]) -> dict[str, str]:
    return {"BUTLER_TELEGRAM_TOKEN": token, "BUTLER_EMAIL_ADDRESS": BUTLER, "BUTLER_EMAIL_PASSWORD": password}


WRONG = credentials(WRONG_TOKEN, WRONG_PASSWORD)
ASKED = {"provider.telegram.bot", "provider.email.bot", "provider.email.bot.mailbox"}


async def test_doctor_asks_the_providers_and_says_what_to_do(providers: Providers, tmp_path: Path) -> None:
    async def doctor(environment: dict[str, str]) -> dict[str, Any]:
        ask = ("doctor", "--json", "--data-dir", tmp_path / "data", *providers.flags)
        completed = await asyncio.to_thread(butlers_here, *ask, environment=environment)
        for secret in environment.values():
            assert secret == BUTLER or secret not in completed.stdout + completed.stderr
        return {check["name"]: check for check in json.loads(completed.stdout)["checks"]}

    known = await doctor(credentials())
    assert {name for name in known if name.startswith("provider.")} == ASKED
    assert {known[name]["status"] for name in ASKED} == {"ok"}
    refused = await doctor(WRONG)
    assert {refused[name]["status"] for name in ASKED} == {"warn"}
    assert refused["provider.telegram.bot"]["detail"] == "Telegram refuses the bot's token"
    assert "BUTLER_TELEGRAM_TOKEN" in refused["provider.telegram.bot"]["remedy"]
    for name in ("provider.email.bot", "provider.email.bot.mailbox"):
        assert refused[name]["detail"].endswith("refuses the login")
        assert "BUTLER_EMAIL_PASSWORD" in refused[name]["remedy"]
    assert providers.mail.store.accepted == ()


async def test_what_is_simulated_or_half_set_is_not_asked(tmp_path: Path) -> None:
    half = {"BUTLER_TELEGRAM_TOKEN": WRONG_TOKEN, "BUTLER_EMAIL_ADDRESS": BUTLER}
    for environment in ({}, half):
        assert await asyncio.to_thread(probe, Settings(data_dir=tmp_path), environment) == ()


async def test_providers_that_are_away_are_told_within_seconds(tmp_path: Path) -> None:
    away = Settings(
        data_dir=tmp_path, telegram_api_url=f"http://{HOST}:1", smtp_host=HOST, smtp_port=1, imap_host=HOST, imap_port=1
    )
    found = {check.name: check for check in await asyncio.to_thread(probe, away, credentials())}
    assert {check.status for check in found.values()} == {Status.WARN}
    assert "nothing listens at that port" in found["provider.email.bot"].detail
    assert "Telegram is unreachable" in found["provider.telegram.bot"].detail
    assert all(check.remedy for check in found.values())


@pytest.mark.parametrize(
    ("program", "login", "status", "says"),
    [
        ("#!/bin/sh\necho 1.0\n", True, Status.OK, "runs and has a login"),
        ("#!/bin/sh\necho 1.0\n", False, Status.WARN, "no login of it was found"),
        ("#!/bin/sh\nexit 3\n", True, Status.WARN, "--version ended with 3"),
    ],
)
def test_a_program_of_an_llm_is_run_and_its_login_looked_for(
    tmp_path: Path, program: str, login: bool, status: Status, says: str
) -> None:
    (tmp_path / "codex").write_text(program)
    (tmp_path / "codex").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    environment |= {"OPENAI_API_KEY": "sk-nobodys-key-at-all"} if login else {}
    asked = {check.name: check for check in probe(Settings(data_dir=tmp_path, llm="on"), environment)}
    check = asked["program.codex"]
    assert (check.status, says in check.detail) == (status, True)
    assert "nobodys" not in check.detail + check.remedy
    assert probe(Settings(data_dir=tmp_path, llm="off"), environment) == ()


async def test_a_running_system_says_who_refuses_it_and_goes_on(
    providers: Providers, tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    nobody = Simulated()
    async with running_system(
        tmp_path, postgres_server, simulated=nobody, environment=WRONG, provider_probe_s=0.2, **providers.settings
    ) as running:

        async def parts(butler: str, part: str) -> dict[str, Any]:
            ready = await running.http.get(running.url(butler, "/readyz"))
            assert ready.status_code == 200, "a wrong password is no reason not to serve"
            return {one.get("name", part): one for one in ready.json()["parts"] if one["part"] == part}

        async def refused() -> dict[str, Any]:
            found = await parts("messenger", "credentials")
            return found if len(found) == 3 else {}

        found = await running.until(refused)
        assert {one["state"] for one in found.values()} == {"degraded"}
        assert found["telegram.bot"]["sentence"] == "Telegram refuses the bot's token."
        assert found["email.bot"]["sentence"].endswith("refuses the login.")
        assert "BUTLER_EMAIL_PASSWORD" in found["email.bot.mailbox"]["remedy"]

        async def connector_is_refused() -> bool:
            (one,) = (await parts("switchboard", "telegram connector")).values()
            return bool(one["state"] == "degraded")

        await running.until(connector_is_refused)
        pretend_running(running.settings.data_dir, {"switchboard": running.url()})
        where = ("--data-dir", running.settings.data_dir)
        listed = await asyncio.to_thread(answer_here, "connectors", *where)
        (silent,) = listed["not_reporting"]
        assert "Telegram refuses the bot's token" in silent["sentence"]
        assert "BUTLER_TELEGRAM_TOKEN" in silent["remedy"]
        told = await asyncio.to_thread(butlers_here, "connectors", *where)
        assert "Telegram refuses the bot's token" in told.stdout
        for document in (json.dumps(listed), told.stdout, json.dumps(found)):
            assert WRONG_TOKEN not in document
            assert WRONG_PASSWORD not in document


async def test_up_starts_with_a_wrong_password_and_says_so(providers: Providers, tmp_path: Path) -> None:
    names = ("switchboard", "messenger", "general", "relationship", "health", "finance", "travel")
    ports = [word for name in names for word in ("--port", f"{name}={free_port()}")]
    command = [sys.executable, "-m", "butlers.daemon.cli", "up", "--data-dir", str(tmp_path / "data"), *ports]
    process = await asyncio.create_subprocess_exec(
        *(*command, *providers.flags, "--set", "database_durable=false"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=clean_environment() | WRONG,
    )
    said = b""
    try:
        assert process.stderr is not None
        async with asyncio.timeout(120):
            while b"warning: provider.email.bot.mailbox" not in said:
                line = await process.stderr.readline()
                assert line, said
                said += line
        process.send_signal(signal.SIGINT)
        said += (await process.communicate())[1]
    finally:
        if process.returncode is None:
            os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said
    assert b"warning: provider.telegram.bot: Telegram refuses the bot's token" in said
    assert b"refuses the login (correct the password (BUTLER_EMAIL_PASSWORD)" in said
    assert WRONG_PASSWORD.encode() not in said
    assert b"Traceback" not in said
