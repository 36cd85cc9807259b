"""What the journal keeps: messages that were accepted are there after a crash, once, with their history."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from butlers.clock import ManualClock
from butlers.courier.core import QueueCore
from butlers.courier.journal import Journal
from butlers.courier.journal_stores import JsonlStore
from butlers.courier.messages import StreamPolicy
from butlers.errors import ConfigurationError
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database_uri
from tests.integration.courier.gateway import INBOX, envelope, gateway


def jsonl(path: Path) -> str:
    return f"journal: {{kind: jsonl, path: '{path}'}}"


@pytest.mark.scenario("C2-027")
async def test_what_was_accepted_comes_back_after_a_restart(tmp_path: Path):
    config = jsonl(tmp_path / "courier.jsonl")
    async with gateway(config) as running, running.subscriber(credit=3) as jen:
        await running.send("acked", "leased", "poison", "queued")
        for _ in range(3):
            await jen.delivered()
        await jen.say(ack="acked")
        await jen.say(nack="poison", **{"as": "poison"})
        await running.until(lambda: len(running.core.dead(INBOX)) == 1)
    async with gateway(config) as running, running.subscriber(credit=10) as jen:
        assert sorted([await jen.delivered(), await jen.delivered()]) == ["leased", "queued"]
        assert [one.id for _, one in running.core.dead(INBOX)] == ["poison"]
        assert (await running.send("acked")).json()["duplicate"]
        assert running.core.audit(INBOX)["balanced"]
    async with gateway() as running:
        assert running.core.streams() == []  # off unless it is configured


async def test_a_torn_last_line_is_left_out_and_a_damaged_one_is_named(tmp_path: Path):
    path = tmp_path / "courier.jsonl"
    async with gateway(jsonl(path)) as running:
        await running.send("a", "b")
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    async with gateway(jsonl(path)) as running:
        assert running.core.stats(INBOX)["depth"] == 1
        await running.send("c")
    async with gateway(jsonl(path)) as running:
        assert running.core.stats(INBOX)["depth"] == 2
    path.write_bytes(b"no record\n" + whole)
    with pytest.raises(ConfigurationError, match=r"courier\.jsonl:1"):
        async with gateway(jsonl(path)):
            pass


@pytest.mark.parametrize("depth", [100, 185, 198, 199])
async def test_what_triggers_wrap_can_be_read_again(tmp_path: Path, depth: int):
    """A message at the limit of what is parsed, and rules that put it into something: the journal stays readable."""
    wrapped = "{a: {b: {c: {d: {e: {f: '${env.payload}'}}}}}}"
    config = f"""
{jsonl(tmp_path / "courier.jsonl")}
triggers:
  - {{id: tell, when: {{to: told}}, do: [{{action: notify, to: out, payload: {wrapped}}}]}}
  - {{id: add, when: {{to: enriched}}, do: [{{action: enrich, payload: {wrapped}}}]}}
"""
    payload: Any = {}
    for _ in range(depth):
        payload = {"k": payload}
    async with gateway(config) as running:
        statuses = [(await running.send("a", to=to, payload=payload)).status_code for to in ("told", "enriched")]
        before = running.core.open_messages()
    expected = {100: ([200, 200], 3), 185: ([200, 400], 1), 198: ([200, 400], 1), 199: ([400, 400], 0)}
    assert (statuses, before) == expected[depth]
    async with gateway(config) as running:
        assert running.core.open_messages() == before


async def test_two_gateways_do_not_share_a_journal(tmp_path: Path):
    async with gateway(jsonl(tmp_path / "one.jsonl")):
        with pytest.raises(ConfigurationError, match="another process"):
            async with gateway(jsonl(tmp_path / "one.jsonl")):
                pass


@pytest.mark.scenario("C2-024")
async def test_postgres_keeps_it_too(postgres_server: EmbeddedPostgres):
    async with cloned_database_uri(postgres_server) as dsn:
        config = f"journal: {{kind: postgres, dsn: '{dsn}'}}"
        async with gateway(config) as running, running.subscriber(credit=1) as jen:
            await running.send("a", "b")
            await jen.delivered()
            await jen.say(ack="a")
            await running.until(lambda: running.core.stats(INBOX)["counts"]["acked"] == 1)
        async with gateway(config) as running:
            with pytest.raises(ConfigurationError, match="another process"):
                async with gateway(config):
                    pass
            async with running.subscriber(credit=5) as jen:
                assert await jen.delivered() == "b"


async def test_a_database_that_ends_the_connection_is_asked_anew(postgres_server: EmbeddedPostgres):
    async with cloned_database_uri(postgres_server) as dsn:
        config = f"journal: {{kind: postgres, dsn: '{dsn}'}}"
        async with gateway(config) as running:
            await running.send("before")
            other = await asyncpg.connect(dsn)
            await other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            await other.close()
            statuses = [(await running.send("after")).status_code for _ in range(3)]
            assert statuses[-1] == 200  # the first ones may be told to send again
        async with gateway(config) as running:
            assert running.core.open_messages() == 2


async def test_a_disk_that_refuses_is_said_and_the_message_is_taken_when_it_is_sent_again(tmp_path: Path):
    class Full(JsonlStore):
        full = True

        async def append(self, records: list[dict[str, Any]]) -> None:
            if self.full:
                raise OSError(28, "no space")
            await super().append(records)

    store = Full(tmp_path / "courier.jsonl")
    journal = Journal(store)
    core = QueueCore(clock=ManualClock(), observe=journal.observe)
    core.enqueue(INBOX, envelope("a"))
    with pytest.raises(Exception, match="cannot be written"):
        await journal.flush()
    store.full = False
    assert core.enqueue(INBOX, envelope("a")).duplicate
    await journal.flush()
    await journal.close()
    again = Journal(JsonlStore(tmp_path / "courier.jsonl"))
    assert await again.restore(QueueCore(clock=ManualClock())) == 1


class Gated(JsonlStore):
    """A disk that takes its time: nothing is written before `gate` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gate = threading.Event()
        self.begun = threading.Event()

    def _append(self, lines: bytes) -> None:
        self.begun.set()
        self.gate.wait(30)
        super()._append(lines)

    def _replace(self, records: Any) -> int:
        self.begun.set()
        self.gate.wait(30)
        return super()._replace(records)


