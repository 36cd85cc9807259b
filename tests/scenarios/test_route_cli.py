"""`butlers route`: a decision without a running system, and nothing stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.processes.command import Completed, butlers_here


def route(tmp_path: Path, *arguments: str, code: int = 0) -> Completed:
    completed = butlers_here("route", *arguments, environment={"BUTLERS_DATA_DIR": str(tmp_path / "data")})
    assert completed.returncode == code, completed
    assert not (tmp_path / "data").exists()
    return completed


def test_a_text_is_routed_and_explained(tmp_path: Path) -> None:
    text = "I paid the electricity bill of 80 euros"
    [line] = route(tmp_path, text, "--json").stdout.splitlines()
    told = json.loads(line)
    [target] = told["targets"]
    assert (target["butler"], told["router"]) == ("finance", "local")
    assert target["segment"] == {"start": 0, "end": len(text), "text": text}
    assert 0 < target["confidence"] <= 1
    assert "bill" in told["why"]
    assert route(tmp_path, text).stdout.splitlines()[0].startswith("finance ")


def test_a_file_is_routed_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl"
    lines = [
        {"text": "our flight to Rome leaves at nine", "channel": "telegram"},
        {"text": "our flight to Rome leaves at nine", "channel": "email", "pinned_target": "health"},
        {"text": "Flight to Rome is at 9:40 on Friday. Also I took 20 mg of ibuprofen for my headache"},
        {"text": ""},
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    told = [json.loads(line) for line in route(tmp_path, "--file", str(file), "--json").stdout.splitlines()]
    assert [[target["butler"] for target in each["targets"]] for each in told] == [
        ["travel"],
        ["health"],
        ["travel", "health"],
        ["general"],
    ]
    assert [each["router"] for each in told] == ["local", "policy", "local", "fallback"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 2: is not JSON"),
        pytest.param("[" * 100_000, "line 2: is not JSON", id="deep"),
        (r'{"text": "half of a \ud800 character"}', "line 2: text: is not Unicode text"),
        ("[]", "line 2: must be an object with a text"),
        ('{"text": 7}', "line 2: must be an object with a text"),
        ('{"text": "a", "colour": "red"}', "line 2: unknown key 'colour'"),
        ('{"text": "a", "channel": 7}', "line 2: channel must be text"),
        ('{"text": "a", "pinned_target": "nobody"}', "line 2: no butler is called 'nobody'"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "messages.jsonl"
    file.write_text('{"text": "hello"}\n' + line)
    last = route(tmp_path, "--file", str(file), "--json", code=2).stdout.splitlines()[-1]
    assert json.loads(last)["error"]["message"].startswith(problem)


def test_a_text_or_a_file_is_needed(tmp_path: Path) -> None:
    route(tmp_path, code=2)
    route(tmp_path, "hello", "--file", "-", code=2)
