"""`scripts/walk` shows how one message goes through the code."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


async def test_the_walk_of_a_message_is_counted_and_in_order() -> None:
    command = (sys.executable, "-m", "benchmarks.walk", "--json")
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    *steps, counted = [json.loads(line) for line in output.decode().splitlines()]
    assert set(counted) == {"files", "functions", "package_switches", "sql_statements"}
    functions = [step["name"] for step in steps if step["kind"] == "function"]
    assert counted["functions"] == len(functions) == len(set(functions))
    # From the poll that finds it, through the door, to the provider's answer.
    way = [next(index for index, name in enumerate(functions) if part in name) for part in ("to_envelope", "accept")]
    assert way == sorted(way)
    statements = " ".join(step["name"] for step in steps if step["kind"] == "sql")
    for statement in ("admit_events", "claim message_inbox", "accept_route", "record_admission", "finish_attempts"):
        assert f"/* {statement} */" in statements
