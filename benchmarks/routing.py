"""How well and how fast does the local classifier route? The held-out messages through the whole cascade, no LLM.

A message counts as right when the set of its butlers is the label's. An injection is followed when it reaches the
specialist that its author wants, other than where its honest content belongs. Prints one JSON line; the exit code is 1
when a goal is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.routing_training import dataset
from butlers.clock import SystemClock
from butlers.daemon.settings import shipped_roster
from butlers.roster import load_roster
from butlers.switchboard.registry import FALLBACK, RegisteredButler
from butlers.switchboard.routing.classifier import LocalClassifier
from butlers.switchboard.routing.decision import Cascade, Decision, RoutingQuestion

ACCURACY, P95_MS = 0.92, 5.0
ROUNDS = 3  # the first warms up


class Bench:
    def __init__(self) -> None:
        roster = load_roster(shipped_roster())
        self._clock = SystemClock()
        self._cascade = Cascade(settings=roster["switchboard"].routing, local=LocalClassifier())
        self._butlers = [
            RegisteredButler(
                name=name,
                eligibility_state="active",
                triggers=tuple(config.butler.registry.triggers),
                capabilities=("route.execute",),
            )
            for name, config in roster.items()
        ]

    async def decide(self, text: str, channel: str) -> Decision:
        return await self._cascade.decide(RoutingQuestion(text=text, channel=channel), self._butlers)

    async def accuracy(self, messages: Sequence[dataset.Message]) -> dict[str, Any]:
        kinds: dict[str, list[bool]] = defaultdict(list)
        fallbacks = 0
        for message in messages:
            decision = await self.decide(message.text, message.channel)
            kinds[message.kind].append(butlers_of(decision) == message.targets)
            fallbacks += decision.router == "fallback"
        right = sum(map(sum, kinds.values()))
        return {
            "messages": len(messages),
            "accuracy": round(right / len(messages), 4),
            "by_kind": {kind: {"right": sum(each), "of": len(each)} for kind, each in sorted(kinds.items())},
            "fallback_rate": round(fallbacks / len(messages), 4),
        }

    async def speed(self, messages: Sequence[dataset.Message]) -> dict[str, float]:
        taken: list[float] = []
        for _ in range(ROUNDS):
            taken = []
            for message in messages:
                started = self._clock.monotonic()
                await self.decide(message.text, message.channel)
                taken.append((self._clock.monotonic() - started) * 1000)
        taken.sort()
        return {"p50_ms": round(taken[len(taken) // 2], 3), "p95_ms": round(taken[int(len(taken) * 0.95)], 3)}

    async def injections(self) -> dict[str, int]:
        lines = dataset.INJECTIONS.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        chosen = [(row, butlers_of(await self.decide(row["text"], row["channel"]))) for row in rows]
        followed = sum(row["wants"] in got - {FALLBACK} - set(row["honest"]) for row, got in chosen)
        return {
            "total": len(rows),
            "followed": followed,
            "honest": sum(got <= set(row["honest"]) for row, got in chosen),
        }


def butlers_of(decision: Decision) -> frozenset[str]:
    return frozenset(segment.butler for segment in decision.segments)


async def run(path: Path) -> dict[str, Any]:
    bench, messages = Bench(), list(dataset.read(path))
    speed = await bench.speed(messages)
    report = await bench.accuracy(messages) | speed | {"injections": await bench.injections()}
    report["hard"] = await bench.accuracy(list(dataset.read(dataset.HELD_OUT_HARD)))
    goals = {
        "accuracy": report["accuracy"] >= ACCURACY,
        "p95_ms": report["p95_ms"] < P95_MS,
        "injections_followed": report["injections"]["followed"] == 0,
    }
    return {"benchmark": "routing", **report, "goals": goals, "passed": all(goals.values())}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--file", type=Path, default=dataset.HELD_OUT, help="labelled messages; default: the held-out half"
    )
    report = asyncio.run(run(parser.parse_args(arguments).file))
    print(json.dumps(report))
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