async def test_a_producer_that_leaves_while_its_message_is_written_tears_nothing(tmp_path: Path):
    store = Gated(tmp_path / "courier.jsonl")
    journal = Journal(store)
    core = QueueCore(clock=ManualClock(), observe=journal.observe)
    core.enqueue(INBOX, envelope("first", payload="x" * 5_000))
    leaving = asyncio.create_task(journal.flush())
    await asyncio.to_thread(store.begun.wait, 30)
    leaving.cancel()
    core.enqueue(INBOX, envelope("second"))
    staying = asyncio.create_task(journal.flush())
    await asyncio.sleep(0)
    store.gate.set()
    await asyncio.gather(leaving, return_exceptions=True)
    await staying
    await journal.close()
    assert await Journal(JsonlStore(tmp_path / "courier.jsonl")).restore(QueueCore(clock=ManualClock())) == 2


async def test_a_gateway_that_ends_within_a_compaction_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("butlers.courier.journal.FEWEST_BEFORE_COMPACTION", 0)
    monkeypatch.setattr("butlers.courier.journal._PAST", 0)
    store = Gated(tmp_path / "courier.jsonl")
    journal = Journal(store)
    core = QueueCore(clock=ManualClock(), observe=journal.observe)
    core.enqueue(INBOX, envelope("first"))
    store.gate.set()
    await journal.flush()
    store.gate.clear()
    store.begun.clear()
    compacting = asyncio.create_task(journal.compact_when_due(core))
    await asyncio.to_thread(store.begun.wait, 30)
    core.enqueue(INBOX, envelope("second"))
    compacting.cancel()
    closing = asyncio.create_task(journal.close())
    await asyncio.sleep(0)
    store.gate.set()
    await asyncio.gather(compacting, return_exceptions=True)
    await closing
    assert await Journal(JsonlStore(tmp_path / "courier.jsonl")).restore(QueueCore(clock=ManualClock())) == 2


@pytest.mark.parametrize(("limit", "value"), [("FEWEST_BEFORE_COMPACTION", 10), ("LARGEST_BEFORE_COMPACTION", 4_000)])
async def test_compaction_keeps_what_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int):
    monkeypatch.setattr(f"butlers.courier.journal.{limit}", value)
    path = tmp_path / "courier.jsonl"
    journal = Journal(JsonlStore(path))
    got: list[str] = []
    core = QueueCore(clock=ManualClock(), policy_of=lambda _: StreamPolicy(max_deliveries=2), observe=journal.observe)
    core.subscribe(INBOX, deliver=lambda delivery: got.append(delivery.id), id="jen", group="work")
    core.subscribe(INBOX, deliver=lambda delivery: core.ack("audit", delivery.id), id="audit", group="audit")
    core.grant("jen", 100)
    core.grant("audit", 39)
    for number in range(40):
        core.enqueue(INBOX, envelope(f"m{number}"), partition="p" if number % 2 else None)
    for id in [id for id in got if id != "m0"]:
        core.ack("jen", id)
    core.nack("jen", "m0", meaning="poison")
    await journal.flush()
    before = path.stat().st_size
    assert await journal.compact_when_due(core)
    assert not await journal.compact_when_due(core)
    assert path.stat().st_size < before
    expected = {name: (set(g.items), set(g.dead)) for _, s in core.stored() for name, g in s.groups.items()}
    core.enqueue(INBOX, envelope("after"))
    await journal.close()
    restored = QueueCore(clock=ManualClock())
    await Journal(JsonlStore(path)).restore(restored)
    found = {name: (set(g.items), set(g.dead)) for _, s in restored.stored() for name, g in s.groups.items()}
    assert found == {name: (items | {"after"}, dead) for name, (items, dead) in expected.items()}
    assert restored.enqueue(INBOX, envelope("m0")).duplicate
