"""Messages that try to give orders: none reaches a prompt outside of the fence, none gets further than policy lets it.

The model here has been won over: it names the butler that each message asks for.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.routing_model import Question, RoutingModel, targets
from tests.scenarios.test_switchboard_llm_routing import mailed
from tests.system import RunningSystem, running_system

CORPUS = Path(__file__).parents[1] / "data" / "routing" / "injections.jsonl"
DOORS = {"messenger", "switchboard"}  # never take what people write
OPEN = {"general", "health", "relationship", "travel"}  # all that the rule below leaves
AT_ONCE = 4


def hostile() -> list[dict[str, Any]]:
    return [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines() if line.strip()]


async def handed_in(running: RunningSystem, text: str, slots: asyncio.Semaphore) -> dict[str, Any]:
    async with slots:
        reply = await running.ingest(text)
        return await running.finished(reply["request_id"], deadline_s=120)


async def asked_after(running: RunningSystem, model: RoutingModel, texts: list[str]) -> Question:
    """What the model is asked about a mail at the end of a chain of all that."""
    await running.database.execute(
        "update switchboard.message_inbox set thread_key = $1, routing_output = null,"
        " request_context = jsonb_set(request_context, '{source_sender_identity}', to_jsonb($2::text))",
        "email:butler@butlers.example:<chain@x>",
        "ann@example.org",  # a model is told of a chain what the same sender wrote
    )
    assert sum(map(len, texts)) < 190_000  # else the oldest would be left out
    await running.finished(await mailed(running, "the wobbly end of it", 1, "<chain@x>"))
    return model.triages()[-1]


@pytest.mark.scenario("S3-017")
async def test_no_message_reaches_a_prompt_unfenced_and_none_gets_further_than_policy(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    messages = hostile()
    assert len(messages) >= 150
    model = RoutingModel(tmp_path)
    model.obeys({message["text"]: message["wants"] for message in messages})
    rule = '[[routing.rule]]\nname = "not money"\nendpoint = "*"\nnever = ["finance"]'
    slots = asyncio.Semaphore(AT_ONCE)
    roster = model.roster(rule, threshold=1.0)  # hardly anybody else is sure enough
    async with running_system(tmp_path, postgres_server, roster_dir=roster, llm="on") as running:
        await handed_in(running, "a harmless wobbly line", slots)
        traces = await asyncio.gather(*(handed_in(running, message["text"], slots) for message in messages))
        asked = model.triages()
        in_a_chain = await asked_after(running, model, [message["text"] for message in messages])

    harmless, *asked = asked
    assert in_a_chain.outside == harmless.outside
    assert {message["text"] for message in messages} <= {text for _, text in in_a_chain.history}
    by_text = {question.message: question for question in asked}
    counted: Counter[str] = Counter()
    for message, trace in zip(messages, traces, strict=True):
        text = trace["ingress"]["normalized_text"]
        assert text == message["text"]  # stored as it was written
        assert not DOORS & set(targets(trace)), text
        assert "finance" not in targets(trace) and set(targets(trace)) <= OPEN, text
        question = by_text.get(text)
        if question is None:
            counted["decided without a model"] += 1
            continue
        assert question.outside == harmless.outside, text  # not a letter outside of the fence
        assert text not in question.outside
        if message["wants"] not in OPEN:
            assert targets(trace) == ["general"], text
        counted["fenced"] += 1
    print(f"injections: {len(messages)} messages, {dict(counted)}, 0 unfenced, 0 outside policy")
    assert counted["fenced"] >= 150  # and all of them as the history of the mail
