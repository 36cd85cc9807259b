"""From a decision and the configuration to a plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pydantic
import pytest

from butlers.daemon.settings import shipped_roster
from butlers.errors import ConfigurationError
from butlers.roster import load_butler
from butlers.switchboard.config import PlanSection
from butlers.switchboard.dispatch.plan import FanoutPlan, make_plan
from tests.unit.switchboard.fanout.parts import decision


def section(*butlers: str, **fields: Any) -> PlanSection:
    return PlanSection.model_validate({"butlers": list(butlers), **fields})


def order(plan: FanoutPlan) -> list[str]:
    return [node.segment.butler for node in plan.nodes]


def test_without_a_configured_plan_everything_runs_at_once_and_nothing_stops_it() -> None:
    plan = make_plan(decision("finance", "travel"), [], strict=False)

    assert (plan.mode, plan.join, plan.abort) == ("parallel", "wait_for_all", "continue")
    assert order(plan) == ["finance", "travel"]
    assert all(node.required and node.depends_on == () for node in plan.nodes)


def test_a_plan_applies_to_exactly_its_butlers_in_any_order() -> None:
    sections = [section("finance", "health", mode="ordered"), section("travel", "finance", mode="conditional")]

    assert make_plan(decision("finance", "travel"), sections, strict=False).mode == "conditional"
    assert make_plan(decision("finance", "travel", "health"), sections, strict=False).mode == "parallel"
    assert make_plan(decision("finance"), sections, strict=False).mode == "parallel"


def test_ordered_follows_the_text_unless_depends_on_says_otherwise() -> None:
    free = section("finance", "travel", "health", mode="ordered")
    given = section(
        "finance", "travel", "health", mode="ordered", node=[{"butler": "finance", "depends_on": ["health"]}]
    )
    text = decision("finance", "travel", "health")

    assert order(make_plan(text, [free], strict=False)) == ["finance", "travel", "health"]
    assert order(make_plan(text, [given], strict=False)) == ["travel", "health", "finance"]


def test_who_depends_on_a_butler_depends_on_all_its_parts() -> None:
    conditional = section(
        "finance",
        "travel",
        mode="conditional",
        node=[{"butler": "finance", "depends_on": ["travel"], "run_if": "always"}],
    )
    plan = make_plan(decision("travel", "finance", "travel"), [conditional], strict=False)

    assert [(node.segment.segment_id, node.depends_on) for node in plan.nodes] == [
        ("s1", ()),
        ("s3", ()),
        ("s2", ("s1", "s3")),
    ]
    assert plan.nodes[-1].run_if == "always"


def test_a_strict_tier_stops_after_a_required_failure_and_weakens_nothing() -> None:
    harder = section("finance", "travel", abort="on_any_failure")
    either = section("finance", "travel", mode="ordered", join="first_success")
    text = decision("finance", "travel")

    assert make_plan(text, [], strict=True).abort == "on_required_failure"
    assert make_plan(text, [harder], strict=True).abort == "on_any_failure"
    assert make_plan(text, [either], strict=True).abort == "continue"


def test_a_stored_plan_is_the_same_plan() -> None:
    configured = section(
        "finance",
        "travel",
        mode="conditional",
        abort="on_any_failure",
        node=[
            {"butler": "travel", "depends_on": ["finance"], "run_if": "completed", "required": False},
            {"butler": "finance", "arbitration_group": "price", "arbitration_priority": 3},
        ],
    )
    text = decision("travel", "finance")
    plan = make_plan(text, [configured], strict=False)

    assert FanoutPlan.from_wire(json.loads(json.dumps(plan.to_wire())), text.segments) == plan


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {
                "mode": "ordered",
                "node": [
                    {"butler": "finance", "depends_on": ["travel"]},
                    {"butler": "travel", "depends_on": ["finance"]},
                ],
            },
            "circle",
        ),
        ({"mode": "parallel", "node": [{"butler": "finance", "depends_on": ["travel"]}]}, "needs mode ordered"),
        ({"mode": "ordered", "node": [{"butler": "finance", "run_if": "always"}]}, "run_if needs mode conditional"),
        ({"join": "first_success", "abort": "on_any_failure"}, "abort needs join wait_for_all"),
        ({"mode": "ordered", "node": [{"butler": "finance", "depends_on": ["health"]}]}, "other butlers of the plan"),
    ],
)
def test_a_plan_that_could_never_run_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=problem):
        section("finance", "travel", **fields)


def test_a_cycle_stops_the_start(tmp_path: Path) -> None:
    cycle = """
[[routing.plan]]
butlers = ["finance", "travel", "health"]
mode = "conditional"
[[routing.plan.node]]
butler = "finance"
depends_on = ["health"]
[[routing.plan.node]]
butler = "health"
depends_on = ["travel"]
[[routing.plan.node]]
butler = "travel"
depends_on = ["finance"]
"""
    shipped = (shipped_roster() / "switchboard" / "butler.toml").read_text(encoding="utf-8")
    (tmp_path / "butler.toml").write_text(shipped + cycle, encoding="utf-8")

    with pytest.raises(ConfigurationError) as refused:
        load_butler(tmp_path)
    assert refused.value.key == "routing.plan.0"
    assert "circle" in refused.value.problem
