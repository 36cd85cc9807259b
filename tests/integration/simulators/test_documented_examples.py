"""The calls that docs/simulators.md shows are answered as it says."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import httpx2

from butlers.channels.email.simulator import serve_mail
from butlers.channels.telegram.simulator import serve_telegram
from butlers.clock import SystemClock
from tests.integration.simulators.telegram_support import DEADLINE

PAGE = Path(__file__).parents[3] / "docs" / "simulators.md"
ACCOUNTS = {"butler@butlers.example": "simulated"}


def documented_calls() -> Iterator[tuple[str, int]]:
    for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for line in filter(None, block.splitlines()):
            call, _, status = line.rpartition("  # ")
            yield call, int(status)


async def called(client: httpx2.AsyncClient, call: str, ports: dict[str, int]) -> httpx2.Response:
    """What curl would do with these few of its options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-X", dest="verb")
    parser.add_argument("-d", dest="data", action="append", default=[])
    parser.add_argument("--json", dest="document")
    parser.add_argument("-H", dest="header", default="Content-Type: application/x-www-form-urlencoded")
    parser.add_argument("url")
    given = parser.parse_args(shlex.split(call.removeprefix("curl ")))
    data = [given.document] if given.document else given.data
    verb = given.verb or ("POST" if data else "GET")
    url = re.sub(r":(4\d{4})/", lambda port: f":{ports[port[1]]}/", f"http://{given.url}", count=1)
    kind = "application/json" if given.document else given.header.removeprefix("Content-Type: ")
    headers = {"content-type": kind} if data else {}
    return await client.request(verb, url, content="&".join(data).encode(), headers=headers)


async def test_every_documented_call_is_answered_as_the_page_says() -> None:
    clock = SystemClock()
    async with (
        serve_mail("127.0.0.1", 0, 0, 0, clock=clock, accounts=ACCOUNTS) as mail,
        serve_telegram(port=0, clock=clock) as telegram,
        httpx2.AsyncClient(timeout=DEADLINE, trust_env=False) as client,
    ):
        assert mail.control_port is not None
        ports = {"40181": telegram.port, "40182": mail.control_port}
        calls = list(documented_calls())
        answers = [(call, (await called(client, call, ports)).status_code) for call, _ in calls]
    assert len(calls) > 20
    assert answers == calls
