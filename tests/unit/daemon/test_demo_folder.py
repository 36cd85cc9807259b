"""What stays behind of a demo: nothing when all went well, logs and data when something failed."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from butlers.daemon.cli.system import demo
from butlers.daemon.demo import lines


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 1)])
def test_the_folder_of_a_failed_demo_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], passed: bool, code: int
) -> None:
    async def close() -> None:
        return

    class Shown:
        instance = SimpleNamespace(close=close)

        def __init__(self, folder: Path, *_others: Any) -> None:
            (folder / "log").touch()

        async def lines(self, *, keep: bool) -> AsyncIterator[lines.Line]:
            assert not keep
            yield lines.Line(name="one", shows="a thing", passed=passed, detail="as seen", seconds=0.1)

    folder = tmp_path / "demo"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_how: str(folder))
    monkeypatch.setattr(lines, "Demo", Shown)
    assert demo() == code
    assert folder.exists() is not passed
    assert (f"stay in {folder}" in capsys.readouterr().err) is not passed
