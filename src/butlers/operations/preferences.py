"""What people want to be told, how and when not: shown and changed for one person, an organization, or the system.

A butler may set single choices, mutes and quiet hours for people; whole documents are an operator's. A person changes
his own by a command in a chat (`/mute 2h`) or by the unsubscribe link of a mail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from butlers.contracts.envelope import Identity, Timestamp, Value
from butlers.operations import operation as op

PERSON: Final = "a contact id, owner, channel:address such as telegram:4711, or the contact's whole name"
_PERSON: Final = op.Option("person", f"Who: {PERSON}.", positional=True, metavar="PERSON")
_EVENT: Final = op.Option("event", "Only messages about this event.")


class PersonArguments(Value):
    person: Identity = Field(description=PERSON)


class ChoiceArguments(PersonArguments):
    event: Identity = Field(description="what the messages are about, such as invoice")
    channel: Identity = Field(description="the channel, such as email")
    choice: Literal["yes", "no", "unset"] = Field(
        description="yes: by this channel, please; no: never by it; unset: the defaults decide"
    )


class MuteArguments(PersonArguments):
    duration: Identity = Field(
        description="30m, 2h, 3d, until 18:00 where the person is, or a moment in RFC 3339; at most 30 days"
    )
    event: Identity | None = Field(default=None, description="only messages about this event; absent: all")


class QuietHoursArguments(PersonArguments):
    start: Identity = Field(description="when they begin, HH:MM; off: no quiet hours")
    end: Identity | None = Field(default=None, description="when they end, HH:MM; required unless start is off")
    timezone: Identity | None = Field(
        default=None, description="of the IANA list, such as Europe/Berlin; absent: the person's own, else UTC"
    )
    days: list[Identity] = Field(
        default_factory=list, max_length=7, description="the days on which they begin: mon, tue, ...; none: every day"
    )


class ReplaceArguments(PersonArguments):
    document: dict[str, Any] = Field(description="the whole document: notifications.matrix, quietHours, mutes, ...")


class OrganizationArguments(Value):
    organization: Identity = Field(description="the id of the organization")


class ReplaceOrganizationArguments(OrganizationArguments):
    document: dict[str, Any] = Field(description="the whole document: notifications.matrix, quietHours")


class ReplaceDefaultsArguments(Value):
    document: dict[str, Any] = Field(description="the whole document: channels, notifications.matrix, ...")


class _Described(BaseModel):
    """Describes what is stored; the store checks it. Fields that are not described stay as they are."""

    model_config = ConfigDict(extra="allow")


class Window(BaseModel):
    model_config = ConfigDict(extra="forbid")

    start_time: str = Field(description="when it begins, HH:MM")
    end_time: str = Field(description="when it ends, HH:MM")
    timezone: str = Field(description="of the IANA list, such as Europe/Berlin")
    days_of_week: list[Annotated[int, Field(ge=1, le=7)] | str] = Field(
        default_factory=list, description="1 (Monday) to 7, or mon, tue, ...; none: every day"
    )


class MuteUntil(_Described):
    until: Timestamp = Field(description="when it ends: RFC 3339 with an offset, at most 30 days ahead")
    event: Identity | None = Field(default=None, description="only messages about this event; absent: all")


class Notifications(_Described):
    matrix: dict[str, dict[str, bool | None]] = Field(
        default_factory=dict,
        description="event -> channel -> true: by it, false: never by it, null: no opinion; event *: all",
    )
    digests: dict[str, Annotated[int, Field(ge=60, le=604_800)]] = Field(
        default_factory=dict, description="event -> seconds for which its messages are collected into one"
    )


class OrganizationPreferences(_Described):
    """What holds for an organization's people who have no opinion of their own."""

    notifications: Notifications = Field(default_factory=Notifications, description="which events by which channels")
    quiet_hours: list[Window] | Window | None = Field(
        default=None, alias="quietHours", description="when nothing is written"
    )


class PersonPreferences(OrganizationPreferences):
    """What a person wants."""

    mutes: list[MuteUntil] = Field(default_factory=list, max_length=64, description="until when nothing is written")


class DefaultPreferences(OrganizationPreferences):
    """What holds where nobody has an opinion."""

    channels: list[Identity] = Field(
        default_factory=list, min_length=1, description="the channels that are enabled, best first"
    )
    critical_events: list[Identity] = Field(
        default_factory=list, description="events that mutes and quiet hours do not hold"
    )


