"""Carrier pigeons: slips of paper that arrive in and leave from a loft, which is a folder.

loft/in.jsonl     one message a line: {"ring": "p-1", "from": "ann", "text": "..."}
loft/out.jsonl    one answer a line:  {"delivery_id": "...", "to": "ann", "text": "..."}
loft/storm        as long as this file exists, nothing can leave
"""

from __future__ import annotations

from butlers.channels.channel import (
    AnswersGo,
    Capabilities,
    Channel,
    Door,
    Feedback,
    Inbound,
    Outbound,
    Retry,
    Simulator,
)

CHANNEL = Channel(
    name="pigeon",
    title="Carrier pigeon",
    answers_go=AnswersGo.TO_SENDER,
    inbound=Inbound(providers=("loft",), feedback=Feedback.TEXT, connector="pigeon_channel.connector:make_connector"),
    outbound=Outbound(
        capabilities=Capabilities(max_characters=500),
        retry=Retry(max_attempts=20, base_delay_s=0.2, max_delay_s=0.5),
        timeout_s=5.0,
        certainty="never_duplicate",
        per_minute={"bot": 600.0},
        adapter="pigeon_channel.adapter:make_adapter",
    ),
    simulator=Simulator(
        name="pigeon",
        serve="pigeon_channel.simulator:serve_loft",
        doors=(Door(name="pigeon", port="pigeon_simulator", usual=40190),),
        remembers=False,
        on_request=True,
    ),
)
