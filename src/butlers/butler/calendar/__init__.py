"""A Google calendar as a module: a client of its REST API, the decision what to do about a collision, and the tools.

    tools ──> conflicts (pure: create, refuse or suggest)
      └─────> google ──> oauth (access tokens)
                 └─────> answers (refusals in our words)

A write may be repeated after an unanswered attempt: an event's id is chosen here, and a change leaves its mark in the
event, so what arrived the first time is recognised and not done twice.
"""

from __future__ import annotations

from butlers.butler.calendar.google import Credentials, GoogleCalendar
from butlers.butler.calendar.tools import CalendarTools

__all__ = ["CalendarTools", "Credentials", "GoogleCalendar"]
