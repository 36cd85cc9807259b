"""What goes out again or goes on: replayed, settled, approved, addressed; each passes the same admission as any other.

release      a dead letter replayed, an uncertain delivery settled
readmission  whatever was released meets the budgets, the circuits and the recipient's rules, once they have room
"""

from __future__ import annotations

from butlers.messenger.release.readmission import Readmission
from butlers.messenger.release.release import Release

__all__ = ["Readmission", "Release"]
