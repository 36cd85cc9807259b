"""Which tests share a process: those of a file, so that what a file's fixtures start is started once.

Whole systems in processes of their own never run side by side: two are enough for two cores. All tests with Spark share
one Java, and all of the architecture one reading of the source. pytest-xdist has marks for such groups, which pytest
9.2 made ineffective (it keeps a test's name elsewhere).
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

TOGETHER = ("tests/architecture/", "tests/integration/processes/", "tests/pipeline/")


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid.partition("::")[0])
