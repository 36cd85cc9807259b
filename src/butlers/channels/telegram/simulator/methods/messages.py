"""What a bot writes: send, edit, delete."""

from __future__ import annotations

from dataclasses import replace

from butlers.channels.telegram.simulator.formatting import Formatted, format_text
from butlers.channels.telegram.simulator.methods.call import Call
from butlers.channels.telegram.simulator.model import Message, Wire, bad_request, too_many_requests
from butlers.channels.telegram.simulator.params import Params, as_integer
from butlers.channels.telegram.simulator.state import ChatState
from butlers.channels.telegram.simulator.world import stored


def send_message(call: Call) -> Wire:
    formatted = _formatted(call.params)
    held = call.open_chat()
    replied = _replied(call.params, held)
    _admit(call, held)
    message = Message(
        message_id=call.bot.message_id_for(held.chat),
        chat_id=held.chat.id,
        date=call.world.unix_time(),
        sender=call.bot.bot.user,
        text=formatted.text,
        entities=formatted.entities,
        reply_to=replied.message_id if replied else None,
    )
    call.world.commit(stored(call.bot, message))
    return message.to_wire(held.chat, replied)


def edit_message_text(call: Call) -> Wire:
    formatted = _formatted(call.params)
    held = call.open_chat()
    message = call.message_in(held, "edit")
    if message.sender.id != call.bot.id:
        raise bad_request("message can't be edited")
    if (message.text, message.entities) == (formatted.text, formatted.entities):
        raise bad_request(
            "message is not modified: specified new message content and reply markup are exactly the same "
            "as a current content and reply markup of the message"
        )
    _admit(call, held)
    edited = replace(message, text=formatted.text, entities=formatted.entities, edit_date=call.world.unix_time())
    call.world.commit(stored(call.bot, edited))
    return edited.to_wire(held.chat, held.messages.get(edited.reply_to or 0))


def delete_message(call: Call) -> bool:
    held = call.chat()
    message = call.message_in(held, "delete")
    call.world.commit(
        {
            "change": "message_deleted",
            "bot": call.bot.id,
            "chat_id": held.chat.id,
            "message_id": message.message_id,
        }
    )
    return True


def _formatted(params: Params) -> Formatted:
    return format_text(params.text("text"), params.text("parse_mode"), params.structure("entities"))


def _replied(params: Params, held: ChatState) -> Message | None:
    wanted, optional = _reply_wish(params)
    if wanted is None:
        return None
    replied = held.messages.get(wanted)
    if replied is None and not optional:
        raise bad_request("message to be replied not found")
    return replied


def _reply_wish(params: Params) -> tuple[int | None, bool]:
    """The message to answer, and whether it may be missing; the new form wins over the old one."""
    if "reply_parameters" in params:
        wish = params.mapping("reply_parameters")
        return as_integer(wish.get("message_id")), bool(wish.get("allow_sending_without_reply"))
    return params.integer("reply_to_message_id") or None, params.flag("allow_sending_without_reply")


def _admit(call: Call, held: ChatState) -> None:
    if not call.world.state.settings.enforce_limits:
        return
    retry_after = call.world.rates.admit(call.bot.id, held.chat.id, call.world.clock.now())
    if retry_after is not None:
        raise too_many_requests(retry_after)
