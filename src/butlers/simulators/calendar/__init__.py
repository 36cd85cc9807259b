"""A Google Calendar API that lives on this machine: one calendar, its token endpoint, and a hand to move it.

It refuses what Google refuses, in Google's words, forgets nothing across a crash when it is given a journal, and fails
on demand. What it does not do: repeated events, attendees' answers, watches, sync tokens, more than one calendar.
"""

from __future__ import annotations

from butlers.simulators.calendar.server import (
    CLIENT_ID,
    CLIENT_SECRET,
    DEFAULT_PORT,
    REFRESH_TOKEN,
    CalendarSimulator,
    serve_calendar,
)

__all__ = ["CLIENT_ID", "CLIENT_SECRET", "DEFAULT_PORT", "REFRESH_TOKEN", "CalendarSimulator", "serve_calendar"]
