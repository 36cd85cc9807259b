"""Who owns a piece of work, and who no longer does.

A worker claims work for `ttl` seconds and renews every `renew_every` seconds while it is busy. When it dies, the
lease goes stale and somebody else takes the work over.

    free --claim--> held --renew--> held
                     | ttl passes without a renewal
                     v
                   stale --takeover--> held, by somebody else, under another token
                     |
                     +------renew----> held: late, but nobody had come

A worker that was only slow does not know that it has been replaced. That is why every claim and every takeover
brings a fresh token: the *fencing token*. The work remembers the current one, and a write under any other token is
refused (`may_write`), however late it comes. Time decides who may take over; the token alone decides who may write,
so a wrong clock costs repeated work and never a second result.

`now` should be the time of the one clock that all claimants share: the database's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from butlers.errors import LeaseLost


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasePolicy:
    ttl: float = 10.0  # seconds without a renewal until the lease is stale
    renew_every: float = 3.0  # seconds

    def __post_init__(self) -> None:
        if not 0 < self.renew_every < self.ttl:
            raise ValueError("renew_every must be positive and shorter than ttl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    token: UUID  # the fencing token: fresh for each claim and each takeover
    owner: str
    claimed_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    lease: Lease
    taken_from: Lease | None = None  # the stale lease that this one replaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Somebody else is at it."""

    lease: Lease
    retry_after: float  # seconds until the lease is stale, unless it is renewed


def claim(current: Lease | None, *, owner: str, token: UUID, policy: LeasePolicy, now: datetime) -> Granted | Held:
    """Ask for work that is free, held or stale."""
    if current is not None:
        return takeover(current, owner=owner, token=token, policy=policy, now=now)
    return Granted(lease=_lease(owner, token, policy, now))


def takeover(current: Lease, *, owner: str, token: UUID, policy: LeasePolicy, now: datetime) -> Granted | Held:
    """Replace a lease that is stale; the old owner's token is worthless from here on."""
    if token == current.token:
        raise ValueError("a takeover needs a fresh token")
    if not is_stale(current, now):
        return Held(lease=current, retry_after=(current.expires_at - now).total_seconds())
    return Granted(lease=_lease(owner, token, policy, now), taken_from=current)


def renew(current: Lease | None, *, token: UUID, policy: LeasePolicy, now: datetime) -> Lease:
    """Stay the owner; a stale lease may still be renewed as long as nobody has taken it over.

    Raises `LeaseLost` when somebody has.
    """
    if current is None or not may_write(current, token):
        raise LeaseLost("the lease was taken over or released")
    return replace(current, expires_at=now + timedelta(seconds=policy.ttl))


def renewal_due(lease: Lease, policy: LeasePolicy) -> datetime:
    """When the owner should renew."""
    return lease.expires_at - timedelta(seconds=policy.ttl - policy.renew_every)


def is_stale(lease: Lease, now: datetime) -> bool:
    return now >= lease.expires_at


def may_write(current: Lease | None, token: UUID) -> bool:
    """Is this still the token the work is held under?"""
    return current is not None and current.token == token


def _lease(owner: str, token: UUID, policy: LeasePolicy, now: datetime) -> Lease:
    return Lease(token=token, owner=owner, claimed_at=now, expires_at=now + timedelta(seconds=policy.ttl))
