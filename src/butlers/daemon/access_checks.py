"""Who will be able to write in, as `butlers doctor` explains it before a start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from butlers.daemon.check import Check, ok, warn
from butlers.daemon.settings import Settings, WhoMayWrite
from butlers.daemon.simulation import Simulated

WHO: Mapping[WhoMayWrite, str] = {
    "owner": "the owner",
    "contacts": "the owner and the contacts",
    "pairing": "the owner, the contacts, and strangers whose code the owner approves",
    "open": "everybody",
}


def who_may_write(settings: Settings, simulated: Simulated) -> Iterator[Check]:
    alone = simulated.telegram and simulated.mail  # beside a real channel, a simulated one has the same rules
    yield _telegram(settings, simulated=alone)
    yield _mail(settings, simulated=alone)
    if not simulated.mail and settings.imap_host is not None:
        yield _mail_authentication(settings)


def _telegram(settings: Settings, *, simulated: bool) -> Check:
    name, policy = "who_may_write.telegram", _policy(settings, "telegram", simulated=simulated)
    if simulated or policy == "open":
        return _open(name, policy, simulated=simulated)
    owner = settings.owner_telegram
    if owner is None:
        detail = f"{WHO[policy]}; no owner's chat is set: until one has paired, `butlers up` prints a code for it"
        return ok(name, detail, "send that code to the bot, or set owner_telegram to your Telegram user number")
    if not owner.isdigit():
        detail = f"{WHO[policy]}; {owner} is no user's number, so nobody is known to be the owner"
        return warn(name, detail, "send the bot the code that `butlers up` prints, or set owner_telegram to the number")
    return ok(name, f"{WHO[policy]}; the owner is {owner}")


def _mail(settings: Settings, *, simulated: bool) -> Check:
    name, policy = "who_may_write.email", _policy(settings, "email", simulated=simulated)
    if simulated or policy == "open":
        return _open(name, policy, simulated=simulated)
    if settings.owner_email is None:
        detail = f"{WHO[policy]}; no owner's address is set, so mail of the owner's is refused like a stranger's"
        return warn(name, detail, "set owner_email, or use: butlers senders allow email ADDRESS --owner")
    return ok(name, f"{WHO[policy]}; the owner is {settings.owner_email}")


def _mail_authentication(settings: Settings) -> Check:
    name = "mail_authentication"
    if settings.mail_authentication == "off":
        remedy = "set mail_authentication=required and mail_authserv_id"
        return warn(name, "off: whoever writes an owner's or a contact's address into From is served as them", remedy)
    if settings.mail_authserv_id is None:
        refused = "mail of known senders" if settings.who_may_write("email") == "open" else "every mail"
        detail = f"required, but the receiving server's name is not set: {refused} will be refused"
        remedy = "set mail_authserv_id to the first word of the Authentication-Results header of a mail that you got"
        return warn(name, detail, remedy)
    return ok(name, f"required, as {settings.mail_authserv_id} states it")


def _policy(settings: Settings, channel: str, *, simulated: bool) -> WhoMayWrite:
    given = settings.who_may_write_telegram if channel == "telegram" else settings.who_may_write_email
    return given or ("open" if simulated else "owner")


def _open(name: str, policy: WhoMayWrite, *, simulated: bool) -> Check:
    if simulated:
        return ok(name, f"{WHO[policy]} (simulated)")
    return warn(name, "everybody who finds the address is served and answered", f"set {name.replace('.', '_')}=owner")
