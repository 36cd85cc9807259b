"""The lines of the tour, in order. Each drives real traffic through public doors and checks what came of it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from butlers.butler.identity import OPERATOR, TokenFile
from butlers.clock import Clock
from butlers.courier.client import CourierClient
from butlers.daemon.demo.instance import Instance, clean_environment
from butlers.daemon.demo.remote_butler import RemoteButler
from butlers.daemon.places import Places
from butlers.errors import ButlersError, TimeoutExceeded
from butlers.operations.operation import Role

_DAY, _HOUR = timedelta(days=1), timedelta(hours=1)
_PATIENCE_S = 600.0  # Spark takes ten seconds alone on two cores, and minutes beside other work
CHAT, REMOTE_CHAT = 4711, 4712
PEOPLE_CHATS = (4713, 4714, 4715)
CRASH_CHATS = tuple(range(4720, 4730))  # several, because one recipient is not to be flooded
IN_FLIGHT = 40


def event(update_id: str, chat: int, text: str, *, observed_at: datetime) -> dict[str, Any]:
    return {
        "schema_version": "ingest.v1",
        "source": {"channel": "telegram", "provider": "telegram", "endpoint_identity": "butlers_sim_bot"},
        "event": {
            "external_event_id": update_id,
            "external_thread_id": str(chat),
            "observed_at": observed_at.isoformat(),
        },
        "sender": {"identity": str(chat)},
        "payload": {"raw": {"update_id": update_id}, "normalized_text": text},
    }


def bad_inputs(good: dict[str, Any]) -> list[tuple[str, Any, str | None]]:
    """What is wrong, the body, and a token."""
    return [
        ("unknown field", good | {"surprise": 1}, None),
        ("wrong version", good | {"schema_version": "ingest.v9"}, None),
        ("empty text", good | {"payload": {"raw": {}, "normalized_text": "  "}}, None),
        ("naive timestamp", good | {"event": good["event"] | {"observed_at": "2026-01-01T00:00:00"}}, None),
        ("5 MB body", good | {"payload": {"raw": {}, "normalized_text": "x" * 5_000_000}}, None),
        ("invalid UTF-8", b'{"schema_version": "\xff\xfe"}', None),
        ("wrong token", good, "not-a-token"),
    ]


async def answers_delivered(data_dir: Path, since: datetime) -> int:
    """How many answers reached somebody, by the job `delivery-stats`; reactions are none."""
    run = await _run_job("delivery-stats", data_dir, since, "group_by=intent")
    groups = [group for group in run["details"]["stats"] if group["grouping"] == "intent"]
    return sum(group["delivered"] for group in groups if json.loads(group["group_values"])["intent"] != "react")


async def _run_job(job: str, data_dir: Path, since: datetime, argument: str) -> dict[str, Any]:
    window = ("--from", since.isoformat(), "--to", (since + _DAY).isoformat())
    words = ("pipeline", "run", job, *window, "--set", argument, "--json", "--data-dir", str(data_dir))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "butlers.daemon.cli", *words),
        env=clean_environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_PATIENCE_S):
            stdout, stderr = await process.communicate()
    except TimeoutError:
        raise TimeoutExceeded(f"{job} did not end within {_PATIENCE_S:g} s; is the machine busy?") from None
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if process.returncode != 0:
        last = (stdout or stderr).decode(errors="replace").strip().splitlines()
        raise ButlersError(f"{job} ended with exit code {process.returncode}: {last[-1:]}")
    document: dict[str, Any] = json.loads(stdout)
    return document


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing shown."""

    name: str
    shows: str
    passed: bool
    detail: str
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"seconds": round(self.seconds, 2)}


