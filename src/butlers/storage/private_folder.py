"""The folder that holds secrets and people's messages: only its owner may look into it."""

from __future__ import annotations

from pathlib import Path

from butlers.errors import ConfigurationError

SOURCE = "--data-dir"


def make_private(folder: Path) -> None:
    """Make a folder for its owner alone. One with content that others may enter is refused, not changed."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if is_open(folder) and not any(folder.iterdir()):
            folder.chmod(0o700)  # nothing is in it yet, so nobody can rely on its permissions
        open_to_others = is_open(folder)
    except OSError as error:
        raise ConfigurationError(
            f"cannot be created: {error.strerror}",
            source=SOURCE,
            key=str(folder),
            remedy="choose a folder that you may write to",
        ) from None
    if open_to_others:
        raise ConfigurationError(
            "other users may enter this folder, and it would hold passwords and messages",
            source=SOURCE,
            key=str(folder),
            remedy=f"run: chmod 700 {folder}",
        )


def is_open(folder: Path) -> bool:
    """Whether users other than the owner may enter, list or write a folder."""
    return bool(folder.stat().st_mode & 0o077)
