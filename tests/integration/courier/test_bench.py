"""`scripts/bench courier`, briefly: what it measures, and the line that others read."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

DEADLINE_S = 60.0


@pytest.mark.scenario("C2-023")
async def test_throughput_latency_and_fairness_are_measured_in_one_run():
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.courier", "--quick", "--ways", "redis"), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(DEADLINE_S):
        output, _ = await process.communicate()
    assert process.returncode == 0
    found = json.loads(output.splitlines()[-1])
    assert found["bench"] == "courier"
    assert found["core_cycles"] > 0
    assert found["confirmed"]["gateway"] > 0
    assert found["windowed"]["gateway"] > 0
    assert 0 < found["latency"]["gateway"]["p50_ms"] <= found["p95_ms"] <= found["latency"]["gateway"]["p99_ms"]
    assert 1.0 <= found["fairness"] <= 2.0
    assert set(found["goals"]) >= {"core_cycles", "p95_ms", "fairness"}
    if "redis" not in found["skipped"]:
        assert found["vs_redis"] == min(ratios["redis"] for ratios in found["ratios"].values())
        assert "vs_redis" in found["goals"]
