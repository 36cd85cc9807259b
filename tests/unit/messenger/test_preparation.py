"""From a checked request to a delivery that may be judged."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from butlers.clock import ManualClock
from butlers.errors import ValidationError
from butlers.ids import Uuid7Factory
from butlers.messenger.delivery import NewDelivery
from butlers.messenger.preparation import Preparation

from .given import ANNA, MAIL_LINEAGE, OWNER, REQUEST_ID, START, AddressBook, notify

OWN = "butler@home.example"
MAIL = {"subject": "Dinner?", "from": "Ben <ben@b.example>", "return_path": "<ben@b.example>"}


def preparation(*channels: str) -> Preparation:
    clock = ManualClock(START)
    served = channels or ("telegram.bot", "email.bot", "sms.bot")
    return Preparation(
        contacts=AddressBook(), channels=served, own_address=OWN, clock=clock, new_id=Uuid7Factory(clock)
    )


async def prepared(source_event: dict[str, Any] | None = None, **words: Any) -> NewDelivery:
    return await preparation().prepare(notify(**words), source_event)


async def refused(desk: Preparation, source_event: Any = None, *, scope: str = "bot", **words: Any) -> tuple[str, str]:
    with pytest.raises(ValidationError) as caught:
        await desk.prepare(notify(**words), source_event, identity_scope=scope)
    (field,) = caught.value.fields
    return field.field, field.error


# --- the key ---------------------------------------------------------------------------------------------------------


ELSEWHERE = [
    {"recipient": "8"},
    {"origin": "health"},
    {"channel": "sms"},
    {"request_context": {"request_id": REQUEST_ID[:-1] + "8"}},
]


@pytest.mark.parametrize("change", [*ELSEWHERE, {"request_context": None}, {"idempotency_key": "Rent"}])
async def test_the_callers_own_key_stands_in_for_the_words_and_for_nothing_else(change: dict[str, Any]) -> None:
    words: dict[str, Any] = {"recipient": "7", "idempotency_key": "rent", "request_context": {"request_id": REQUEST_ID}}
    first, other = await prepared(**words), await prepared(**words | change)
    again = await prepared(**words | {"recipient": " 07 ", "message": "other words"})
    assert first.idempotency_key == again.idempotency_key != other.idempotency_key
    assert first.duplicate_detection and first.id != again.id


@pytest.mark.parametrize("change", [*ELSEWHERE, {"message": "other words"}])
async def test_without_one_the_request_and_the_content_make_the_key(change: dict[str, Any]) -> None:
    words: dict[str, Any] = {"recipient": "7", "request_context": {"request_id": REQUEST_ID}}
    first, again, other = await prepared(**words), await prepared(**words), await prepared(**words | change)
    assert first.idempotency_key == again.idempotency_key != other.idempotency_key


async def test_without_a_request_and_without_a_key_every_call_is_a_new_one() -> None:
    first, again = await prepared(recipient="7"), await prepared(recipient="7")
    assert first.idempotency_key != again.idempotency_key
    assert not first.duplicate_detection


async def test_a_reaction_is_told_from_a_message_of_the_same_words() -> None:
    reply, react = await prepared(intent="reply"), await prepared(intent="react")
    assert reply.idempotency_key != react.idempotency_key


@pytest.mark.parametrize("own", [{}, {"idempotency_key": "rent"}])
async def test_an_address_that_is_found_later_makes_the_key_it_would_have_made_at_once(own: dict[str, str]) -> None:
    words: dict[str, Any] = {"channel": "email", "request_context": {"request_id": REQUEST_ID}} | own
    parked = await prepared(**words, contact_id=str(OWNER))
    assert (parked.target, parked.status) == (None, "pending_missing_identifier")
    assert (parked.decisions[-1].rule, parked.decisions[-1].verdict) == ("target", "missing")
    addressed = preparation().addressed(parked, "Owner@O.example")
    direct = await prepared(**words, recipient="owner@o.example")
    assert addressed.idempotency_key == direct.idempotency_key != parked.idempotency_key
    assert (addressed.target, addressed.address) == ("owner@o.example", "Owner@O.example")
    assert addressed.ordering_key.startswith("email:owner@o.example:")


# --- what must not overtake what -------------------------------------------------------------------------------------


async def test_a_chat_is_one_conversation_whoever_speaks() -> None:
    keys = {(await prepared(recipient="42", origin=origin)).ordering_key for origin in ("general", "health")}
    assert keys == {"telegram:42"} == {(await prepared(intent="reply")).ordering_key}


async def test_mails_of_a_thread_keep_their_order_and_those_of_others_do_not_wait() -> None:
    answer = await prepared(MAIL, intent="reply", channel="email")
    assert answer.ordering_key == "email:ben@b.example:<first@b.example>"
    also = await prepared(channel="email", recipient="ben@b.example", request_context=MAIL_LINEAGE)
    assert also.ordering_key == answer.ordering_key
    first, second = [await prepared(channel="email", recipient="ben@b.example") for _ in range(2)]
    assert len({first.ordering_key, second.ordering_key, answer.ordering_key}) == 3


# --- what it says ----------------------------------------------------------------------------------------------------


async def test_a_chat_message_carries_its_origin_in_the_text_and_a_mail_in_the_subject() -> None:
    chat = await prepared(recipient="7", message="Done.")
    assert (chat.message, chat.subject) == ("[general] Done.", None)
    mail = await prepared(channel="email", contact_id=str(ANNA), message="Done.", subject="Your bill")
    assert (mail.message, mail.subject) == ("Done.", "[general] Your bill")
    assert (await prepared(channel="email", recipient="a@a.example")).subject == "[general] Message"


@pytest.mark.parametrize(
    ("own", "parent", "subject"),
    [
        (None, "Dinner?", "Re: [general] Dinner?"),
        (None, "Re: Dinner?", "Re: [general] Dinner?"),
        (None, "RE: re: Dinner?", "Re: [general] Dinner?"),
        (None, "Re: [general] Dinner?", "Re: [general] Dinner?"),
        ("Lunch!", "Dinner?", "Re: [general] Lunch!"),
        (None, None, "Re: [general] Message"),
        (None, "  ", "Re: [general] Message"),
    ],
)
async def test_an_answers_subject_is_that_of_the_mail_with_re_once(
    own: str | None, parent: str | None, subject: str
) -> None:
    answer = await prepared(MAIL | {"subject": parent}, intent="reply", channel="email", subject=own)
    assert answer.subject == subject


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "word"),
    [
        ({"auto_submitted": "auto-replied"}, "machine"),
        ({"precedence": "bulk"}, "bulk"),
        ({"list_id": "<dinner.list.example>"}, "list"),
        ({"return_path": "<>"}, "return path"),
        ({"from": f"Butler <{OWN}>"}, "our own"),
        ({"from": "MAILER-DAEMON@b.example"}, "server"),
    ],
)
async def test_what_a_machine_sent_is_not_answered_but_may_be_written_about(header: dict[str, str], word: str) -> None:
    event = MAIL | header
    field, problem = await refused(preparation(), event, intent="reply", channel="email")
    assert field == "delivery.intent" and word in problem
    assert (await prepared(event, channel="email", recipient="ben@b.example")).target == "ben@b.example"


async def test_a_channel_or_scope_that_is_not_served_is_refused_with_what_is() -> None:
    desk = preparation("telegram.bot", "telegram.user")
    field, problem = await refused(desk, channel="email", recipient="a@a.example")
    assert field == "delivery.channel" and problem.endswith("served: telegram.bot, telegram.user")
    assert (await refused(preparation("telegram.bot"), recipient="7", scope="user"))[0] == "delivery.channel"
    as_user = await desk.prepare(notify(recipient="7"), None, identity_scope="user")
    assert (as_user.identity_scope, as_user.channel) == ("user", "telegram.user")


async def test_only_telegram_can_react() -> None:
    assert (await refused(preparation(), channel="email", intent="react"))[0] == "delivery.intent"


async def test_it_is_written_down_how_the_target_was_found() -> None:
    new = await prepared(recipient="7")
    (decision,) = [one for one in new.decisions if one.rule == "target"]
    assert (decision.at, decision.rule, decision.verdict) == (START, "target", "resolved")
    assert decision.detail and isinstance(new.id, UUID) and new.status == "pending"
