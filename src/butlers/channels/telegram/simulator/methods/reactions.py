"""Reactions: a bot may put one on a message, from Telegram's fixed list (no white check mark among them)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from butlers.channels.telegram.simulator.methods.call import Call
from butlers.channels.telegram.simulator.model import bad_request
from butlers.channels.telegram.simulator.world import stored

ALLOWED_REACTIONS = frozenset(
    {
        *"👍👎❤🔥🥰👏😁🤔🤯😱🤬😢🎉🤩🤮💩🙏👌🕊🤡🥱🥴😍",
        *"🐳🌚🌭💯🤣⚡🍌🏆💔🤨😐🍓🍾💋🖕😈😴😭🤓👻👀🎃🙈",
        *"😇😨🤝✍🤗🫡🎅🎄☃💅🤪🗿🆒💘🙉🦄😘💊🙊😎👾🤷😡",
        # Several code points each.
        *("❤️‍🔥", "👨‍💻", "🤷‍♂️", "🤷‍♀️"),
    }
)


def set_message_reaction(call: Call) -> bool:
    held = call.open_chat()
    message = call.message_in(held, "react")
    wanted = _wanted(call.params.structure("reaction"))
    call.world.commit(stored(call.bot, replace(message, reaction=wanted)))
    return True


def _wanted(reactions: Any) -> str | None:
    """The emoji asked for; none asked for means take the old one away."""
    if not reactions:
        return None
    if not isinstance(reactions, list) or not all(isinstance(reaction, dict) for reaction in reactions):
        raise bad_request("can't parse reaction types JSON object")
    if len(reactions) > 1:
        raise bad_request("REACTIONS_TOO_MANY")
    emoji = reactions[0].get("emoji")
    if reactions[0].get("type") != "emoji" or emoji not in ALLOWED_REACTIONS:
        raise bad_request("REACTION_INVALID")
    return str(emoji)
