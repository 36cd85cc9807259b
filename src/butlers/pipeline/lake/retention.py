"""Whole days leave the lake when they are old enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from butlers.pipeline.lake.files import touch
from butlers.pipeline.lake.log import Commit, LakeFile, LakeLog, LakeState


def retain(folder: Path, *, since: date) -> Mapping[str, int]:
    """Take out every day before one; returns the days with the rows that each one held."""
    taken: list[LakeFile] = []

    def take(state: LakeState) -> Commit | None:
        taken[:] = [file for file in state.files.values() if file.date < since.isoformat()]
        paths = tuple(file.path for file in taken)
        touch(paths, folder)
        return Commit(kind="retain", remove=paths, since=since.isoformat()) if paths else None

    LakeLog(folder).commit(take)
    rows: Counter[str] = Counter()
    for file in taken:
        rows[file.date] += file.rows
    return dict(sorted(rows.items()))
