"""The webhook adapter's options: checked before anything starts, and secrets stay out of sight."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from butlers.channels.adapter import Outgoing
from butlers.channels.plugins import ChannelSettings
from butlers.channels.webhook.adapter import make_channel, message_body, read_settings
from butlers.clock import ManualClock
from butlers.errors import ConfigurationError

URL = "https://gateway.example/messages"
SECRET = "not-to-be-seen"


def settings(options: dict[str, Any], **secrets: str) -> ChannelSettings:
    return ChannelSettings(
        channel="sms",
        clock=ManualClock(),
        options=options,
        secrets={"signing_key": SECRET} | secrets,
        source="roster/messenger/butler.toml",
    )


def refused(given: ChannelSettings) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        read_settings(given)
    assert caught.value.source == "roster/messenger/butler.toml"
    assert caught.value.remedy
    assert SECRET not in str(caught.value)
    return caught.value


def test_all_options_are_read() -> None:
    given = settings({"url": URL, "status_url": f"{URL}/{{delivery_id}}", "idempotent": True}, api_key="k")
    read = read_settings(given)
    assert (read.url, read.status_url, read.idempotent) == (URL, f"{URL}/{{delivery_id}}", True)
    assert (read.signing_key, read.api_key) == (SECRET, "k")


def test_secrets_are_not_in_any_repr() -> None:
    given = settings({"url": URL}, api_key=SECRET)
    assert SECRET not in repr(given)
    assert SECRET not in repr(read_settings(given))


@pytest.mark.parametrize("idempotent", [True, False])
async def test_the_channel_says_whether_sending_again_is_safe(idempotent: bool) -> None:
    channel = make_channel(settings({"url": URL, "idempotent": idempotent}))
    assert (channel.name, channel.identity_scope, channel.resend_is_safe) == ("sms", "bot", idempotent)
    await channel.close()


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "http://localhost/x", "http://[::1]/x", "https://far.example"])
def test_an_address_on_this_machine_or_an_encrypted_one_is_fine(url: str) -> None:
    assert read_settings(settings({"url": url})).url == url


@pytest.mark.parametrize("option", ["url", "status_url"])
@pytest.mark.parametrize(
    "address",
    [
        "http://far.example/x",
        "http://127.0.0.1.far.example/x",
        "ftp://far.example/x",
        "far.example",
        "https://",
        "https://far.example:99999/",
        "https://[::1",
        "https://user:password@far.example/",
        7,
        None,
    ],
)
def test_any_other_address_is_refused(option: str, address: Any) -> None:
    assert refused(settings({"url": URL} | {option: address})).key == f"modules.sms.options.{option}"


def test_an_address_is_required() -> None:
    assert refused(settings({})).key == "modules.sms.options.url"


def test_a_signing_key_is_required() -> None:
    given = ChannelSettings(channel="chat", clock=ManualClock(), options={"url": URL})
    with pytest.raises(ConfigurationError) as caught:
        read_settings(given)
    assert caught.value.key == "modules.chat.options_env.signing_key"


def test_an_unknown_option_is_a_mistake() -> None:
    assert refused(settings({"url": URL, "retries": 3})).key == "modules.sms.options.retries"
    assert refused(settings({"url": URL}, password="x")).key == "modules.sms.options_env.password"


def test_an_option_of_the_wrong_kind_is_a_mistake() -> None:
    assert refused(settings({"url": URL, "idempotent": "yes"})).key == "modules.sms.options.idempotent"


@pytest.mark.parametrize("api_key", ["with blank", "line\n", "ümlaut"])
def test_a_key_that_no_header_can_carry_is_a_mistake(api_key: str) -> None:
    assert refused(settings({"url": URL}, api_key=api_key)).key == "modules.sms.options_env.api_key"


def test_the_body_names_everything_and_nothing_that_is_absent() -> None:
    outgoing = Outgoing(delivery_id=UUID(int=1), idempotency_key="k", intent="send", target="+1", message="héllo")
    assert message_body("sms", outgoing) == {
        "delivery_id": "00000000-0000-0000-0000-000000000001",
        "idempotency_key": "k",
        "channel": "sms",
        "intent": "send",
        "recipient": "+1",
        "message": "héllo",
    }
