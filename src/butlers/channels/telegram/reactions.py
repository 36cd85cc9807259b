"""The emoji a bot may put on a message: Telegram's fixed list, which has no white check mark."""

from __future__ import annotations

_PRESENTATION = "\ufe0f"  # asks for the coloured form; people write it or not, Telegram compares exactly

ALLOWED = (
    *"👍👎❤🔥🥰👏😁🤔🤯😱🤬😢🎉🤩🤮💩🙏👌🕊🤡🥱🥴😍",
    *"🐳🌚🌭💯🤣⚡🍌🏆💔🤨😐🍓🍾💋🖕😈😴😭🤓👻👀🎃🙈",
    *"😇😨🤝✍🤗🫡🎅🎄☃💅🤪🗿🆒💘🙉🦄😘💊🙊😎👾🤷😡",
    *("❤️‍🔥", "👨‍💻", "🤷‍♂️", "🤷‍♀️"),  # several characters each
)


def reaction(emoji: str | None) -> str | None:
    """The emoji as Telegram spells it, or None when it is not allowed."""
    wanted = _bare(emoji or "")
    return next((allowed for allowed in ALLOWED if _bare(allowed) == wanted), None)


def _bare(emoji: str) -> str:
    return emoji.strip().replace(_PRESENTATION, "")