class ShownPreferences(op.Result):
    person: op.Row = Field(description="the person: id, name, timezone")
    document: op.Row | None = Field(description="what is stored; null: nothing")
    changes: list[op.Row] = Field(description="the last changes: action, details, by whom and when")


class ShownDefaults(op.Result):
    document: op.Row | None = Field(description="what is stored; null: nothing")
    changes: list[op.Row] = Field(description="the last changes: action, details, by whom and when")


class PreferencesChanged(op.Result):
    person: op.Row = Field(description="the person: id, name, timezone")
    document: op.Row | None = Field(description="what is stored now")


class Muted(PreferencesChanged):
    until: str = Field(description="when the mute ends, RFC 3339")


class DefaultsChanged(op.Result):
    document: op.Row | None = Field(description="what is stored now")


def _document_lines(document: op.Document) -> Iterator[str]:
    matrix = document.get("notifications", {}).get("matrix", {})
    for event, row in sorted(matrix.items()):
        opinions = ", ".join(
            f"{channel} {'yes' if opinion else 'no'}" for channel, opinion in sorted(row.items()) if opinion is not None
        )
        yield f"  {event}: {opinions or 'no opinion'}"
    windows = document.get("quietHours") or []
    for window in windows if isinstance(windows, list) else [windows]:
        days = ", ".join(str(day) for day in window.get("days_of_week", ())) or "every day"
        yield f"  quiet from {window['start_time']} to {window['end_time']} ({window['timezone']}), {days}"
    for mute in document.get("mutes", ()):
        about = f" for {mute['event']}" if mute.get("event") else ""
        yield f"  muted until {op.when(mute['until'])}{about}"


def _shown(answer: op.Document) -> Iterator[str]:
    person = answer["person"]
    yield f"{person['name']} ({person['id']}), time zone {person['timezone'] or 'unknown, so UTC'}"
    lines = list(_document_lines(answer["document"] or {}))
    yield from lines or ["  has stored nothing: the defaults decide"]
    yield from _history(answer)


def _shown_defaults(answer: op.Document) -> Iterator[str]:
    document = answer["document"] or {}
    if channels := document.get("channels"):
        yield f"  channels: {', '.join(channels)}"
    lines = list(_document_lines(document))
    yield from lines or ([] if channels else ["  nothing is stored"])
    yield from _history(answer)


def _history(answer: op.Document) -> Iterator[str]:
    for change in answer["changes"][:5]:
        yield f"  changed {op.when(change['changed_at'])} by {change['changed_by']}: {change['action']}"


def _changed(answer: op.Document) -> Iterator[str]:
    yield f"{answer['person']['name']}:"
    yield from list(_document_lines(answer["document"] or {})) or ["  nothing is stored: the defaults decide"]


def _muted(answer: op.Document) -> Iterator[str]:
    yield f"{answer['person']['name']} is muted until {op.when(answer['until'])}"
    yield op.Hint(f"end it with: butlers preferences unmute {answer['person']['id']}")


def _days(texts: Sequence[str]) -> list[str]:
    """`--days mon,tue --days sun` as a list."""
    return [day.strip() for text in texts for day in text.split(",") if day.strip()]


def _replaces(path: str, summary: str, described: type[BaseModel]) -> op.Route:
    schema = described.model_json_schema(by_alias=True)
    return op.post(path, summary, body_is="document", body_schema=schema)


_changes = partial(op.Operation, returns=PreferencesChanged, hints=op.CHANGES)

