"""The methods of the Bot API that answer at once: plain functions from a call to its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from butlers.channels.telegram.simulator.methods.call import Call
from butlers.channels.telegram.simulator.methods.chats import get_chat, get_me, send_chat_action
from butlers.channels.telegram.simulator.methods.messages import delete_message, edit_message_text, send_message
from butlers.channels.telegram.simulator.methods.reactions import set_message_reaction
from butlers.channels.telegram.simulator.methods.webhooks import delete_webhook, get_webhook_info, set_webhook

METHODS: dict[str, Callable[[Call], Any]] = {
    "getMe": get_me,
    "getChat": get_chat,
    "sendChatAction": send_chat_action,
    "sendMessage": send_message,
    "editMessageText": edit_message_text,
    "deleteMessage": delete_message,
    "setMessageReaction": set_message_reaction,
    "setWebhook": set_webhook,
    "deleteWebhook": delete_webhook,
    "getWebhookInfo": get_webhook_info,
}

__all__ = ["METHODS", "Call"]
