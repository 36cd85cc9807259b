"""For whom a caller may speak at the ingest door. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from butlers.butler.identity import Caller, Grant
from butlers.channels.channel import AnswersGo
from butlers.channels.registry import channel_of, channels, own_names, providers_of
from butlers.contracts.ingest import IngestEnvelope
from butlers.errors import FieldError, Forbidden
from butlers.operations.operation import Role


def speaks_for_itself(caller: Caller, envelope: IngestEnvelope) -> bool:
    """Whether the endpoint and the sender are the caller's own name, which no other channel's identities look like."""
    own, source = f"{caller.role.value}:{caller.name}", envelope.source
    return source.channel in own_names() and source.endpoint_identity == own and envelope.sender.identity == own


def authorize(caller: Caller, envelope: IngestEnvelope) -> None:
    """Raises `Forbidden` unless the caller may speak for the source and the sender that the envelope names."""
    if caller.role is Role.OPERATOR or speaks_for_itself(caller, envelope):
        return
    source, sender = envelope.source, envelope.sender.identity
    of_channel = [grant for grant in _grants(caller) if grant.channel == source.channel]
    if not of_channel:
        raise _not_itself(caller, envelope)
    at_endpoint = [grant for grant in of_channel if _covers(grant, source.endpoint_identity)]
    if not at_endpoint:
        allowed = _listed(grant.endpoint or "" for grant in of_channel)
        raise _forbidden(caller, ("source.endpoint_identity", f"must be {allowed} for this token"))
    senders = [name for grant in at_endpoint for name in grant.senders]
    if all(grant.senders for grant in at_endpoint) and sender.casefold() not in {name.casefold() for name in senders}:
        raise _forbidden(caller, ("sender.identity", f"must be {_listed(senders)} for this token"))
    in_thread = channel_of(source.channel).answers_go is AnswersGo.TO_CONVERSATION
    if caller.role is not Role.CONNECTOR and in_thread and envelope.event.external_thread_id not in (None, sender):
        problem = f"must be the sender's own ({sender!r}) or absent: only the channel's connector knows other ones"
        raise _forbidden(caller, ("event.external_thread_id", problem))


def may_report_for(caller: Caller, connector_type: str, endpoint: str) -> bool:
    """Whether a connector's token is for this connector: its type names the channel, or a provider of it."""
    return any(
        _covers(grant, endpoint) and connector_type in {grant.channel, *providers_of(grant.channel)}
        for grant in _grants(caller)
    )


def _grants(caller: Caller) -> tuple[Grant, ...]:
    """A butler also has the channels that it brings in itself: Messenger reads the mailbox that it writes from."""
    if caller.role is not Role.BUTLER:
        return caller.grants
    own = (
        Grant(channel=name)
        for name, channel in channels().items()
        if channel.inbound is not None and channel.inbound.read_by == caller.name
    )
    return (*caller.grants, *own)


def _covers(grant: Grant, endpoint: str) -> bool:
    return grant.endpoint is None or grant.endpoint.casefold() == endpoint.casefold()


def _not_itself(caller: Caller, envelope: IngestEnvelope) -> Forbidden:
    """Every field in which the envelope is not the caller's own."""
    own = f"{caller.role.value}:{caller.name}"
    granted = sorted({grant.channel for grant in _grants(caller)})
    own_channels = own_names()
    allowed = [*own_channels, *(channel for channel in granted if channel not in own_channels)]
    wrong: list[tuple[str, str]] = []
    if envelope.source.channel not in allowed:
        wrong.append(("source.channel", f"must be {_listed(allowed)} for this token"))
    if envelope.source.endpoint_identity != own:
        wrong.append(("source.endpoint_identity", f"must be {own!r} for this token"))
    if envelope.sender.identity != own:
        wrong.append(("sender.identity", f"must be {own!r} for this token"))
    return _forbidden(caller, *wrong)


def _forbidden(caller: Caller, *wrong: tuple[str, str]) -> Forbidden:
    fields = tuple(FieldError(field=field, error=error) for field, error in wrong)
    problems = "; ".join(f"{field.field} {field.error}" for field in fields)
    how = "an operator grants more with: butlers token issue NAME --channel CHANNEL --endpoint ENDPOINT"
    who = f"{caller.role.value}:{caller.name}"
    return Forbidden(f"{who} may not speak for this source: {problems} ({how})", fields=fields)


def _listed(names: Iterable[str]) -> str:
    return " or ".join(repr(name) for name in dict.fromkeys(names))