SHOW: Final = op.Operation(
    name="preferences.show",
    description="What a person wants to be told and how, the quiet hours, the mutes, and who changed them last.",
    arguments=PersonArguments,
    returns=ShownPreferences,
    hints=op.READS,
    routes=(op.get("/people/{person}/preferences", "What a person wants to be told, and how"),),
    commands=(op.Command("preferences show", "What a person wants to be told, and how.", _shown, (_PERSON,)),),
)
SET: Final = _changes(
    name="preferences.set",
    description="Whether a person wants messages about an event by a channel: yes, no, or unset.",
    arguments=ChoiceArguments,
    routes=(op.post("/people/{person}/preferences/choices", "Choose a channel for an event, or refuse it"),),
    commands=(
        op.Command(
            "preferences set",
            "Choose a channel for an event, or refuse it: yes, no or unset.",
            _changed,
            (
                _PERSON,
                op.Option("event", "What the messages are about.", positional=True, metavar="EVENT"),
                op.Option("channel", "By which channel.", positional=True, metavar="CHANNEL"),
                op.Option("choice", "Whether by it.", positional=True, metavar="yes|no|unset", choices=True),
            ),
        ),
    ),
)
MUTE: Final = _changes(
    name="preferences.mute",
    description="Write nothing to a person for a while, or nothing about one event. Critical events still arrive.",
    arguments=MuteArguments,
    returns=Muted,
    routes=(op.post("/people/{person}/preferences/mute", "Write nothing to a person for a while"),),
    commands=(
        op.Command(
            "preferences mute",
            "Write nothing to a person for a while: 30m, 2h, 3d, 'until 18:00'.",
            _muted,
            (_PERSON, op.Option("duration", "How long.", positional=True, metavar="DURATION"), _EVENT),
        ),
    ),
)
UNMUTE: Final = _changes(
    name="preferences.unmute",
    description="End every mute of a person.",
    arguments=PersonArguments,
    routes=(op.post("/people/{person}/preferences/unmute", "End every mute of a person"),),
    commands=(op.Command("preferences unmute", "End every mute of a person.", _changed, (_PERSON,)),),
)
QUIET_HOURS: Final = _changes(
    name="preferences.quiet_hours",
    description="The daily time in which nothing is written to a person; messages wait until it ends.",
    arguments=QuietHoursArguments,
    routes=(op.post("/people/{person}/preferences/quiet-hours", "When a person is not to be written to"),),
    commands=(
        op.Command(
            "preferences quiet-hours",
            "When a person is not to be written to: 22:00 07:00, or off.",
            _changed,
            (
                _PERSON,
                op.Option("start", "When they begin, or off.", positional=True, metavar="HH:MM|off"),
                op.Option("end", "When they end.", positional=True, metavar="HH:MM"),
                op.Option("timezone", "Such as Europe/Berlin; default: the person's own, else UTC."),
                op.Option("days", "Days on which they begin: mon,tue; default: every day.", default=None, parse=_days),
            ),
        ),
    ),
)
REPLACE: Final = _changes(
    name="preferences.replace",
    description="Store a person's whole document anew.",
    arguments=ReplaceArguments,
    roles=op.OPERATORS,
    routes=(_replaces("/people/{person}/preferences", "Store a person's preferences anew", PersonPreferences),),
)
ORGANIZATION: Final = op.Operation(
    name="preferences.organization",
    description="What holds for an organization's people who have no opinion of their own.",
    arguments=OrganizationArguments,
    returns=ShownDefaults,
    hints=op.READS,
    routes=(op.get("/organizations/{organization}/preferences", "An organization's defaults"),),
    commands=(
        op.Command(
            "preferences organization",
            "What holds for an organization's people who have no opinion.",
            _shown_defaults,
            (op.Option("organization", "The organization's id.", positional=True, metavar="ORGANIZATION"),),
        ),
    ),
)
REPLACE_ORGANIZATION: Final = op.Operation(
    name="preferences.replace_organization",
    description="Store an organization's defaults anew.",
    arguments=ReplaceOrganizationArguments,
    returns=DefaultsChanged,
    hints=op.CHANGES,
    roles=op.OPERATORS,
    routes=(
        _replaces(
            "/organizations/{organization}/preferences",
            "Store an organization's defaults anew",
            OrganizationPreferences,
        ),
    ),
)
DEFAULTS: Final = op.Operation(
    name="preferences.defaults",
    description="What holds where neither a person nor an organization has an opinion, and which channels are enabled.",
    returns=ShownDefaults,
    hints=op.READS,
    routes=(op.get("/defaults", "The system's own defaults"),),
    commands=(op.Command("preferences defaults", "What holds where nobody has an opinion.", _shown_defaults),),
)
REPLACE_DEFAULTS: Final = op.Operation(
    name="preferences.replace_defaults",
    description="Store the system's own defaults anew.",
    arguments=ReplaceDefaultsArguments,
    returns=DefaultsChanged,
    hints=op.CHANGES,
    roles=op.OPERATORS,
    routes=(_replaces("/defaults", "Store the system's own defaults anew", DefaultPreferences),),
)

OPERATIONS: Final = (
    SHOW,
    SET,
    MUTE,
    UNMUTE,
    QUIET_HOURS,
    REPLACE,
    ORGANIZATION,
    REPLACE_ORGANIZATION,
    DEFAULTS,
    REPLACE_DEFAULTS,
)
