"""Which files of an event count: a log of numbered commits, each of them there wholly or not at all.

    <lake>/<event>/_log/00000001.json               create: the log's own id, the server that the rows come from
                        00000002.json               append: files with the rows of one batch
                        00000003.json               compact: some files instead of others
                        00000004.json               retain: files without successor
                        00000005.json               sweep: what was taken out is deleted now
                        00000100.snapshot.json      what the first hundred amount to
                   date=2026-03-01/*.parquet        files; those that no commit names do not count

A commit is written under a name of its own and then linked to the next number, which succeeds for one writer only. The
others look again at what is there and decide anew. Nobody holds a lock, so nobody who dies can leave one.

An append also moves the horizon: all rows with a lower change number are in the lake. A batch is appended without the
rows below the horizon, so one that was appended before, and is tried again, adds nothing. It is this and not the number
of a batch that makes a row appear once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from butlers.errors import InternalError

_DIGITS = 8
_SNAPSHOT = ".snapshot.json"
_SNAPSHOT_EVERY = 100  # commits
_TRIES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFile:
    path: str  # below the event's folder: date=2026-03-01/name.parquet
    rows: int
    bytes: int
    last_change: int

    @property
    def date(self) -> str:
        return self.path.split("/")[0].removeprefix("date=")


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeState:
    """What all commits up to one amount to."""

    version: int = 0  # number of the last commit
    id: str = ""  # of this log: a lake that was begun anew has another
    server: str = ""
    horizon: int = 0  # all rows with a lower change number are in the lake
    files: Mapping[str, LakeFile] = field(default_factory=dict)
    removed: tuple[str, ...] = ()  # taken out, and perhaps not deleted yet
    since: str = ""  # days before this one were taken out for their age, or never came
    batches: int = 0  # that were ever appended
    appended: int = 0  # rows of these

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files.values())

    def after(self, commit: Commit) -> Self:
        gone, forgotten = set(commit.remove), set(commit.forget)
        remaining = {path: file for path, file in self.files.items() if path not in gone}
        removed = tuple(path for path in self.removed if path not in forgotten) + commit.remove
        appends = commit.kind == "append"
        return replace(
            self,
            version=self.version + 1,
            id=commit.id or self.id,
            server=commit.server or self.server,
            horizon=max(self.horizon, commit.horizon),
            files=remaining | {file.path: file for file in commit.add},
            removed=removed,
            since=max(self.since, commit.since),
            batches=self.batches + appends,
            appended=self.appended + appends * sum(file.rows for file in commit.add),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    kind: str  # create | append | compact | retain | sweep | gap
    add: tuple[LakeFile, ...] = ()
    remove: tuple[str, ...] = ()
    forget: tuple[str, ...] = ()  # of what was removed: deleted by now
    horizon: int = 0
    id: str = ""
    server: str = ""
    since: str = ""


class LakeLog:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "_log"

    @property
    def exists(self) -> bool:
        return self._folder.is_dir()

    def create(self, *, server: str) -> LakeState:
        """The log as it is, begun if there is none."""
        self._folder.mkdir(parents=True, exist_ok=True)
        begin = Commit(kind="create", id=str(uuid4()), server=server)
        return self.commit(lambda state: None if state.version else begin) or self.state()

    def state(self) -> LakeState:
        for _ in range(_TRIES):
            try:
                return self._fold()
            except FileNotFoundError:
                continue  # swept away while we read: there is a newer snapshot by now
        raise InternalError(f"{self._folder}: the log changes faster than it can be read")

    def commit(self, decide: Callable[[LakeState], Commit | None]) -> LakeState | None:
        """Make the next commit; `decide` is asked again when somebody else was faster, and may say None: nothing."""
        while True:
            state = self.state()
            commit = decide(state)
            if commit is None:
                return None
            if self._link(state.version + 1, asdict(commit)):
                return self._concluded(state.after(commit))

    def sweepable(self) -> Iterator[Path]:
        """Commits that a snapshot stands for, and older snapshots."""
        newest = self._newest_snapshot()
        for path in self._folder.glob("*.json"):
            if _number(path) < newest or (_number(path) == newest and not path.name.endswith(_SNAPSHOT)):
                yield path
        yield from self._folder.glob("*.draft")

    def _concluded(self, state: LakeState) -> LakeState:
        if state.version % _SNAPSHOT_EVERY == 0:
            draft = self._draft({**asdict(state), "files": [asdict(file) for file in state.files.values()]})
            draft.replace(self._folder / f"{state.version:0{_DIGITS}}{_SNAPSHOT}")
        return state

    def _link(self, version: int, body: Mapping[str, Any]) -> bool:
        draft = self._draft(body)
        target = self._folder / f"{version:0{_DIGITS}}.json"
        try:
            os.link(draft, target)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        if self._newest_snapshot() >= version:
            # We slept for so long that this number was given, and swept away, before.
            target.unlink()
            return False
        return True

    def _draft(self, body: Mapping[str, Any]) -> Path:
        path = self._folder / f"{uuid4()}.draft"
        with path.open("w", encoding="utf-8") as file:
            json.dump(body, file)
            file.flush()
            os.fsync(file.fileno())
        return path

    def _fold(self) -> LakeState:
        newest = self._newest_snapshot()
        state = _state_from(self._folder / f"{newest:0{_DIGITS}}{_SNAPSHOT}") if newest else LakeState()
        later = sorted(number for number in self._commits() if number > newest)
        for expected, number in enumerate(later, start=newest + 1):
            if number != expected:
                raise InternalError(f"{self._folder}: commit {expected} is missing; restore it from a backup")
            state = state.after(_commit_from(self._folder / f"{number:0{_DIGITS}}.json"))
        return state

    def _commits(self) -> Iterator[int]:
        return (_number(path) for path in self._folder.glob("*.json") if not path.name.endswith(_SNAPSHOT))

    def _newest_snapshot(self) -> int:
        return max((_number(path) for path in self._folder.glob(f"*{_SNAPSHOT}")), default=0)


def _number(path: Path) -> int:
    return int(path.name.split(".")[0])


def _state_from(path: Path) -> LakeState:
    body = _load(path)
    files = {file["path"]: LakeFile(**file) for file in body["files"]}
    known = {name: value for name, value in body.items() if name in LakeState.__dataclass_fields__}  # of later versions
    return LakeState(**known | {"files": files, "removed": tuple(body["removed"])})


def _commit_from(path: Path) -> Commit:
    body = _load(path)
    lists = {name: tuple(body[name]) for name in ("remove", "forget")}
    return Commit(**body | lists | {"add": tuple(LakeFile(**file) for file in body["add"])})


def _load(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise InternalError(f"{path}: this is not a commit of the lake; restore it from a backup")
    return body
