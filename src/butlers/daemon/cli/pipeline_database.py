"""The database of the system that a pipeline command is about, whether that system runs or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from butlers.butler.config import load_roster
from butlers.daemon.places import Places
from butlers.daemon.settings import Settings
from butlers.errors import ConfigurationError
from butlers.storage.address import database_of, with_database
from butlers.storage.embedded import EmbeddedPostgres


@contextmanager
def database_of_system(settings: Settings) -> Iterator[str]:
    """Its address; an embedded server that nobody uses is started for as long as the block lasts."""
    given = settings.database_url
    if given is not None:
        yield given if database_of(given) is not None else with_database(given, _name(settings))
        return
    server = EmbeddedPostgres(Places(settings.data_dir).root, durable=settings.database_durable)
    if not server.pgdata.exists():
        raise ConfigurationError(
            "there is no system here yet",
            source="--data-dir",
            key=str(settings.data_dir),
            remedy="start it once with `butlers up`, name another --data-dir, or set DATABASE_URL",
        )
    server.start()
    try:
        yield server.uri(_name(settings))
    finally:
        server.stop()


def _name(settings: Settings) -> str:
    # All butlers of a system share one database; a roster that says otherwise does not start.
    return next(config.butler.db.name for config in load_roster(settings.roster_dir).values())
