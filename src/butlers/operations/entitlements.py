"""Who may send and who may receive: listed for butlers, changed by operators."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from pydantic import Field

from butlers.contracts.envelope import Identity, Value
from butlers.operations import operation as op

SUBJECT: Final = (
    "a contact id, owner, channel:address such as telegram:4711, a contact's whole name, the name of a butler or of a "
    "caller who has a token, or role:<name>; role:everyone is everybody"
)
PERMISSION: Final = "messages:{send|receive|*}:{channel|*}; with a leading ! it denies, and a denial wins"
_SUBJECT: Final = op.Option("subject", f"Who: {SUBJECT}.", positional=True, metavar="SUBJECT")
_PERMISSION: Final = op.Option("permission", f"What: {PERMISSION}.", positional=True, metavar="PERMISSION")
_ROLE: Final = op.Option("role", "The role's name.", positional=True, metavar="ROLE")
_ORGANIZATION: Final = op.Option("organization", "Only in this organization; default: in all.")


class ListArguments(Value):
    subject: Identity | None = Field(default=None, description=f"only this one: {SUBJECT}")
    organization: Identity | None = Field(
        default=None, description="the organization for which effective permissions are shown; absent: none"
    )
    cursor: Identity | None = Field(default=None, description="next_cursor of the page before; absent: the first page")
    limit: int = Field(default=op.PAGE, ge=1, le=op.LONGEST_PAGE, description="at most so many, on one page")


class GrantArguments(Value):
    subject: Identity = Field(description=SUBJECT)
    permission: Identity = Field(description=PERMISSION)
    organization: Identity | None = Field(default=None, description="only in this organization; absent: in all")


class MembershipArguments(Value):
    subject: Identity = Field(description=SUBJECT)
    role: Identity = Field(description="small letters, digits and . _ -")
    organization: Identity | None = Field(default=None, description="only in this organization; absent: in all")


class Entitlements(op.Page):
    entitlements: list[op.Row] = Field(description="grants and denials: subject, permission, organization, by whom")
    memberships: list[op.Row] = Field(description="of the subject: its roles, or the members of a role")
    effective: list[str] = Field(description="what the subject may and may not do by all of it; empty without one")


class EntitlementChanged(op.Result):
    subject: str = Field(description="whose it is")
    changed: bool = Field(description="false: it was so already")


def _listed(answer: op.Document) -> Iterator[str]:
    for row in answer["entitlements"]:
        where = f" in {row['organization_id']}" if row["organization_id"] else ""
        yield f"{row['subject_id']}  {row['permission']}{where}  by {row['granted_by']}"
    for row in answer["memberships"]:
        where = f" in {row['organization_id']}" if row["organization_id"] else ""
        yield f"{row['subject_id']}  role:{row['role']}{where}"
    if answer["effective"]:
        yield f"effective: {', '.join(answer['effective'])}"


def _changed(answer: op.Document) -> Iterator[str]:
    yield f"{answer['subject']}: {'done' if answer['changed'] else 'it was so already'}"


_changes = partial(op.Operation, returns=EntitlementChanged, hints=op.CHANGES, roles=op.OPERATORS)

LIST: Final = op.Operation(
    name="entitlements.list",
    description="Who may send and receive by which channel: grants, denials and roles, of one subject or of all.",
    arguments=ListArguments,
    returns=Entitlements,
    hints=op.READS,
    routes=(op.get("/entitlements", "Who may send and receive by which channel"),),
    commands=(
        op.Command(
            "entitlements list",
            "Who may send and receive by which channel.",
            _listed,
            (op.Option("subject", "Only this one."), _ORGANIZATION, op.LIMIT, op.CURSOR),
            none="nothing is granted: nobody may send or receive",
            alone=True,
        ),
    ),
)
GRANT: Final = _changes(
    name="entitlements.grant",
    description="Let a subject send or receive, or deny it with a leading !.",
    arguments=GrantArguments,
    routes=(op.post("/entitlements", "Grant a permission, or deny it"),),
    commands=(
        op.Command(
            "entitlements grant",
            "Grant a permission, or deny it with a leading !.",
            _changed,
            (_SUBJECT, _PERMISSION, _ORGANIZATION),
        ),
    ),
)
REVOKE: Final = _changes(
    name="entitlements.revoke",
    description="Take a grant or a denial back.",
    arguments=GrantArguments,
    routes=(
        op.post("/entitlements/revoke", "Take a grant or a denial back"),
        op.Route(method="DELETE", path="/entitlements", summary="Take a grant or a denial back"),
    ),
    commands=(
        op.Command(
            "entitlements revoke", "Take a grant or a denial back.", _changed, (_SUBJECT, _PERMISSION, _ORGANIZATION)
        ),
    ),
)
JOIN: Final = _changes(
    name="entitlements.join",
    description="Give a subject a role, and with it the role's permissions.",
    arguments=MembershipArguments,
    routes=(op.post("/entitlements/join", "Give a subject a role"),),
    commands=(op.Command("entitlements join", "Give a subject a role.", _changed, (_SUBJECT, _ROLE, _ORGANIZATION)),),
)
LEAVE: Final = _changes(
    name="entitlements.leave",
    description="Take a role from a subject.",
    arguments=MembershipArguments,
    routes=(op.post("/entitlements/leave", "Take a role from a subject"),),
    commands=(
        op.Command("entitlements leave", "Take a role from a subject.", _changed, (_SUBJECT, _ROLE, _ORGANIZATION)),
    ),
)

OPERATIONS: Final = (LIST, GRANT, REVOKE, JOIN, LEAVE)