class Demo:
    """Runs the lines against one instance; a line that fails does not stop the others."""

    def __init__(self, data_dir: Path, clock: Clock, progress: Callable[[str], None] = lambda _: None) -> None:
        self._progress = progress
        self.instance = Instance(data_dir, clock=clock)
        self._data_dir = data_dir
        self._clock = clock
        self._began = clock.now()
        self._request_id = ""

    async def lines(self, *, keep: bool = False) -> AsyncIterator[Line]:
        steps: list[tuple[str, str, Callable[[], Awaitable[str]]]] = [
            ("start", "every door says at /readyz that it is ready", self._start),
            ("in", "a Telegram message is accepted, stored and given one request_id", self._in),
            ("route", "it reaches the right specialist, which keeps it", self._route),
            ("out", "the answer comes back to the chat, signed by the butler", self._out),
            ("question", "the specialist answers from what it was told", self._question),
            ("remote", "a butler without an address attaches by WebSocket and answers a chat", self._remote),
            (
                "people",
                "a message for three people: one asleep, one opted out, one reached by another channel; as explained",
                self._people,
            ),
            ("duplicate", "the same event twice is one request and one answer", self._duplicate),
            ("trace", "every hop is on record under the one request_id", self._trace),
            (
                "bad input",
                "seven kinds of bad input are refused with the fields named, and nothing is stored",
                self._bad,
            ),
            ("provider fault", "a 429 and a 500 from Telegram are waited out; the answer leaves once", self._faults),
            (
                "crash",
                f"kill -9 with {IN_FLIGHT} messages in flight: all are finished after a restart, each answered once",
                self._crash,
            ),
            ("statistics", "Spark counts as many deliveries as the chats and mailboxes show", self._statistics),
        ]
        if not keep:
            steps.append(("stop", "ctrl-C drains, exits 0 and leaves no process", self._stop))
        for name, shows, step in steps:
            self._progress(name)
            line = await self._line(name, shows, step)
            yield line
            if name == "start" and not line.passed:
                return  # nothing that follows could tell more

    async def _line(self, name: str, shows: str, step: Callable[[], Awaitable[str]]) -> Line:
        began = self._clock.monotonic()
        try:
            detail, passed = await step(), True
        except (ButlersError, httpx2.HTTPError, OSError, LookupError, ValueError) as error:
            detail, passed = f"{type(error).__name__}: {error}", False
        return Line(name=name, shows=shows, passed=passed, detail=detail, seconds=self._clock.monotonic() - began)

    async def _start(self) -> str:
        seconds = await self.instance.start()
        return f"healthy after {seconds:.1f} s"

    async def _in(self) -> str:
        await self.instance.say(CHAT, "I paid the electricity bill, 84 euros")
        self._request_id = await self.instance.until("the message is stored", self._newest_request)
        return f"request {self._request_id}"

    async def _route(self) -> str:
        trace = await self._finished(self._request_id)
        [segment] = trace["routing"]["decision"]["segments"]
        _expect(segment["butler"] == "finance", f"it went to {segment['butler']}")
        _expect(len(trace["butlers"]["finance"]["entries"]) == 1, "finance did not keep it")
        return f"to {segment['butler']}: {segment['rationale']}"

    async def _out(self) -> str:
        answers = await self.instance.bot_messages(CHAT)
        _expect(len(answers) == 1 and answers[0].startswith("[finance]"), f"the chat says {answers}")
        return answers[0]

    async def _question(self) -> str:
        await self.instance.say(CHAT, "When did I pay the electricity bill?")
        answers = await self._answers(CHAT, 2)
        _expect("84 euros" in answers[1], f"the chat says {answers[1]}")
        return answers[1].replace("\n", " ")

    async def _remote(self) -> str:
        token = TokenFile(Places(self._data_dir).tokens, self._clock).issue("garden", Role.BUTLER)
        client = CourierClient(self.instance.url("courier"), token=token.secret)
        butler = asyncio.create_task(RemoteButler("garden", client, self._clock).run())
        try:
            await self.instance.until("the remote butler is registered", self._has_garden)
            await self.instance.say(REMOTE_CHAT, "The tomatoes need watering")
            [answer] = await self._answers(REMOTE_CHAT, 1)
        finally:
            butler.cancel()
            await asyncio.gather(butler, return_exceptions=True)
        _expect(answer.startswith("[garden]"), f"the chat says {answer}")
        return answer

    async def _has_garden(self) -> bool:
        butlers = (await self.instance.get("switchboard", "/api/butlers"))["butlers"]
        return any(butler["name"] == "garden" for butler in butlers)

    async def _people(self) -> str:
        """Each as `explain` said before."""
        asleep, out, away = await self._three_people()
        body = {"message": "Dinner is at eight", "recipient_ids": [asleep, out, away], "subject": "Dinner"}
        explained = (await self._operator_post("/api/messages/explain", body))["recipients"]
        sent = await self._operator_post("/api/messages", body)
        expected, done = _decisions(explained), _decisions([*sent["queued"], *sent["blocked"]])
        _expect(expected == done, f"explained {expected}, done {done}")
        states = await self.instance.until("the message has left", partial(self._settled, sent["message_id"], away))
        _expect(states[asleep] == ("queued", "telegram"), f"asleep: {states[asleep]}")
        _expect(states[away] == ("delivered", "email"), f"away: {states[away]}")
        _expect(done[out][2] == "no-channel", f"opted out: {done[out]}")
        mails = await self._mails()
        _expect(mails == 1, f"{mails} mails were accepted")
        _expect(not await self._answers_in(*PEOPLE_CHATS), "somebody got a chat message")
        return f"asleep until {done[asleep][1]}, opted out: {done[out][2]}, Telegram blocked: by email"

    async def _three_people(self) -> list[str]:
        """Contacts: the first has quiet hours all day, the second no wish to hear, the third has blocked the bot."""
        found = []
        for chat in PEOPLE_CHATS:
            given = {"channel": "telegram", "identity": str(chat), "name": f"Guest {chat}"}
            found.append((await self._operator_post("/api/senders/allow", given))["contact_id"])
        mail = {"channel": "email", "identity": "guest@people.example", "person": found[2]}
        await self._operator_post("/api/senders/allow", mail)
        now = self._clock.now()
        night = {"start_time": f"{now - _HOUR:%H:%M}", "end_time": f"{now + _HOUR:%H:%M}", "timezone": "UTC"}
        refuses = {"notifications": {"matrix": {"message": {"telegram": False}}}}
        documents: tuple[dict[str, Any], ...] = ({"quietHours": night}, refuses, {})
        for id, document in zip(found, documents, strict=True):
            await self._operator_post(f"/api/people/{id}/preferences", document)
        await self.instance.post("telegram_simulator", f"/control/users/{PEOPLE_CHATS[2]}/block", None)
        return found

    async def _settled(self, message_id: str, person: str) -> dict[str, tuple[str, str]] | None:
        shown = (await self.instance.get("switchboard", f"/api/messages/{message_id}"))["recipients"]
        states = {row["recipient_id"]: (row["state"], row["channel"]) for row in shown}
        return states if states[person][0] not in ("planned", "queued", "sending") else None

    async def _operator_post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        token = TokenFile(Places(self._data_dir).tokens, self._clock).secret_of(OPERATOR)
        answer: dict[str, Any] = await self.instance.post("switchboard", path, body, token=token)
        return answer

    async def _mails(self) -> int:
        return len((await self.instance.get("mail_control", "/control/mail/accepted"))["accepted"])

    async def _duplicate(self) -> str:
        sent = self._event("9001", CHAT, "My flight to Rome leaves at nine")
        first, second = [(await self.instance.ingest(sent)).json() for _ in range(2)]
        _expect((first["duplicate"], second["duplicate"]) == (False, True), f"{first} {second}")
        _expect(first["request_id"] == second["request_id"], "two request ids")
        await self._finished(first["request_id"])
        _expect(len(await self._answers(CHAT, 3)) == 3, "it was answered twice")
        return f"both are {first['request_id']}"

    async def _trace(self) -> str:
        trace = await self._finished(self._request_id)
        [delivery] = _answers(trace)
        hops = [
            len(trace["routing"]["dispatches"]),
            len(trace["butlers"]["finance"]["route_inbox"]),
            len(
                [notification for notification in trace["notifications"] if notification["source_butler"] == "finance"]
            ),
            len(delivery["attempts"]),
            len(delivery["receipts"]),
        ]
        _expect(hops == [1, 1, 1, 1, 1], f"hops on record: {hops}")
        return f"dispatch, route inbox, notification, attempt, receipt; delivery {delivery['id']}"

    async def _bad(self) -> str:
        before = await self.instance.counts()
        refused = [
            await self.instance.ingest(body, token=token)
            for _, body, token in bad_inputs(self._event("1", CHAT, "hello"))
        ]
        codes = [response.status_code for response in refused]
        _expect(all(400 <= code < 500 for code in codes), f"answers {codes}")
        _expect(all(response.json()["error"]["fields"] for response in refused), "a refusal names no field")
        _expect(await self.instance.counts() == before, "something was stored")
        return f"HTTP {', '.join(map(str, codes))}"

    async def _faults(self) -> str:
        for fault in ({"kind": "too_many_requests", "retry_after": 1}, {"kind": "error_5xx"}):
            await self.instance.post("telegram_simulator", "/control/faults", {"method": "sendMessage"} | fault)
        sent = (await self.instance.ingest(self._event("9100", CHAT, "I weigh 70 kg today"))).json()
        [delivery] = _answers(await self._finished(sent["request_id"]))
        outcomes = [f"{attempt['outcome']}/{attempt['certainty']}" for attempt in delivery["attempts"]]
        _expect(outcomes == ["rejected/not_sent", "rejected/not_sent", "sent/sent"], f"attempts: {outcomes}")
        _expect(len(await self._answers(CHAT, 4)) == 4, "it was answered more than once")
        return f"attempts: {', '.join(outcomes)}"

    async def _crash(self) -> str:
        for number in range(IN_FLIGHT):
            chat = CRASH_CHATS[number % len(CRASH_CHATS)]
            await self.instance.ingest(self._event(f"77{number:04d}", chat, f"note number {number}"))
        await self.instance.kill()
        before = self._clock.monotonic()
        await self.instance.start()
        await self.instance.until("all requests are finished", self._all_finished, timeout_s=90)
        answers = await self._answers_in(*CRASH_CHATS)
        expected = {f"[general] Noted: note number {number}" for number in range(IN_FLIGHT)}
        _expect(set(answers) == expected, f"{len(expected - set(answers))} answers are missing")
        _expect(len(answers) == IN_FLIGHT, f"{len(answers) - IN_FLIGHT} answers were repeated")
        return (
            f"{len(answers)} answers, none missing, none twice; {self._clock.monotonic() - before:.1f} s with restart"
        )

    async def _statistics(self) -> str:
        shown = len(await self._answers_in(CHAT, REMOTE_CHAT, *CRASH_CHATS)) + await self._mails()
        delivered = await answers_delivered(self._data_dir, self._began)
        _expect(delivered == shown, f"Spark counts {delivered} messages, the chats and mailboxes show {shown}")
        return f"{delivered} messages delivered, as many as the chats and mailboxes show"

    async def _stop(self) -> str:
        pid = self.instance.pid
        code = await self.instance.stop()
        _expect(code == 0, f"exit code {code}")
        left = await asyncio.to_thread(processes_of, self._data_dir)
        _expect(not left, f"still running: {left}")
        return f"process {pid} exited 0; no process is left"

    async def _answers_in(self, *chats: int) -> list[str]:
        return [answer for chat in chats for answer in await self.instance.bot_messages(chat)]

    async def _newest_request(self) -> str | None:
        requests = (await self.instance.get("switchboard", "/api/requests", limit=1))["requests"]
        return requests[0]["request_id"] if requests else None

    async def _finished(self, request_id: str) -> dict[str, Any]:
        async def finished() -> dict[str, Any] | None:
            trace = await self.instance.request(request_id)
            return trace if trace["final_state_at"] else None

        trace: dict[str, Any] = await self.instance.until(f"request {request_id} is finished", finished)
        return trace

    async def _all_finished(self) -> bool:
        counts = await self.instance.counts()
        return not (counts.get("accepted") or counts.get("progress"))

    async def _answers(self, chat: int, count: int) -> list[str]:
        async def enough() -> list[str] | None:
            answers = await self.instance.bot_messages(chat)
            return answers if len(answers) >= count else None

        answers: list[str] = await self.instance.until(f"{count} answers in chat {chat}", enough)
        return answers

    def _event(self, update_id: str, chat: int, text: str) -> dict[str, Any]:
        return event(update_id, chat, text, observed_at=self._clock.now())


def processes_of(data_dir: Path) -> list[int]:
    """Processes whose command line or working directory names the data directory, as far as we may look."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            # PostgreSQL's command line names no folder; it works in its own.
            folder = (entry / "cwd").readlink()
        except OSError:
            continue
        if any(str(data_dir) in word for word in command) or folder.is_relative_to(data_dir):
            found.append(int(entry.name))
    return found


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ButlersError(otherwise)


def _decisions(rows: list[dict[str, Any]]) -> dict[str, tuple[str | None, str, str | None]]:
    """For each person the channel, the minute and the reason of what was explained or done."""
    return {
        row["recipient_id"]: (row.get("channel"), row.get("scheduled_at", "")[:16], row.get("reason")) for row in rows
    }


def _answers(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """What was said in answer to a request, without the reactions to it."""
    return [delivery for delivery in trace["deliveries"] if delivery["intent"] != "react"]
