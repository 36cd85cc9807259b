"""Who the bot is and whom it talks to."""

from __future__ import annotations

from butlers.channels.telegram.simulator.methods.call import Call
from butlers.channels.telegram.simulator.model import Wire, bad_request

_ACTIONS = frozenset(
    {
        *("typing", "upload_photo", "record_video", "upload_video", "record_voice", "upload_voice"),
        *("upload_document", "choose_sticker", "find_location", "record_video_note", "upload_video_note"),
    }
)
_GIFTS = ("unlimited_gifts", "limited_gifts", "unique_gifts", "premium_subscription", "gifts_from_channels")


def get_me(call: Call) -> Wire:
    return call.bot.bot.user.to_wire() | {
        "can_join_groups": True,
        "can_read_all_group_messages": True,
        "supports_inline_queries": False,
    }


def get_chat(call: Call) -> Wire:
    return call.chat().chat.to_wire() | {
        "accent_color_id": 0,
        "max_reaction_count": 11,
        "accepted_gift_types": dict.fromkeys(_GIFTS, False),
    }


def send_chat_action(call: Call) -> bool:
    call.open_chat()
    if call.params.text("action") not in _ACTIONS:
        raise bad_request("wrong parameter action in request")
    return True
