"""A model that Switchboard asks: a stand-in program that speaks the formats of the real ones, told what to answer.

    model = RoutingModel(tmp_path)
    model.picks("finance")                                    the whole message, whatever its length
    async with running_system(..., roster_dir=model.roster(), llm="on") as running: ...
    model.questions()                                         what the program was given, one after the other

It is run for real, by the adapter of the real program. The other butlers of the roster think for themselves. Only who
is quite sure decides, which the model is and the local classifier is not.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from butlers.daemon.settings import shipped_roster
from tests.integration.runtimes.stand_ins import CODEX, Speech
from tests.system import RunningSystem

_PROGRAM = """\
#!{python} -IS
import json, os, sys, time
given = {{"argv": sys.argv[1:], "stdin": sys.stdin.buffer.read().decode("utf-8"), "env": dict(os.environ)}}
with open({record!r}, "a", encoding="utf-8") as record:
    record.write(json.dumps(given) + "\\n")
with open({wishes!r}, encoding="utf-8") as file:
    wishes = json.load(file)
model = given["argv"][given["argv"].index("--model") + 1] if "--model" in given["argv"] else ""
wish = wishes["by_model"].get(model, wishes["any"])
document = json.loads(given["stdin"].rstrip().split("\\n")[-2])
wish = wishes["by_text"].get("".join(piece["text"] for piece in document["pieces"]), wish)
if "Relationship extractor" in given["stdin"]:
    wish = wishes["extractions"] or wish
if wish.get("sleeps"):
    time.sleep(wish["sleeps"])
if wish.get("exits"):
    sys.exit(wish["exits"])
answer = wish.get("says")
if answer is None:
    length = document["length"]
    answer = json.dumps([{{"butler": wish["butler"], "segment": {{"start": 0, "end": length}},
                          "confidence": wish["confidence"], "rationale": "a test said so"}}])
lines = json.loads({events!r})
sys.stdout.reconfigure(encoding="utf-8")
for line in lines:
    print(json.dumps(line).replace("THE-ANSWER", json.dumps(answer)[1:-1]))
"""
SURE = 1.0
_THRESHOLD = "[routing]\nconfidence_threshold = {}\n"
_TOOL_WORDS = ("tool_use", "command_execution", "mcp_tool_call", "tool_result", "sub-agent", "Let me look")
_FENCED = re.compile(r"BEGIN (?P<mark>[0-9a-f]{32}) (?P<label>[^\n]*)\n(?P<body>[^\n]*)\nEND (?P=mark)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One prompt, as the program read it."""

    argv: list[str]
    stdin: str
    env: dict[str, str]

    @property
    def outside(self) -> str:
        """What is not data, with the random mark taken out."""
        [mark] = {match["mark"] for match in _FENCED.finditer(self.stdin)}
        return re.sub(r"\n{3,}", "\n\n", _FENCED.sub("", self.stdin)).replace(mark, "MARK")

    @property
    def blocks(self) -> list[tuple[str, Any]]:
        """Label and decoded data of every block."""
        return [(match["label"], json.loads(match["body"])) for match in _FENCED.finditer(self.stdin)]

    @property
    def message(self) -> str:
        [document] = [data for label, data in self.blocks if label == "message"]
        return "".join(piece["text"] for piece in document["pieces"])

    @property
    def history(self) -> list[tuple[str, str]]:
        """Speaker and text of everything said before."""
        before = "earlier message from "
        return [(label.removeprefix(before), data) for label, data in self.blocks if label.startswith(before)]


class RoutingModel:
    def __init__(self, tmp_path: Path, speech: Speech = CODEX, *, tools: bool = False) -> None:
        self._home, self._speech = tmp_path, speech
        self._record, self._wishes = tmp_path / "questions.jsonl", tmp_path / "wishes.json"
        self._wanted: dict[str, Any] = {"any": {}, "by_model": {}, "by_text": {}, "extractions": None}
        self.path = tmp_path / "model"
        events = [event for event in speech.answer("THE-ANSWER") if tools or not _uses_tools(event)]
        program = _PROGRAM.format(
            python=sys.executable, record=str(self._record), wishes=str(self._wishes), events=json.dumps(events)
        )
        self.path.write_text(program, encoding="utf-8")
        self.path.chmod(0o755)
        self.picks("general")

    # --- what it answers ---------------------------------------------------------------------------------------------

    def picks(self, butler: str, *, confidence: float = SURE, model: str | None = None) -> None:
        self._wish({"butler": butler, "confidence": confidence}, model)

    def says(self, answer: str, *, model: str | None = None) -> None:
        self._wish({"says": answer}, model)

    def does(self, model: str | None = None, **wish: Any) -> None:
        self._wish(wish, model)

    def obeys(self, wanted: Mapping[str, str]) -> None:
        """Picks for every one of these texts the butler that stands beside it, and is sure of it."""
        self._wanted["by_text"] = {text: {"butler": butler, "confidence": 1.0} for text, butler in wanted.items()}
        self._write()

    def extracts(self, *found: Mapping[str, Any]) -> None:
        self._wanted["extractions"] = {"says": json.dumps({"extractions": list(found)})}
        self._write()

    def _wish(self, wish: dict[str, Any], model: str | None) -> None:
        if model is None:
            self._wanted["any"] = wish
        else:
            self._wanted["by_model"][model] = wish
        self._write()

    def _write(self) -> None:
        self._wishes.write_text(json.dumps(self._wanted), encoding="utf-8")

    # --- what it was asked -------------------------------------------------------------------------------------------

    def questions(self) -> list[Question]:
        if not self._record.exists():
            return []
        return [Question(**json.loads(line)) for line in self._record.read_text(encoding="utf-8").splitlines()]

    def triages(self) -> list[Question]:
        return [question for question in self.questions() if "# Message triage" in question.stdin]

    # --- where it is wired -------------------------------------------------------------------------------------------

    def roster(self, routing: str = "", *, threshold: float = 0.999) -> Path:
        """The shipped roster with this program behind Switchboard; `routing` is more of its butler.toml."""
        roster = self._home / "roster"
        shutil.copytree(shipped_roster(), roster)
        for toml in roster.glob("*/butler.toml"):
            text = toml.read_text(encoding="utf-8")
            if toml.parent.name == "switchboard":
                command = f'type = "{self._speech.kind}"\ncommand = "{self.path}"'
                text = text.replace('type = "codex"', command) + f"\n{_THRESHOLD.format(threshold)}{routing}\n"
            else:
                text = text.replace('type = "codex"', 'type = "local"')
            toml.write_text(text, encoding="utf-8")
        return roster


def _uses_tools(event: Mapping[str, Any]) -> bool:
    said = json.dumps(event)
    return any(word in said for word in _TOOL_WORDS)


async def routed(running: RunningSystem, text: str, **control: Any) -> dict[str, Any]:
    """Hand in one message at the HTTP door; its trace when it has come to its end."""
    document = running.envelope(text) | ({"control": control} if control else {})
    response = await running.http.post(running.url(path="/api/ingest"), json=document)
    assert response.status_code == 202, response.text
    return await running.finished(response.json()["request_id"])


def targets(trace: Mapping[str, Any]) -> list[str]:
    return [segment["butler"] for segment in trace["routing"]["decision"]["segments"]]
