"""Every key of the configuration, by what the gateway does because of it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import websockets
from pydantic import BaseModel

from butlers.courier.config import CourierConfig, parse_config
from tests.integration.courier.gateway import INBOX, RunningGateway, envelope, gateway
from tests.integration.courier.raw_socket import raw_subscriber

# Section 15 of the design, word for word.
SEED = """\
streams:
  defaultLeaseMs: 30000
  maxDepth: 100000
  perStreamCaps: { "agents/*": { maxDepth: 50000 } }
triggers:
  - { id: trig.jen.log.notify.architect, when: {type: sprint.log, from: agents/Jen/outbox}, do: [{action: notify, to: agents/architect/inbox}] }
auth:
  tokens:
    - { token: "dev-local", scopes: ["streams:*:enqueue","streams:*:subscribe","views:*:read"] }
"""  # noqa: E501
BEARER = {"authorization": "Bearer dev-local"}
JEN, TOM = "agents/jen/inbox", "agents/tom/inbox"

Check = Callable[[RunningGateway], Awaitable[None]]


async def statuses(running: RunningGateway, *ids: str, **more: Any) -> list[int]:
    return [(await running.send(id, **more)).status_code for id in ids]


# --- streams ---------------------------------------------------------------------------------------------------------


async def lease_ms(running: RunningGateway) -> None:
    async with running.subscriber(credit=2) as jen:
        await running.send("a")
        assert [(await jen.hear())["attempt"], (await jen.hear())["attempt"]] == [1, 2]  # it came again by itself


async def max_depth(running: RunningGateway) -> None:
    assert await statuses(running, "a", "b", "c") == [200, 200, 429]


async def max_deliveries(running: RunningGateway) -> None:
    async with running.subscriber(credit=9) as jen:
        await running.send("a")
        for _ in range(2):
            await jen.say(nack=await jen.delivered())
        await running.until(lambda: [one.id for _, one in running.core.dead(INBOX)] == ["a"])


async def drop_oldest(running: RunningGateway) -> None:
    assert await statuses(running, "a", "b", "c") == [200] * 3
    async with running.subscriber(credit=9) as jen:
        assert [await jen.delivered(), await jen.delivered()] == ["b", "c"]
    audit = (await running.http.get(f"/v1/audit?stream={INBOX}")).json()
    assert audit["groups"]["default"]["dropped"] == 1


async def dead_letter_oldest(running: RunningGateway) -> None:
    assert await statuses(running, "a", "b", "c") == [200] * 3
    dead = (await running.http.get(f"/v1/dead?stream={INBOX}")).json()["messages"]
    assert [one["id"] for one in dead] == ["a"]


async def recent_ids(running: RunningGateway) -> None:
    async with running.subscriber(credit=9) as jen:
        for id in ("a", "b", "c"):
            await running.send(id)
            await jen.say(ack=await jen.delivered())
        await running.until(lambda: running.core.stats(INBOX)["counts"]["acked"] == 3)
    assert (await running.send("c")).json()["duplicate"]
    assert not (await running.send("a")).json()["duplicate"]  # two are remembered


async def no_ageing(running: RunningGateway) -> None:
    await running.send("low", headers={"priority": "low"})
    await running.send("urgent", headers={"priority": "urgent"})
    async with running.subscriber(credit=2) as jen:
        assert [await jen.delivered(), await jen.delivered()] == ["low", "urgent"]  # a step is worth nothing


async def max_dead(running: RunningGateway) -> None:
    async with running.subscriber(credit=2) as jen:
        await running.send("a", "b")
        for _ in range(2):
            await jen.say(nack=await jen.delivered(), **{"as": "poison"})
        await running.until(lambda: running.core.stats(INBOX)["counts"]["died"] == 2)
    dead = (await running.http.get(f"/v1/dead?stream={INBOX}")).json()["messages"]
    assert [one["id"] for one in dead] == ["b"]


async def rate_of_a_stream(running: RunningGateway) -> None:
    assert await statuses(running, "a", "b", "c") == [200, 200, 429]
    assert await statuses(running, "a", to=TOM) == [200]  # each stream has its own


async def most_streams(running: RunningGateway) -> None:
    assert [(await running.send("a", to=f"agents/{name}")).status_code for name in "xyz"] == [200, 200, 429]


async def caps_of_some(running: RunningGateway) -> None:
    assert await statuses(running, "a", "b", to=JEN) == [200, 429]  # the later pattern wins
    assert await statuses(running, "a", "b", "c", to=TOM) == [200, 200, 429]
    assert await statuses(running, "a", "b", "c", "d", to="other") == [200, 200, 200, 429]


# --- triggers --------------------------------------------------------------------------------------------------------

RULE = "triggers: [{{id: r, when: {when}, do: [{do}], limits: {limits}}}]"
FITS: dict[str, Any] = {
    "to": JEN,
    "from": "jen",
    "type": "log",
    "tags": ["a", "b"],
    "headers": {"team": "blue", "trace": "t"},
}


def fires(**wrong: Any) -> Check:
    async def check(running: RunningGateway) -> None:
        async with running.subscriber("out", credit=9) as out:
            await running.send("no", **(FITS | wrong))
            await running.send("yes", **FITS)
            assert (await out.hear())["deliver"]["corr"] == "yes"

    return check


async def is_named(running: RunningGateway) -> None:
    (explained,) = (await running.http.post("/v1/explain", json={"envelope": envelope("a")})).json()["rules"]
    assert explained["rule"] == "r"
    await running.send("a")
    assert 'courier_trigger_runs_total{rule="r"} 1' in (await running.http.get("/v1/metrics")).text


async def notifies(running: RunningGateway) -> None:
    async with running.subscriber("out", credit=9) as out:
        await running.send("a", **FITS)
        sent = (await out.hear())["deliver"]
        assert (sent["type"], sent["tags"], sent["payload"]) == ("told", ["t"], {"ref": "a", "text": "from jen"})


async def routes(running: RunningGateway) -> None:
    async with running.subscriber("out", credit=9) as out:
        await running.send("a", **FITS, payload={"n": 7})
        sent = (await out.hear())["deliver"]
        assert (sent["to"], sent["corr"], sent["payload"], sent["tags"]) == ("out", "a", {"n": 7}, ["a", "b"])


async def enriches(running: RunningGateway) -> None:
    async with running.subscriber(JEN, credit=9) as jen:
        await running.send("a", **FITS, payload={"n": 7})
        got = (await jen.hear())["deliver"]
        assert got["tags"] == ["a", "b", "t"]
        assert got["headers"] == {**FITS["headers"], "seen": "yes"}
        assert got["payload"] == {"n": 7, "by": "jen"}


async def cools_down(running: RunningGateway) -> None:
    async with running.subscriber("out", credit=9) as out:
        await running.send("a", "b", "c", **FITS)
        assert (await out.hear())["deliver"]["corr"] == "a"
        assert await out.is_silent()


def rule(when: str = "{}", do: str = "{action: notify, to: out}", limits: str = "{}") -> str:
    return RULE.format(when=when, do=do, limits=limits)


# --- the gateway -----------------------------------------------------------------------------------------------------


async def largest_message(running: RunningGateway) -> None:
    assert await statuses(running, "a", payload="x" * 3_000) == [413]
    async with running.subscriber() as jen:
        await jen.say(enqueue=envelope("a", payload="x" * 3_000))
        assert await jen.closed() == 1009
    assert await statuses(running, "a", payload="x" * 1_000) == [200]


async def rate_of_a_socket(running: RunningGateway) -> None:
    async with running.subscriber() as jen:
        for id in ("a", "b"):
            await jen.say(enqueue=envelope(id))
        assert "enqueued" in await jen.hear()
        assert await jen.error() == "RateLimited"


async def pings(running: RunningGateway) -> None:
    async with running.subscriber(credit=1) as tom, raw_subscriber(running.host):
        await running.until(lambda: running.core.stats(INBOX)["subscribers"] == 1)  # one answers no ping
        await running.send("a")
        assert await tom.delivered() == "a"


async def origins(running: RunningGateway) -> None:
    for origin, status in (("https://desk.example", 200), ("https://evil.example", 403)):
        body = {"envelope": envelope(origin)}
        response = await running.http.post("/v1/enqueue", json=body, headers={"origin": origin})
        assert response.status_code == status


async def rate_of_a_token(running: RunningGateway) -> None:
    for expected in (200, 200, 429):
        body = {"envelope": envelope(f"e{expected}")}
        response = await running.http.post("/v1/enqueue", json=body, headers=BEARER)
        assert response.status_code == expected


async def scopes_of_a_token(running: RunningGateway) -> None:
    for token, to, status in (
        ("dev-local", JEN, 200),
        ("dev-local", TOM, 403),
        ("unknown-token", JEN, 401),
    ):
        headers = {"authorization": f"Bearer {token}"}
        response = await running.http.post("/v1/enqueue", json={"envelope": envelope("a", to=to)}, headers=headers)
        assert response.status_code == status


TOKEN = 'auth: {{tokens: [{{token: "dev-local", scopes: ["streams:agents/jen/*:enqueue"], {more}}}]}}'
GATEWAY = "gateway: {{port: 0, {more}}}"
# The key, as the model names it -> a configuration that sets it, and what shows that it was read.
KEYS: dict[str, tuple[str, Check]] = {
    "streams.defaultLeaseMs": ("streams: {defaultLeaseMs: 200}", lease_ms),
    "streams.maxDepth": ("streams: {maxDepth: 2}", max_depth),
    "streams.maxDeliveries": ("streams: {maxDeliveries: 2}", max_deliveries),
    "streams.overflow": ("streams: {maxDepth: 2, overflow: dropOldest}", drop_oldest),
    "streams.recentIds": ("streams: {recentIds: 2}", recent_ids),
    "streams.ageingMs": ("streams: {ageingMs: 0}", no_ageing),
    "streams.maxDead": ("streams: {maxDead: 1}", max_dead),
    "streams.messagesPerMinute": ("streams: {messagesPerMinute: 2}", rate_of_a_stream),
    "streams.most": ("streams: {most: 2}", most_streams),
    "streams.perStreamCaps.leaseMs": ("streams: {perStreamCaps: {'agents/*': {leaseMs: 200}}}", lease_ms),
    "streams.perStreamCaps.maxDepth": (
        "streams: {maxDepth: 3, perStreamCaps: {'agents/*': {maxDepth: 2}, agents/jen/inbox: {maxDepth: 1}}}",
        caps_of_some,
    ),
    "streams.perStreamCaps.maxDeliveries": (
        "streams: {perStreamCaps: {'agents/*/inbox': {maxDeliveries: 2}}}",
        max_deliveries,
    ),
    "streams.perStreamCaps.overflow": (
        "streams: {perStreamCaps: {'agents/*': {maxDepth: 2, overflow: deadLetterOldest}}}",
        dead_letter_oldest,
    ),
    "streams.perStreamCaps.recentIds": ("streams: {perStreamCaps: {'agents/*': {recentIds: 2}}}", recent_ids),
    "streams.perStreamCaps.ageingMs": ("streams: {perStreamCaps: {'agents/*': {ageingMs: 0}}}", no_ageing),
    "streams.perStreamCaps.maxDead": ("streams: {perStreamCaps: {'agents/*': {maxDead: 1}}}", max_dead),
    "streams.perStreamCaps.messagesPerMinute": (
        "streams: {perStreamCaps: {'agents/*': {messagesPerMinute: 2}}}",
        rate_of_a_stream,
    ),
    "triggers.id": (rule(), is_named),
    "triggers.when.to": (rule(when="{to: agents/jen/inbox}"), fires(to=TOM)),
    "triggers.when.from": (rule(when="{from: jen}"), fires(**{"from": "tom"})),
    "triggers.when.type": (rule(when="{type: log}"), fires(type="plan")),
    "triggers.when.tags": (rule(when="{tags: [a, b]}"), fires(tags=["a"])),
    "triggers.when.headers": (rule(when="{headers: {team: blue, trace: null}}"), fires(headers={"team": "blue"})),
    "triggers.do.notify": (
        rule(
            do='{action: notify, to: out, type: told, tags: [t], payload: {ref: "${env.id}", text: "from ${env.from}"}}'
        ),
        notifies,
    ),
    "triggers.do.route": (rule(do="{action: route, to: out}"), routes),
    "triggers.do.enrich": (
        rule(do='{action: enrich, tags: [t], headers: {seen: "yes", team: red}, payload: {n: 1, by: "${env.from}"}}'),
        enriches,
    ),
    "triggers.limits.cooldownMs": (rule(limits="{cooldownMs: 3600000}"), cools_down),
    "auth.tokens.token": (TOKEN.format(more="name: jen"), scopes_of_a_token),
    "auth.tokens.scopes": (TOKEN.format(more="name: jen"), scopes_of_a_token),
    "auth.tokens.messagesPerMinute": (TOKEN.format(more="messagesPerMinute: 2"), rate_of_a_token),
    "gateway.maxMessageBytes": (GATEWAY.format(more="maxMessageBytes: 2048"), largest_message),
    "gateway.messagesPerMinute": (GATEWAY.format(more="messagesPerMinute: 1"), rate_of_a_socket),
    "gateway.pingS": (GATEWAY.format(more="pingS: 1"), pings),
    "gateway.origins": (GATEWAY.format(more="origins: ['https://desk.example']"), origins),
}
# Keys with a test of their own below, and one that no caller can see.
ELSEWHERE = {
    "auth.tokens.name",  # what the log calls a token
    "gateway.host",
    "gateway.port",
    "journal.kind",
    "journal.path",
    "journal.dsn",
    "events",
    "store",  # in tests/conformance
    "storePrefix",
}


def keys_of(model: type[BaseModel], prefix: str = "") -> set[str]:
    """Every key that the configuration may hold; an action of a trigger counts as one."""
    found: set[str] = set()
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        models = [one for one in _models(field.annotation) if issubclass(one, BaseModel)]
        if key == "triggers.do":
            found |= {f"{key}.{one.model_fields['action'].annotation.__args__[0]}" for one in models}  # type: ignore[union-attr]
        else:
            found |= set().union(*(keys_of(one, f"{key}.") for one in models)) if models else {key}
    return found


def _models(annotation: Any) -> list[type]:
    arguments = getattr(annotation, "__args__", None)
    if arguments:
        return [model for one in arguments for model in _models(one)]
    return [annotation] if isinstance(annotation, type) else []


@pytest.mark.scenario("C2-024")
def test_every_key_has_a_proof():
    assert keys_of(CourierConfig) == KEYS.keys() | ELSEWHERE


@pytest.mark.scenario("C2-024")
@pytest.mark.parametrize("key", KEYS)
async def test_a_key_does_what_it_says(key: str):
    config, check = KEYS[key]
    async with gateway(config) as running:
        await check(running)


@pytest.mark.scenario("C2-024")
async def test_the_file_of_the_design_word_for_word():
    async with gateway(SEED) as running:
        policy = running.core._policy_of
        assert (policy("agents/Jen/inbox").max_depth, policy("other").max_depth) == (50_000, 100_000)
        assert policy("agents/Jen/inbox").lease_s == 30.0
        assert (await running.send("a")).status_code == 401
        log = envelope("log", to="agents/Jen/outbox", type="sprint.log", **{"from": "agents/Jen/outbox"})
        response = await running.http.post("/v1/enqueue", json={"envelope": log}, headers=BEARER)
        assert response.status_code == 200
        async with running.subscriber("agents/architect/inbox", credit=1, additional_headers=BEARER) as architect:
            notice = (await architect.hear())["deliver"]
            assert (notice["payload"], notice["corr"], notice["type"]) == (
                {},
                "log",
                "courier.notify",
            )  # none was given
        snapshot = await running.http.get("/v1/snapshot?view=latestPerAgent", headers=BEARER)
        assert list(snapshot.json()["entries"]) == ["agents/architect/inbox"]
        # manage is not among the scopes
        drained = await running.http.post("/v1/streams/drain", json={"stream": "agents/Jen/outbox"}, headers=BEARER)
        assert drained.status_code == 403


@pytest.mark.scenario("C2-024")
async def test_host_and_port_are_where_the_gateway_listens():
    async with gateway() as running:
        taken = running.server.port
        with pytest.raises(Exception, match=rf"127\.0\.0\.1:{taken}"):
            async with gateway(f"gateway: {{port: {taken}}}"):
                pass
    async with gateway(f"gateway: {{host: localhost, port: {taken}}}") as running:
        assert running.server.port == taken
        assert (await running.http.get("/health")).status_code == 200


async def test_the_page_shows_every_key_and_its_example_is_taken():
    """Events and journal are files here; `test_journal` has what they promise."""
    page = (Path(__file__).parents[3] / "docs" / "systems" / "courier.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    config = parse_config(example.replace('"..."', '"a-secret"'), source="the page")
    assert config.model_dump(exclude={"triggers", "auth", "streams"}) == CourierConfig().model_dump(
        exclude={"triggers", "auth", "streams"}
    )
    names = {key.rpartition(".")[2] for key in keys_of(CourierConfig)}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", page)] == []


@pytest.mark.scenario("C2-024")
async def test_journal_and_events_are_written_where_the_file_says(tmp_path: Path):
    journal, events = tmp_path / "journal.jsonl", tmp_path / "events.jsonl"
    async with gateway(f"journal: {{kind: jsonl, path: '{journal}'}}\nevents: '{events}'") as running:
        await running.send("a")
        assert json.loads(journal.read_text())["m"] == envelope("a")  # on the disk before the answer
    assert [json.loads(line)["event"] for line in events.read_text().splitlines()] == ["enqueue"]


@pytest.mark.parametrize("path", ["/v1/subscribe?stream=agents/jen/inbox", "/v1/live?view=latestPerAgent"])
async def test_tokens_are_asked_for_by_sockets_as_well(path: str):
    async with gateway(SEED) as running:
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with running.socket(path):
                pass
        assert refused.value.response.status_code == 401
        async with asyncio.timeout(30), running.socket(path, additional_headers=BEARER):
            pass
