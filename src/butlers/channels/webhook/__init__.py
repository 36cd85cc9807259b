"""SMS and chat by a gateway that takes messages over HTTP, or by an adapter of another package."""

from __future__ import annotations

import re

from butlers.channels.channel import AddressForm, AnswersGo, Capabilities, Channel, Door, Outbound, Retry, Simulator

_NUMBER = re.compile(r"\+?[0-9]{3,15}")  # E.164, or a short code
_PUNCTUATION = re.compile(r"[\s().-]")


def _plain_number(address: str) -> str:
    text = address.strip()
    return _PUNCTUATION.sub("", text) or text


def _number_problem(address: str) -> str | None:
    return None if _NUMBER.fullmatch(address) else "is not a phone number: digits, with + and the country first"


_SIMULATOR = Simulator(
    name="webhook",
    serve="butlers.channels.webhook.simulator:serve_webhook",
    doors=(Door(name="webhook", port="webhook_simulator", usual=40184, scheme="http://"),),
    remembers=False,
    on_request=True,
)
# An outage of a provider lasts minutes: fourteen attempts over some quarter of an hour.
_OUTBOUND = Outbound(
    capabilities=Capabilities(receipts=True, idempotency_key=True), retry=Retry(max_attempts=14, max_delay_s=120.0)
)
SMS = Channel(
    name="sms",
    title="SMS",
    address=AddressForm(canonical=_plain_number, problem=_number_problem),
    answers_go=AnswersGo.TO_SENDER,
    outbound=_OUTBOUND,
    simulator=_SIMULATOR,
)
CHAT = Channel(name="chat", title="Chat", outbound=_OUTBOUND, simulator=_SIMULATOR)
