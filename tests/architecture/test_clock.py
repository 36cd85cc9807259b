"""Nobody asks what time it is but `clock.py`, and nobody waits by another way than the clock's."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from tests.architecture.source import references, source_files

CLOCK = "clock.py"

TELLS_THE_TIME = frozenset(
    {
        *(f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")),
        "datetime.date.today",
        *(f"time.{name}" for name in ("time", "monotonic", "perf_counter", "process_time")),
        *(f"time.{name}_ns" for name in ("time", "monotonic", "perf_counter", "process_time")),
        *(f"time.{name}" for name in ("localtime", "gmtime", "ctime", "strftime")),
        "uuid.uuid1",
    }
)
WAITS = frozenset({"asyncio.sleep", "time.sleep"})

MAY_WAIT = {
    "serving/server.py": "sleep(0): one turn of the loop, in which sockets close",
    "channels/email/simulator/smtp.py": "asyncio gives no sign when a task begins to wait; this is real time",
    "channels/email/simulator/imap.py": "sleep(0): one turn of the loop, in which sockets close",
    "storage/embedded.py": "a synchronous start that waits for another process, in a thread of its own",
}


def offenders(found: Iterable[tuple[int, str]], forbidden: frozenset[str]) -> list[str]:
    return [f"{line}: {name}" for line, name in found if name in forbidden]


def test_only_the_clock_tells_the_time() -> None:
    found = {file.path: seen for file in source_files() if (seen := offenders(file.references, TELLS_THE_TIME))}
    assert found.keys() == {CLOCK}, found


def test_only_the_clock_waits_but_for_these() -> None:
    found = {file.path for file in source_files() if offenders(file.references, WAITS)}
    assert found == {CLOCK, *MAY_WAIT}


def test_the_check_sees_every_way_to_ask() -> None:
    ways = {
        "import time\nx = time.monotonic()": ["2: time.monotonic"],
        "import time as t\nx = t.time": ["2: time.time"],
        "from time import perf_counter as p\nx = p()": ["2: time.perf_counter"],
        "from datetime import datetime as d, UTC\nx = d.now(UTC)": ["2: datetime.datetime.now"],
        "import datetime\nx = datetime.date.today()": ["2: datetime.date.today"],
        "x = self.clock.now()": [],
    }
    assert {code: offenders(references(ast.parse(code)), TELLS_THE_TIME) for code in ways} == ways


def test_nobody_asks_the_event_loop() -> None:
    found = [
        f"{file.path}:{node.lineno}"
        for file in source_files()
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("time", "call_later", "call_at")
        and "loop" in ast.unparse(node.func.value)
    ]
    assert found == []
