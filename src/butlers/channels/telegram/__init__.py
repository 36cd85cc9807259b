"""Telegram, by bots: long polling in, the Bot API out."""

from __future__ import annotations

from butlers.channels.channel import (
    AddressForm,
    Capabilities,
    Channel,
    Door,
    Feedback,
    Inbound,
    Outbound,
    Retry,
    Simulator,
)
from butlers.channels.telegram import payload

SIMULATED_TOKEN = "777000001:simulated-bot-not-a-secret"  # noqa: S105 - opens nothing but a simulator
OWNER_CHAT = "1000"  # the owner's chat

CHANNEL = Channel(
    name="telegram",
    title="Telegram",
    address=AddressForm(canonical=payload.canonical, problem=payload.problem, person=payload.person),
    inbound=Inbound(
        providers=("telegram",),
        feedback=Feedback.REACTIONS,
        pairs_owner=True,
        connector="butlers.channels.telegram.connector:make_connector",
        source_event=payload.source_event,
        replied_to=payload.replied_to,
        command_lines=payload.command_lines,
    ),
    outbound=Outbound(
        capabilities=Capabilities(react=True, max_characters=4096),
        # An outage of a provider lasts minutes: fourteen attempts over some quarter of an hour.
        retry=Retry(max_attempts=14, max_delay_s=120.0),
        timeout_s=15.0,
        certainty="never_duplicate",  # Telegram cannot tell repeats apart
        per_minute={"bot": 30.0, "user": 20.0},
        adapter="butlers.channels.telegram.adapter:make_adapter",
    ),
    credentials={"bot": ("token",), "user": ("token",)},
    settings=("telegram_api_url", "telegram_poll_s"),
    simulator=Simulator(
        name="telegram",
        serve="butlers.channels.telegram.simulator:serve_telegram",
        doors=(Door(name="telegram", port="telegram_simulator", usual=40181, scheme="http://"),),
        shows_others=True,
        credentials={"token": SIMULATED_TOKEN},
        settings=lambda host, ports: {"telegram_api_url": f"http://{host}:{ports['telegram_simulator']}"},
        defaults={"owner_telegram": OWNER_CHAT},
        defaults_alone={"who_may_write_telegram": "open"},
    ),
)
