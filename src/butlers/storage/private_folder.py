"""The folder that holds secrets and people's messages: only its owner may look into it."""

from __future__ import annotations

from pathlib import Path

from butlers.errors import ConfigurationError

SOURCE = "--data-dir"
_SETTINGS_FILE = "butlers.toml"  # an operator may put it there before the first start


def make_private(folder: Path) -> None:
    """Make a folder for its owner alone. One with content that others may enter is refused, not changed."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if is_open(folder) and not is_used(folder):
            folder.chmod(0o700)
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


def is_used(folder: Path) -> bool:
    """Whether a folder holds more than the settings: then somebody may rely on its permissions."""
    return any(path.name != _SETTINGS_FILE for path in folder.iterdir())
