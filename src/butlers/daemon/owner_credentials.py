"""Credentials of the owner's own accounts: kept with the owner's contact, never in a file.

An environment variable that is set wins; otherwise the owner's secured contact_info of the matching type is used. Only
scopes that are enabled are looked up, and what is found goes to the channel of that scope alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from butlers.butler.config import ButlerConfig
from butlers.contacts import Contacts

ADDRESS = "email"  # no secret: the address that everybody knows
TYPES: Mapping[str, str] = MappingProxyType(
    {
        "modules.telegram.user.token_env": "telegram_token",
        "modules.email.user.address_env": ADDRESS,
        "modules.email.user.password_env": "email_password",
    }
)


async def owner_credentials(
    configs: Iterable[ButlerConfig], environment: Mapping[str, str], contacts: Contacts
) -> dict[str, str]:
    """The variables of enabled user scopes that the environment does not set, by name."""
    owner = await contacts.owner()
    if owner is None:
        return {}
    found: dict[str, str] = {}
    for key, variable in (pair for config in configs for pair in config.modules.required_variables()):
        if key in TYPES and not environment.get(variable):
            kind = TYPES[key]
            look = contacts.identifier if kind == ADDRESS else contacts.secret
            value = await look(owner.id, kind)
            found |= {variable: value} if value else {}
    return found
